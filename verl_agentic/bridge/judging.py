"""The judge of a run: made from the recipe's settings, and asked about one session."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from verl_agentic.bridge.settings import JudgeSettings, Settings
from verl_agentic.core.judging import Judge, Judgement, Missing
from verl_agentic.core.method import Method
from verl_agentic.core.outcomes import InfraFaultError
from verl_agentic.core.trajectory import Episode

NONE = "none"
ON_MISSING = ("skip", "group", "fail")


def make_judge(settings: Settings, method: Method) -> Judge | None:
    """The judge that `agentic.judge` names, or None where the method's knobs ask for no verdict.

    Raises:
        ValueError: a judge is needed and none is configured, or it cannot be made.
    """
    kinds = method.judged_kinds(settings.reward)
    if not kinds:
        return None
    judge = settings.judge
    if judge.on_missing not in ON_MISSING:
        raise ValueError(f"agentic.judge.on_missing must be one of {list(ON_MISSING)}, got {judge.on_missing!r}")
    if judge.scorer == NONE:
        raise ValueError(
            f"the reward asks a judge for {', '.join(kinds)} and agentic.judge.scorer is none: set it to "
            "module:Class of a scorer, or choose a recipe without these process rewards"
        )
    return _scorer(judge)


def _scorer(judge: JudgeSettings) -> Judge:
    """A scorer of the user's, given the options as they are."""
    module, _, name = judge.scorer.partition(":")
    try:
        make = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"agentic.judge.scorer={judge.scorer!r} cannot be imported ({error}); write none or module:Class"
        ) from error
    return make(**judge.options)


async def judgements(
    judge: Judge | None, method: Method, episode: Episode, golds: Sequence[str], settings: Settings
) -> Sequence[Judgement]:
    """What the judge says of an episode.

    Raises:
        InfraFaultError: a judgement is missing, and `agentic.judge.on_missing` is not `skip`.
    """
    if judge is None:
        return ()
    answers = await judge(method.asks(episode, golds, settings.reward))
    missing = [answer.reason for answer in answers if isinstance(answer, Missing)]
    if missing and settings.judge.on_missing == "group":
        raise InfraFaultError("judge", f"{len(missing)} of {len(answers)} judgements are missing ({missing[0]})")
    if missing and settings.judge.on_missing == "fail":
        raise RuntimeError(f"{len(missing)} of {len(answers)} judgements are missing ({missing[0]})")
    return answers


def judge_metrics(answers: Sequence[Judgement]) -> Mapping[str, Any]:
    """How many judgements a session asked for, and how many of them are missing."""
    missing = sum(isinstance(answer, Missing) for answer in answers)
    return {"judge/asked": float(len(answers)), "judge/missing": float(missing)}
