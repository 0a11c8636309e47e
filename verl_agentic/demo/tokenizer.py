"""The demo's closed-vocabulary tokenizer: one word, one token; the tags of all methods are words too.

Saved as a plain PreTrainedTokenizerFast beside a llama-type model: for `model_type` qwen2 AutoTokenizer would put its
own tokenizer class in place and break the vocabulary without a word (transformers 5.10).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from verl_agentic.bridge.codec import TokenizerCodec, check_append_only
from verl_agentic.demo.lexicon import SPECIAL_TOKENS, plain_words, tags

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|> {{ message['role'] }} {{ message['content'] or '' }} <|im_end|> "
    "{% endfor %}{% if add_generation_prompt %}<|im_start|> assistant {% endif %}"
)
NEWLINE = "\n"


def vocabulary() -> list[str]:
    """All tokens in the order of their ids: special tokens, newline, tags, words."""
    return [*SPECIAL_TOKENS, NEWLINE, *tags(), *plain_words()]


def build_tokenizer(max_length: int = 1024) -> Any:
    """The tokenizer (PreTrainedTokenizerFast); ids follow `vocabulary()`; decoding joins tokens with one space."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate(vocabulary())}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    backend.add_tokens([AddedToken(token, normalized=False) for token in (NEWLINE, *tags())])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<|im_end|>",
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def check_round_trip(tokenizer: Any, texts: Iterable[str]) -> None:
    """Raise ValueError unless every text survives encode and decode (texts hold single spaces between words)."""
    for text in texts:
        back = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=False)
        if back != text:
            raise ValueError(
                f"the tokenizer turns {text!r} into {back!r}: a word is missing from the closed vocabulary or the "
                "tokenizer was loaded as another class; load it with a llama-type model and known words only."
            )


def save_tokenizer(folder: Path) -> Any:
    """Build, check and save the tokenizer to `folder`, then load it back as a trainer would, and check that too."""
    from transformers import AutoTokenizer

    words = [word for word in vocabulary() if word not in SPECIAL_TOKENS]
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder)
    loaded = AutoTokenizer.from_pretrained(folder)
    for candidate in (tokenizer, loaded):
        check_round_trip(candidate, [" ".join(words)])
        check_append_only(TokenizerCodec(candidate))
    return loaded
