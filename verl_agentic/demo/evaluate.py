"""Evaluation of a demo checkpoint without a trainer: exact match, F1, format and searches by kind of question."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_agentic.bridge.codec import TokenizerCodec
from verl_agentic.bridge.turn_engine import Sample
from verl_agentic.core.answers import exact_match, f1_score
from verl_agentic.core.environment import Environment, Search
from verl_agentic.core.items import question_and_golds
from verl_agentic.core.seeds import request_seed
from verl_agentic.core.trajectory import Episode
from verl_agentic.demo.questions import HEADLINE_MIX
from verl_agentic.demo.traces import MethodRunner


@dataclass(frozen=True)
class Asked:
    """A question to evaluate on: its text, gold answers and kind."""

    text: str
    answers: tuple[str, ...]
    kind: str


@dataclass(frozen=True)
class Figures:
    """Means over `count` questions: exact match, F1 and format (episode ended well) in [0, 1], searches a question."""

    count: int
    em: float
    f1: float
    format: float
    searches: float


def asked_from_rows(rows: Sequence[dict[str, Any]]) -> list[Asked]:
    """The questions of data rows (see verl_agentic.data.rows); rows without a kind are of kind "qa".

    Raises ValueError for a row without a question or gold answer.
    """
    parts = [(*question_and_golds(row), row["extra_info"].get("kind", "qa")) for row in rows]
    return [Asked(question, tuple(golds), kind) for question, golds, kind in parts]


def evaluate(
    folder: Path,
    questions: Sequence[Asked],
    search: Search,
    method: str = "search_r1",
    temperature: float = 0.0,
    seed: int = 0,
    actions_off: Sequence[str] = (),
    environment: Mapping[str, Any] | None = None,
    memory: Path | None = None,
) -> dict[str, Figures]:
    """Figures by kind, and for "headline" (the kinds of the headline mix together) where there are any.

    Args:
        environment: knobs of `agentic.environment` that differ from the demo's.
        memory: a file with what the method keeps from question to question; the questions are then asked one after the
            other, and the file is written after each. None: every question starts with nothing.

    Raises ValueError when `folder` is not a whole Hugging Face folder, or a knob or the memory does not fit.
    """
    told = (method, temperature, seed, actions_off, environment, memory)
    episodes = run_episodes(folder, questions, search, *told)
    groups: dict[str, list[tuple[Asked, Episode]]] = defaultdict(list)
    for asked, episode in zip(questions, episodes, strict=True):
        groups[asked.kind].append((asked, episode))
        if asked.kind in HEADLINE_MIX:
            groups["headline"].append((asked, episode))
    return {kind: figures(pairs) for kind, pairs in sorted(groups.items())}


def run_episodes(
    folder: Path,
    questions: Sequence[Asked],
    search: Search,
    method: str = "search_r1",
    temperature: float = 0.0,
    seed: int = 0,
    actions_off: Sequence[str] = (),
    environment: Mapping[str, Any] | None = None,
    memory: Path | None = None,
) -> list[Episode]:
    """The episode of each question; arguments and errors as of `evaluate`."""
    from verl_agentic.cpu.engine import Engine

    model, tokenizer = _load(folder)
    runner = MethodRunner(method, TokenizerCodec(tokenizer), actions_off, environment)
    if memory is not None:
        runner.resumed_environment(search, memory)  # refused before the first question where it does not fit
    asking = _Asking(Engine(model, tokenizer), runner, search, temperature, seed)
    return asyncio.run(asking.all(questions) if memory is None else asking.in_turn(questions, memory))


def figures(pairs: Sequence[tuple[Asked, Episode]]) -> Figures:
    """Means over at least one pair of question and episode."""

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    return Figures(
        count=len(pairs),
        em=mean([exact_match(episode.prediction or "", asked.answers) for asked, episode in pairs]),
        f1=mean([f1_score(episode.prediction or "", asked.answers) for asked, episode in pairs]),
        format=mean([float(episode.outcome.kind == "ok") for _, episode in pairs]),
        searches=mean([float(len(episode.passages)) for _, episode in pairs]),
    )


@dataclass(frozen=True)
class _Asking:
    """Asks questions of one policy; its engine is closed afterwards."""

    engine: Any
    runner: MethodRunner
    search: Search
    temperature: float
    seed: int

    async def all(self, questions: Sequence[Asked]) -> list[Episode]:
        """All questions at a time."""
        try:
            runs = (self._ask(i, q, self.runner.environment(self.search)) for i, q in enumerate(questions))
            return await asyncio.gather(*runs)
        finally:
            self.engine.close()

    async def in_turn(self, questions: Sequence[Asked], memory: Path) -> list[Episode]:
        """One question after the other, each with what the earlier ones have kept."""
        episodes = []
        try:
            for index, question in enumerate(questions):
                environment = self.runner.resumed_environment(self.search, memory)
                episodes.append(await self._ask(index, question, environment))
                environment.keep(memory)
            return episodes
        finally:
            self.engine.close()

    async def _ask(self, index: int, question: Asked, environment: Environment) -> Episode:
        turn = 0

        async def sample(prompt_ids: list[int], params: dict[str, Any]) -> Sample:
            nonlocal turn
            turn += 1
            number = request_seed(self.seed, 0, str(index), 0, turn)
            settings = {**params, "temperature": self.temperature, "seed": number}
            out = await self.engine.generate(prompt_ids, settings)
            return Sample(out.token_ids, out.log_probs, out.finish_reason)

        return await self.runner.engine.run(question.text, sample, environment)


def _load(folder: Path) -> tuple[Any, Any]:
    """Model in float32 and tokenizer of a Hugging Face folder."""
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not (folder / "config.json").is_file():
        raise ValueError(
            f"checkpoint {folder} is no Hugging Face folder (config.json is missing); give one such as "
            "runs/demo/cold_start/search_r1."
        )
    if not any(folder.glob("*.safetensors")):
        raise ValueError(
            f"checkpoint {folder} holds no weights (*.safetensors); let the trainer write them with "
            "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]."
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), tokenizer
    except (OSError, ValueError, SafetensorError) as error:
        fault = " ".join(str(error).split())
        raise ValueError(f"checkpoint {folder} cannot be loaded ({fault}); write or copy it again.") from error
