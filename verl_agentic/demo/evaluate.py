"""Evaluation of a demo checkpoint without a trainer: exact match, F1, format and searches by kind of question."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_agentic.bridge.codec import TokenizerCodec
from verl_agentic.bridge.turn_engine import Sample
from verl_agentic.core.answers import exact_match, f1_score
from verl_agentic.core.environment import Search
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
) -> dict[str, Figures]:
    """Figures by kind, and for "headline" (the kinds of the headline mix together) where there are any.

    Raises ValueError when `folder` is not a whole Hugging Face folder.
    """
    episodes = asyncio.run(_run(folder, questions, search, (method, actions_off), temperature, seed))
    groups: dict[str, list[tuple[Asked, Episode]]] = defaultdict(list)
    for asked, episode in zip(questions, episodes, strict=True):
        groups[asked.kind].append((asked, episode))
        if asked.kind in HEADLINE_MIX:
            groups["headline"].append((asked, episode))
    return {kind: figures(pairs) for kind, pairs in sorted(groups.items())}


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


async def _run(
    folder: Path,
    questions: Sequence[Asked],
    search: Search,
    method: tuple[str, Sequence[str]],
    temperature: float,
    seed: int,
) -> list[Episode]:
    from verl_agentic.cpu.engine import Engine

    model, tokenizer = _load(folder)
    engine = Engine(model, tokenizer)
    name, actions_off = method
    runner = MethodRunner(name, TokenizerCodec(tokenizer), actions_off)

    def sampler(index: int) -> Any:
        turn = 0

        async def sample(prompt_ids: list[int], params: dict[str, Any]) -> Sample:
            nonlocal turn
            turn += 1
            settings = {**params, "temperature": temperature, "seed": request_seed(seed, 0, str(index), 0, turn)}
            out = await engine.generate(prompt_ids, settings)
            return Sample(out.token_ids, out.log_probs, out.finish_reason)

        return sample

    try:
        runs = (runner.engine.run(q.text, sampler(i), runner.environment(search)) for i, q in enumerate(questions))
        return await asyncio.gather(*runs)
    finally:
        engine.close()


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
