"""Model folders of a few kilobytes with random weights, in the files that transformers writes."""

from collections.abc import Sequence
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")  # where it is absent, so are the tests that need these models
transformers = pytest.importorskip("transformers")


def save_bert(folder: Path, words: Sequence[str]) -> Path:
    """Write a two-layer BERT of 32 dimensions whose vocabulary is `words` into `folder`, which is returned."""
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    transformers.BertModel(config).save_pretrained(folder)
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder
