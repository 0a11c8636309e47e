"""Model folders of a few kilobytes with random weights, in the files that transformers writes."""

from collections.abc import Sequence
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")  # where it is absent, so are the tests that need these models
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")


def save_bert(folder: Path, words: Sequence[str], network: str = "BertModel", seed: int = 0, **options: object) -> Path:
    """Write a two-layer BERT of 32 dimensions, of the transformers class `network`, into `folder`; returns it.

    `words` is its vocabulary, `options` go to its configuration.
    """
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        **options,
    )
    getattr(transformers, network)(config).save_pretrained(folder)
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def save_qwen3(folder: Path, network: str, words: Sequence[str], seed: int, pad: str, **options: object) -> Path:
    """Write a two-layer Qwen3 of the transformers class `network` and a word tokenizer into `folder`; returns it.

    `padding_side` among `options` is the tokenizer's, the others are the configuration's.
    """
    side = options.pop("padding_side", "right")
    vocabulary = {word: place for place, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token=pad, padding_side=side
    ).save_pretrained(folder)
    torch.manual_seed(seed)
    config = transformers.Qwen3Config(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        **options,
    )
    getattr(transformers, network)(config).save_pretrained(folder)
    return folder
