"""Stop strings over tokens of a byte-level tokenizer."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from verl_agentic.cpu.request import Request
from verl_agentic.cpu.sampling_params import SamplingParams
from verl_agentic.cpu.stops import StopStrings


def first_completion(stops, token_ids, strings):
    """(index of the completing token, string), feeding tokens one at a time."""
    for end in range(1, len(token_ids) + 1):
        found = stops.completed(token_ids[:end], strings)
        if found is not None:
            return end - 1, found
    return None


def test_a_stop_string_that_ends_inside_a_token_is_found_at_that_token(tokenizer):
    token_ids = tokenizer.encode("wait... what?")
    pieces = [tokenizer.decode([token]) for token in token_ids]
    dots = next(index for index, piece in enumerate(pieces) if ".." in piece)
    assert pieces[dots] != ".."
    assert not pieces[dots].endswith("..")
    assert first_completion(StopStrings(tokenizer), token_ids, ["t.."]) == (dots, "t..")


def test_a_tag_joined_with_its_line_end_is_found(tokenizer):
    token_ids = tokenizer.encode("<search> where is Oslo? </search>\n")
    index, found = first_completion(StopStrings(tokenizer), token_ids, ["</answer>", "</search>"])
    assert found == "</search>"
    assert "</search>" in tokenizer.decode(token_ids[: index + 1])
    assert "</search>" not in tokenizer.decode(token_ids[:index])


def test_an_old_occurrence_is_not_found_again(tokenizer):
    stops = StopStrings(tokenizer)
    token_ids = [*tokenizer.encode("</search>"), *tokenizer.encode("<answer>")]
    assert stops.completed(token_ids, ["</search>"]) is None


def test_characters_of_several_bytes_and_tokens(tokenizer):
    token_ids = [token for byte in "京".encode() for token in tokenizer.convert_tokens_to_ids([_byte_token(byte)])]
    assert len(token_ids) == 3
    assert first_completion(StopStrings(tokenizer), token_ids, ["京"]) == (2, "京")


def test_special_tokens_count_as_text(tokenizer):
    assert StopStrings(tokenizer).completed([tokenizer.eos_token_id], ["<eos>"]) == "<eos>"


def test_tokens_behind_a_gap_in_the_ids_are_found():
    words = {"a": 0, "b": 1, "<unk>": 2, "</search>": 10, "x</answer>y": 300}
    gapped = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<unk>")))
    assert len(gapped) == 5
    stops = StopStrings(gapped)
    assert stops.completed([0, 10], ["</answer>", "</search>"]) == "</search>"
    assert stops.completed([10, 300], ["</answer>", "</search>"]) == "</answer>"
    assert stops.completed([10, 301], ["</answer>", "</search>"]) is None


@pytest.mark.parametrize("min_tokens", [0, 1, 2, 3])
def test_a_stop_string_within_the_least_number_of_tokens_is_passed_over(tokenizer, min_tokens):
    (token,) = tokenizer.encode("!")
    params = SamplingParams.parse({"stop": "!", "min_tokens": min_tokens})
    request = Request("r", [5], params, end_tokens=frozenset(), max_new=9, deliver=lambda _: None)
    while not request.done:
        request.append(token, -0.5, StopStrings(tokenizer))
    assert (len(request.token_ids), request.finish_reason, request.stop_reason) == (min_tokens + 1, "stop", "!")


@pytest.mark.parametrize("string", ["x", " ", "\n", "</search>", "東京", "</search>\n"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(token_ids=st.lists(st.integers(0, 319), max_size=60))
def test_equals_decoding_everything_every_time(tokenizer, string, token_ids):
    token_ids = [token for token in token_ids if token < len(tokenizer)]
    naive = next((end - 1 for end in range(1, len(token_ids) + 1) if string in tokenizer.decode(token_ids[:end])), None)
    found = first_completion(StopStrings(tokenizer), token_ids, [string])
    assert (None if found is None else found[0]) == naive


def _byte_token(byte):
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return chr(byte) if byte in printable else chr(256 + [b for b in range(256) if b not in printable].index(byte))
