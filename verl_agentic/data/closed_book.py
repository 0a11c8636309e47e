"""A model that answers from memory alone: who can say what a question needs no retrieval for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from verl_agentic.clients.chat import ChatClient
from verl_agentic.core.seeds import request_seed

INSTRUCTION = "Answer the question from memory. Write the answer alone, in as few words as possible.\nQuestion: {}"


@dataclass(frozen=True)
class Attempts:
    """How a question is asked.

    Args:
        count: attempts a question, at least 1.
        temperature: 0 is greedy, and then one attempt is all there is.
        max_tokens: longest reply.
        seed: of a local model's sampling.
    """

    count: int
    temperature: float
    max_tokens: int
    seed: int

    def __post_init__(self) -> None:
        if self.count < 1 or self.max_tokens < 1 or not 0 <= self.temperature < float("inf"):
            raise ValueError(
                f"--attempts and --max-tokens must be at least 1 and --temperature 0 or more, got {self.count}, "
                f"{self.max_tokens} and {self.temperature:g}."
            )
        if self.count > 1 and not self.temperature:
            raise ValueError(f"--attempts {self.count} at --temperature 0 are the same reply; set one of the two.")


class ClosedBook(Protocol):
    """Answers questions without a retriever."""

    async def replies(self, questions: Sequence[str]) -> list[list[str]]:
        """The replies to each question, one an attempt."""
        ...

    async def aclose(self) -> None:
        """Close what is open."""
        ...


class EndpointModel:
    """A model behind an OpenAI-compatible endpoint; its attempts differ only where it samples.

    Args:
        url: the path up to `/v1`.
        model: its name there.
        attempts: how a question is asked.
        concurrency: requests at a time.
        api_key_variable: the variable of the environment that holds the key, if the server wants one.
    """

    def __init__(self, url: str, model: str, attempts: Attempts, concurrency: int, api_key_variable: str):
        self._attempts = attempts
        self._chat = ChatClient(
            [url],
            model,
            timeout_s=60.0,
            deadline_s=300.0,
            retries=4,
            concurrency=concurrency,
            api_key_variable=api_key_variable,
        )

    async def replies(self, questions: Sequence[str]) -> list[list[str]]:
        """Raises ChatError where the endpoint fails."""
        count = self._attempts.count
        asked = [self._ask(question) for question in questions for _ in range(count)]
        said = await asyncio.gather(*asked)
        return [said[i * count : (i + 1) * count] for i in range(len(questions))]

    async def aclose(self) -> None:
        await self._chat.aclose()

    async def _ask(self, question: str) -> str:
        messages = [{"role": "user", "content": INSTRUCTION.format(question)}]
        told = self._attempts
        return await self._chat.complete(messages, temperature=told.temperature, top_p=1.0, max_tokens=told.max_tokens)


class LocalModel:
    """A Hugging Face folder on this machine; one batch at a time.

    Args:
        folder: model and tokenizer.
        attempts: how a question is asked.

    Raises:
        ValueError: the folder cannot be loaded.
    """

    def __init__(self, folder: Path, attempts: Attempts):
        self._attempts = attempts
        self._model, self._tokenizer = _load(folder)
        self._turn = asyncio.Lock()

    async def replies(self, questions: Sequence[str]) -> list[list[str]]:
        async with self._turn:
            return await asyncio.to_thread(self._generate, list(questions))

    async def aclose(self) -> None:
        """Nothing is open."""

    def _generate(self, questions: list[str]) -> list[list[str]]:
        import torch

        told, count = self._attempts, self._attempts.count
        texts = [self._prompt(question) for question in questions]
        batch = self._tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        sampling = {"do_sample": True, "temperature": told.temperature} if told.temperature else {"do_sample": False}
        with torch.random.fork_rng(), torch.inference_mode():
            torch.manual_seed(request_seed(told.seed, 0, "\n".join(questions), 0, 0))
            made = self._model.generate(
                input_ids=batch["input_ids"].to(self._model.device),
                attention_mask=batch["attention_mask"].to(self._model.device),
                max_new_tokens=told.max_tokens,
                num_return_sequences=count,
                pad_token_id=self._tokenizer.pad_token_id,
                **sampling,
            )
        replies = self._tokenizer.batch_decode(made[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        return [replies[i * count : (i + 1) * count] for i in range(len(questions))]

    def _prompt(self, question: str) -> str:
        text = INSTRUCTION.format(question)
        if not self._tokenizer.chat_template:
            return f"{text}\nAnswer:"
        messages = [{"role": "user", "content": text}]
        return self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def _load(folder: Path) -> tuple[Any, Any]:
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not (folder / "config.json").is_file():
        raise ValueError(
            f"--closed-book {folder} is neither none, nor an address, nor a Hugging Face folder with a config.json."
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(f"--closed-book {folder} cannot be loaded: {' '.join(str(error).split())}") from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval(), tokenizer
