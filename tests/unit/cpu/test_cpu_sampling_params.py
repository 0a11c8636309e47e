"""Parsing and checking of one request's sampling parameters."""

import numpy as np
import pytest

from verl_agentic.cpu.sampling_params import SamplingParams, SamplingParamsError


def test_what_verl_sends_is_understood():
    sent = {"temperature": 0.5, "top_p": 0.9, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
    params = SamplingParams.parse(sent)
    assert (params.temperature, params.top_p, params.top_k, params.logprobs) == (0.5, 0.9, -1, True)
    assert params.max_tokens is None


def test_max_new_tokens_means_max_tokens_and_max_tokens_wins():
    assert SamplingParams.parse({"max_new_tokens": 7}).max_tokens == 7
    assert SamplingParams.parse({"max_new_tokens": 7, "max_tokens": 5}).max_tokens == 5


def test_none_means_the_default():
    assert SamplingParams.parse({"temperature": None, "stop": None, "top_k": None}).temperature == 1.0


def test_vllm_style_logprobs_zero_asks_for_the_sampled_token():
    assert SamplingParams.parse({"logprobs": 0}).logprobs
    assert not SamplingParams.parse({"logprobs": None}).logprobs


def test_one_stop_string_may_stand_alone():
    assert SamplingParams.parse({"stop": "</search>"}).stop == ("</search>",)


def test_each_request_without_a_seed_gets_its_own():
    assert len({SamplingParams.parse({}).seed for _ in range(20)}) == 20


def test_numbers_of_numpy_are_numbers():
    sent = {
        "seed": np.uint64(2**64 - 1),
        "max_tokens": np.int64(3),
        "temperature": np.float32(0.5),
        "ignore_eos": np.bool_(True),
        "stop_token_ids": np.array([4, 5]),
    }
    params = SamplingParams.parse(sent)
    assert (params.seed, params.max_tokens, params.temperature) == (2**64 - 1, 3, 0.5)
    assert params.ignore_eos is True
    assert [(type(token), token) for token in params.stop_token_ids] == [(int, 4), (int, 5)]


def test_temperatures_near_zero_are_greedy():
    assert SamplingParams.parse({"temperature": 0}).greedy
    assert SamplingParams.parse({"temperature": 1e-6}).greedy
    assert not SamplingParams.parse({"temperature": 0.01}).greedy


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"temprature": 1.0}, "unknown sampling parameter 'temprature'; did you mean 'temperature'?"),
        ({"n": 2}, "unknown sampling parameter 'n'"),
        ({"temperature": -0.1}, "temperature=-0.1 must be at least 0"),
        ({"temperature": float("nan")}, "temperature=nan must be at least 0"),
        ({"temperature": "hot"}, "temperature='hot' must be at least 0"),
        ({"top_p": 0.0}, "top_p=0.0 must be in (0, 1]"),
        ({"top_p": 1.5}, "top_p=1.5 must be in (0, 1]"),
        ({"top_k": -2}, "top_k=-2 must be -1, 0 or positive"),
        ({"top_k": 1.5}, "top_k=1.5 must be -1, 0 or positive"),
        ({"min_p": 2}, "min_p=2 must be in [0, 1]"),
        ({"repetition_penalty": 0}, "repetition_penalty=0 must be above 0"),
        ({"max_tokens": 0}, "max_tokens=0 must be at least 1"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens=4 exceeds max_tokens=3"),
        ({"seed": -1}, "seed=-1 must be in [0, 2**64)"),
        ({"stop": [""]}, "stop=[''] must be a string or a list of strings, none of them empty"),
        ({"stop": [5]}, "stop=[5] must be a string or a list of strings, none of them empty"),
        ({"stop": 5}, "stop=5 must be a string or a list of strings, none of them empty"),
        ({"stop_token_ids": [-1]}, "stop_token_ids=-1 must be token ids"),
        ({"stop_token_ids": 5}, "stop_token_ids=5 must be a list of token ids"),
        ({"stop_token_ids": "5"}, "stop_token_ids='5' must be a list of token ids"),
        ({"ignore_eos": "false"}, "ignore_eos='false' must be True or False"),
        ({"include_stop_str_in_output": 1}, "include_stop_str_in_output=1 must be True or False"),
        ({"logprobs": "false"}, "logprobs='false' must be True, False or a number"),
        ({"seed": np.float64(3)}, "seed=3.0 must be in [0, 2**64)"),
    ],
)
def test_a_bad_value_is_one_sentence(raw, message):
    with pytest.raises(SamplingParamsError) as caught:
        SamplingParams.parse(raw)
    assert str(caught.value) == message
