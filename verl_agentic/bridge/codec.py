"""Text to token ids and back, the same way in rollout, cold start and evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

END_OF_TURN = frozenset({"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>", "</s>"})


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
        return self._render(messages, generation_prompt=True)

    def encode_untrusted(self, text: str) -> list[int]:
        """Ids of a text from outside, in which the spelling of a special token is plain text."""
        return self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a turn: the tokenizer's, the template's, and the usual ones that the vocabulary has.

        A model may end its turn by another one than `tokenizer.eos_token_id`: the chat template of a base model closes
        messages with a token that its tokenizer does not call its end, and generation settings often name several.
        """
        special = dict(zip(self.tokenizer.all_special_tokens, self.tokenizer.all_special_ids, strict=True))
        added = {token.content: i for i, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        usual = {i for text, i in {**special, **added}.items() if text in END_OF_TURN}
        return frozenset(usual | {i for i in (self.tokenizer.eos_token_id,) if i is not None})

    def next_user_turn(self, text: str) -> list[int]:
        """Ids that follow the end-of-turn token of the policy when the user says `text`, generation prompt included.

        What the template writes between the end-of-turn token and the next message (a newline, in ChatML) is part of
        it, so that the whole is what rendering the longer conversation would give.

        Raises:
            ValueError: the template is not append-only.
        """
        conversation = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        answered = self._render(conversation, generation_prompt=False)
        longer = self._render([*conversation, {"role": "user", "content": text}], generation_prompt=True)
        ends = [i for i, token in enumerate(answered) if token in self.eos_ids]
        if not ends or longer[: len(answered)] != answered:
            raise ValueError("the chat template is not append-only, or closes a message without an end-of-turn token")
        return longer[ends[-1] + 1 :]

    def _render(self, messages: list[dict[str, str]], generation_prompt: bool) -> list[int]:
        return list(
            self.tokenizer.apply_chat_template(
                messages,
                add_generation_prompt=generation_prompt,
                tokenize=True,
                return_dict=False,
                **self.chat_template_kwargs,
            )
        )

    def single_ids(self, texts: Sequence[str]) -> list[int]:
        """Ids of those of `texts` that are one token of their own."""
        encoded = [self.encode(text) for text in texts]
        return [ids[0] for text, ids in zip(texts, encoded, strict=True) if len(ids) == 1 and self.decode(ids) == text]


def check_append_only(codec: TokenizerCodec) -> None:
    """Refuse a chat template whose rendering of a longer conversation changes the tokens of a shorter one.

    Such a template would make the trained tokens differ from the sampled ones.

    Raises:
        ValueError: the generation prompt is not a prefix of the same conversation with the answer in it, or that not of
            the one with a further message.
    """
    question, reply = {"role": "user", "content": "a b"}, {"role": "assistant", "content": "<answer> a </answer>"}
    again = {"role": "user", "content": "b a"}
    prompt = codec.chat([question])
    answered = codec._render([question, reply], generation_prompt=False)
    longer = codec._render([question, reply, again], generation_prompt=True)
    if answered[: len(prompt)] != prompt or longer[: len(answered)] != answered:
        raise ValueError(
            "the model's chat template is not append-only: its generation prompt is not a prefix of the answered "
            "conversation, so trained tokens would differ from sampled ones; choose another model or set "
            "actor_rollout_ref.model.custom_chat_template (or data.apply_chat_template_kwargs) to one that only appends"
        )
