"""Text to token ids and back, the same way in rollout, cold start and evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any


class TokenizerCodec:
    """A Hugging Face tokenizer with the few operations that the turn engine needs.

    Args:
        tokenizer: any `PreTrainedTokenizerBase` with a chat template.
        chat_template_kwargs: passed to `apply_chat_template` (verl: `data.apply_chat_template_kwargs`).
    """

    def __init__(self, tokenizer: Any, chat_template_kwargs: dict[str, Any] | None = None):
        self.tokenizer = tokenizer
        self.chat_template_kwargs = dict(chat_template_kwargs or {})

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, no special token added."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens shown."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Ids of a conversation up to and including the generation prompt."""
        return self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False, **self.chat_template_kwargs
        )

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a turn."""
        eos = self.tokenizer.eos_token_id
        return frozenset() if eos is None else frozenset([eos])

    def single_ids(self, texts: Sequence[str]) -> list[int]:
        """Ids of those of `texts` that are one token of their own."""
        encoded = [self.encode(text) for text in texts]
        return [ids[0] for text, ids in zip(texts, encoded, strict=True) if len(ids) == 1 and self.decode(ids) == text]


def check_append_only(codec: TokenizerCodec) -> None:
    """Refuse a chat template whose rendering of a longer conversation changes the tokens of a shorter one.

    Such a template would make the trained tokens differ from the sampled ones.

    Raises:
        ValueError: the generation prompt is not a prefix of the same conversation with the answer in it, or decoding
            an encoded text does not give it back.
    """
    question, reply = {"role": "user", "content": "a b"}, {"role": "assistant", "content": "<answer> a </answer>"}
    prompt = codec.chat([question])
    whole = codec.tokenizer.apply_chat_template(
        [question, reply], add_generation_prompt=False, tokenize=True, return_dict=False, **codec.chat_template_kwargs
    )
    if list(whole[: len(prompt)]) != list(prompt):
        raise ValueError(
            "the model's chat template is not append-only: its generation prompt is not a prefix of the answered "
            "conversation, so trained tokens would differ from sampled ones; choose another model or set "
            "actor_rollout_ref.model.custom_chat_template (or data.apply_chat_template_kwargs) to one that only appends"
        )
