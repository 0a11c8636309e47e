"""From characters to tokens without encoding again: characters spread over tokens, tokens that hold several things."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tokenizers import byte_level_tokenizer

from verl_agentic.bridge.codec import TokenizerCodec
from verl_agentic.core.token_offsets import token_span
from verl_agentic.demo.codec import WordCodec
from verl_agentic.demo.tokenizer import build_tokenizer

TEXT = "Gödel's café <think> a plan</think><search> x>y</search>\n<reflect>no</reflect> 日本 🦊"


@pytest.fixture(scope="module")
def bytes_codec():
    return TokenizerCodec(byte_level_tokenizer("the plan <think> a </think> <search> fox </search> cafe"))


def test_a_part_is_found_in_a_spelling_that_encoding_would_not_give(bytes_codec):
    """Ids as a model might sample them: other splits than the tokenizer would choose."""
    ids = [i for piece in ("<th", "ink", "> a", " p", "lan</t", "hink>", " y") for i in bytes_codec.encode(piece)]
    text = bytes_codec.decode(ids)
    assert text == "<think> a plan</think> y"
    assert bytes_codec.encode(text) != ids  # encoding again would not give what was sampled
    start = text.index(" a plan")
    first, last = token_span(ids, bytes_codec.decode, start, start + len(" a plan"))
    covered = bytes_codec.decode(ids[first:last])
    assert " a plan" in covered
    assert " a plan" not in bytes_codec.decode(ids[first + 1 : last])
    assert " a plan" not in bytes_codec.decode(ids[first : last - 1])


def test_a_token_shared_with_the_neighbour_belongs_to_the_range():
    # tokens:  a> | bc | d< | e     characters a > b c d < e
    words = ["a>", "bc", "d<", "e"]
    decode = "".join

    def span(start, end):
        return token_span(words, decode, start, end)

    assert span(1, 2) == (0, 1)  # ">" lies in the first token
    assert span(2, 4) == (1, 2)  # "bc" is exactly the second
    assert span(2, 5) == (1, 3)  # "bcd": the third too, which also holds "<"
    assert span(5, 6) == (2, 3)
    assert span(0, 7) == (0, 4)


def test_a_character_of_several_tokens_has_all_of_them(bytes_codec):
    fox = bytes_codec.encode("🦊")
    assert len(fox) == 4  # one token a byte
    ids = [*bytes_codec.encode("a "), *fox, *bytes_codec.encode("b")]
    assert bytes_codec.decode(ids) == "a 🦊b"
    before = len(ids) - 5
    assert token_span(ids, bytes_codec.decode, 2, 3) == (before, before + 4)
    assert token_span(ids, bytes_codec.decode, 3, 4) == (before + 4, before + 5)
    assert token_span(ids, bytes_codec.decode, 0, 1)[1] <= before


def test_a_token_that_ends_within_a_character_belongs_to_both():
    """ "a" and the first byte of "é" in one token, its second byte with "b" in the next."""
    pieces = [b"a\xc3", b"\xa9b", b"c"]

    def decode(ids):
        return b"".join(ids).decode(errors="replace")

    assert token_span(pieces, decode, 0, 1) == (0, 1)
    assert token_span(pieces, decode, 1, 2) == (0, 2)
    assert token_span(pieces, decode, 2, 3) == (1, 2)
    assert token_span(pieces, decode, 3, 4) == (2, 3)


def test_an_incomplete_character_at_the_end_keeps_its_tokens(bytes_codec):
    """Generation was cut within a character: the text ends with a stand-in."""
    ids = [*bytes_codec.encode("ok"), *bytes_codec.encode("🦊")[:2]]
    text = bytes_codec.decode(ids)
    assert text == "ok�"
    assert token_span(ids, bytes_codec.decode, 2, 3) == (len(ids) - 2, len(ids))


def test_in_the_words_of_the_demo_a_space_belongs_to_the_word_after_it():
    codec = WordCodec(build_tokenizer())
    ids = codec.encode("<think> the </think> <search> the </search>")
    text = codec.decode(ids)
    start = text.index("<search>")
    assert token_span(ids, codec.decode, start, len(text)) == (3, 6)
    assert token_span(ids, codec.decode, 0, len("<think>")) == (0, 1)
    assert token_span(ids, codec.decode, len("<think>"), len("<think> the")) == (1, 2)


@pytest.mark.parametrize(("start", "end"), [(0, 0), (2, 1), (-1, 1), (0, 5), (4, 5)])
def test_a_range_outside_the_text_is_refused(start, end):
    with pytest.raises(ValueError, match=r"no part of a text of 4"):
        token_span(["ab", "cd"], "".join, start, end)


@given(st.data())
def test_every_range_equals_the_search_without_bisection(bytes_codec, data):
    """Any sampled spelling of any text: the pieces are cut at random, so that they never are the tokenizer's own."""
    text = data.draw(st.text(alphabet=TEXT, min_size=1, max_size=16))
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(raw) - 1)), max_size=6)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True) if a < b]

    def decode(ids):
        return b"".join(ids).decode(errors="replace")

    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    first, last = token_span(pieces, decode, start, end)
    # which bytes the range takes, counted directly
    low, high = len(text[:start].encode()), len(text[:end].encode())
    offsets = [sum(map(len, pieces[:i])) for i in range(len(pieces) + 1)]
    touching = [i for i in range(len(pieces)) if offsets[i] < high and offsets[i + 1] > low]
    assert (first, last) == (touching[0], touching[-1] + 1)


@given(st.data())
def test_real_ids_of_real_texts(bytes_codec, data):
    """Every tag of a text, encoded by a real byte-level tokenizer: the tokens that hold it, and no further one."""
    text = data.draw(st.text(alphabet=TEXT, max_size=8)) + "<think>é</think>" + data.draw(st.text(TEXT, max_size=8))
    ids = bytes_codec.encode(text)
    start = text.index("<think>")
    end = text.index("</think>") + len("</think>")
    first, last = token_span(ids, bytes_codec.decode, start, end)
    encoded = bytes_codec.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    offsets = encoded["offset_mapping"]
    touching = [i for i, (a, b) in enumerate(offsets) if a < end and b > start]
    assert (first, last) == (touching[0], touching[-1] + 1)
