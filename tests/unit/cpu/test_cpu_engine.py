"""The embedded engine against transformers: same tokens, same probabilities, whatever shares the batch."""

import asyncio
import random

import pytest
import torch

PROMPTS = [[2 + (7 * row + 3 * column) % 300 for column in range(1 + 5 * row % 37)] for row in range(12)]
GREEDY = {"temperature": 0, "max_tokens": 24, "ignore_eos": True, "logprobs": True}


def reference(model, prompt, count):
    """Greedy continuation by transformers' own generate, one prompt at a time."""
    ids = torch.tensor([prompt])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=count,
        eos_token_id=None,
        pad_token_id=0,
    )
    return output[0, len(prompt) :].tolist()


def recomputed(model, prompt, tokens, temperature):
    """Log-probabilities of `tokens` by one full forward pass, as training computes them."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()


def test_greedy_equals_generate_for_ragged_prompts(model, engines, generate):
    outputs = generate(engines(model), *[(prompt, GREEDY) for prompt in PROMPTS])
    assert [output.token_ids for output in outputs] == [reference(model, prompt, 24) for prompt in PROMPTS]
    assert {output.finish_reason for output in outputs} == {"length"}


@pytest.mark.parametrize("settings", [{"max_batch": 3}, {"max_prefill_tokens": 40}, {"max_batch": 1}])
def test_places_and_prefill_limits_change_nothing(llama, engines, generate, settings):
    outputs = generate(engines(llama, **settings), *[(prompt, GREEDY) for prompt in PROMPTS])
    assert [output.token_ids for output in outputs] == [reference(llama, prompt, 24) for prompt in PROMPTS]


def test_requests_that_join_and_leave_at_different_steps(llama, engines):
    engine = engines(llama)
    order = random.Random(5)
    lengths = [order.randint(1, 40) for _ in range(60)]

    async def staggered():
        calls = []
        for index, length in enumerate(lengths):
            request = engine.generate(PROMPTS[index % 12], {**GREEDY, "max_tokens": length})
            calls.append(asyncio.ensure_future(request))
            await asyncio.sleep(order.random() * 0.004)
        return await asyncio.gather(*calls)

    outputs = asyncio.run(staggered())
    longest = [reference(llama, prompt, 40) for prompt in PROMPTS]
    wanted = [longest[index % 12][:length] for index, length in enumerate(lengths)]
    assert [output.token_ids for output in outputs] == wanted


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_log_probs_equal_a_full_forward_pass(model, engines, generate, temperature):
    params = {"temperature": temperature, "top_p": 0.9, "max_tokens": 20, "ignore_eos": True, "logprobs": True}
    outputs = generate(engines(model), *[(prompt, {**params, "seed": i}) for i, prompt in enumerate(PROMPTS)])
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert output.log_probs == pytest.approx(recomputed(model, prompt, output.token_ids, temperature), abs=1e-4)


def test_greedy_log_probs_are_at_temperature_one_and_absent_unless_asked_for(llama, engines, generate):
    asked, silent = generate(engines(llama), (PROMPTS[1], GREEDY), (PROMPTS[1], {**GREEDY, "logprobs": False}))
    assert asked.log_probs == pytest.approx(recomputed(llama, PROMPTS[1], asked.token_ids, 1.0), abs=1e-4)
    assert silent.log_probs is None


def various(index):
    """64 requests that all ask for something else."""
    return {
        "temperature": 0.0 if index % 9 == 0 else 0.4 + index / 40,
        "top_k": index % 6,
        "top_p": 1.0 - (index % 4) / 8,
        "min_p": (index % 5) / 50,
        "repetition_penalty": 1.0 + (index % 3) / 4,
        "min_tokens": index % 8,
        "max_tokens": 8 + index % 25,
        "stop_token_ids": [5 + index] if index % 2 else [],
        "seed": 1000 + index,
        "logprobs": True,
    }


def test_sixty_four_requests_with_different_parameters_equal_each_alone(model, engines, generate):
    engine = engines(model)
    requests = [(PROMPTS[index % 12], various(index)) for index in range(64)]
    together = generate(engine, *requests)
    alone = [generate(engine, request)[0] for request in requests]
    assert [output.token_ids for output in together] == [output.token_ids for output in alone]
    assert [output.finish_reason for output in together] == [output.finish_reason for output in alone]
    assert {output.finish_reason for output in together} == {"stop", "length"}
    for (prompt, params), output in zip(requests, together, strict=True):
        temperature = params["temperature"] or 1.0
        assert output.log_probs == pytest.approx(recomputed(model, prompt, output.token_ids, temperature), abs=1e-4)


def test_the_seed_decides(llama, engines, generate):
    params = {"max_tokens": 20, "ignore_eos": True}
    engine = engines(llama)
    first, again, other = generate(engine, *[(PROMPTS[2], {**params, "seed": seed}) for seed in (1, 1, 2)])
    assert first.token_ids == again.token_ids != other.token_ids
    unseeded = generate(engine, *[(PROMPTS[2], params)] * 8)
    assert len({tuple(output.token_ids) for output in unseeded}) == 8


def test_end_of_sequence_at_once_is_kept(llama, engines, generate):
    first = reference(llama, PROMPTS[3], 1)[0]
    llama.generation_config.eos_token_id = [first, 1]
    (output,) = generate(engines(llama), (PROMPTS[3], {"temperature": 0}))
    assert (output.token_ids, output.finish_reason, output.stop_reason) == ([first], "stop", None)


def test_end_of_sequence_ignored_and_put_off(llama, engines, generate):
    wanted = reference(llama, PROMPTS[3], 6)
    llama.generation_config.eos_token_id = wanted[0]
    ignoring, late = generate(
        engines(llama),
        (PROMPTS[3], {"temperature": 0, "ignore_eos": True, "max_tokens": 6}),
        (PROMPTS[3], {"temperature": 0, "min_tokens": 3, "max_tokens": 6}),
    )
    assert ignoring.token_ids == wanted
    assert wanted[0] not in late.token_ids[:3]
    assert len(late.token_ids) >= 3


def test_stop_tokens_end_and_name_themselves(llama, engines, generate):
    wanted = reference(llama, PROMPTS[4], 10)
    stop = wanted[5]
    (output,) = generate(engines(llama), (PROMPTS[4], {**GREEDY, "stop_token_ids": [stop]}))
    assert output.token_ids == wanted[: wanted.index(stop) + 1]
    assert (output.finish_reason, output.stop_reason) == ("stop", stop)


@pytest.mark.parametrize("include", [True, False])
def test_the_token_that_completes_a_stop_string_is_kept_whole(llama, tokenizer, engines, generate, include):
    wanted = reference(llama, PROMPTS[5], 24)
    index = next(i for i, token in enumerate(wanted) if len(tokenizer.decode([token])) >= 3 and token not in wanted[:i])
    inside = tokenizer.decode([wanted[index]])[:-1]
    params = {**GREEDY, "stop": ["never seen", inside], "include_stop_str_in_output": include}
    (output,) = generate(engines(llama, tokenizer), (PROMPTS[5], params))
    assert inside in tokenizer.decode(output.token_ids)
    assert inside not in tokenizer.decode(output.token_ids[:-1])
    assert output.token_ids == wanted[: len(output.token_ids)]
    assert (output.finish_reason, output.stop_reason) == ("stop", inside)


def test_one_token_and_what_is_left_of_the_context(llama, engines, generate):
    engine = engines(llama, max_model_len=40)
    one, rest = generate(
        engine, ([9, 8, 7], {**GREEDY, "max_tokens": 1}), ([9, 8, 7], {"temperature": 0, "ignore_eos": True})
    )
    assert (one.token_ids, one.finish_reason) == (reference(llama, [9, 8, 7], 1), "length")
    assert len(rest.token_ids) == 37


def test_a_penalised_request_does_not_repeat(llama, engines, generate):
    (output,) = generate(engines(llama), (PROMPTS[6], {**GREEDY, "repetition_penalty": 1000.0}))
    assert len(set(output.token_ids)) == 24
    assert not set(output.token_ids) & set(PROMPTS[6])
