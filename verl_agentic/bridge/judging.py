"""The judge of a run: made from the recipe's settings, and asked about one session."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from verl_agentic.bridge.judge_prompts import load_judge_prompts
from verl_agentic.bridge.settings import JudgeSettings, Settings
from verl_agentic.core.judging import Judge, Judgement, Missing
from verl_agentic.core.method import Method
from verl_agentic.core.outcomes import InfraFaultError
from verl_agentic.core.trajectory import Episode

NONE, ENDPOINT = "none", "endpoint"
ON_MISSING = ("skip", "group", "fail")
# What the numbers of an endpoint must be.
RANGES: Mapping[str, tuple[str, Callable[[float], bool]]] = {
    "timeout_s": ("above 0", lambda value: value > 0),
    "deadline_s": ("above 0", lambda value: value > 0),
    "retries": ("at least 0", lambda value: value >= 0),
    "concurrency": ("at least 1", lambda value: value >= 1),
    "cache_size": ("at least 0", lambda value: value >= 0),
    "field_chars": ("at least 1", lambda value: value >= 1),
    "temperature": ("at least 0", lambda value: value >= 0),
    "top_p": ("above 0 and at most 1", lambda value: 0 < value <= 1),
    "max_tokens": ("at least 1", lambda value: value >= 1),
}


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
            "endpoint or module:Class of a scorer, or choose a recipe without these process rewards"
        )
    return _endpoint(judge, method, kinds) if judge.scorer == ENDPOINT else _scorer(judge)


def _endpoint(judge: JudgeSettings, method: Method, kinds: Sequence[str]) -> Judge:
    """A model behind a chat endpoint, with a prompt for each of `kinds`."""
    # not above: cachetools is a package of the extras [train] and [judge]
    from verl_agentic.clients.chat import ChatClient
    from verl_agentic.clients.judge import JudgeClient

    for key in ("urls", "model"):
        if not getattr(judge, key):
            raise ValueError(f"agentic.judge.scorer is endpoint and agentic.judge.{key} is empty; set it")
    for key, (due, holds) in RANGES.items():
        if not holds(getattr(judge, key)):
            raise ValueError(f"agentic.judge.{key} must be {due}, got {getattr(judge, key)}")
    prompts = load_judge_prompts(method, judge.prompts, kinds)
    calls = {key: getattr(judge, key) for key in ("timeout_s", "deadline_s", "retries", "concurrency")}
    try:
        chat = ChatClient(judge.urls, judge.model, **calls)
    except ValueError as error:
        raise ValueError(f"agentic.judge.urls: {error}") from error
    asking = {key: getattr(judge, key) for key in ("cache_size", "field_chars", "temperature", "top_p", "max_tokens")}
    return JudgeClient(chat, prompts, **asking)


def _scorer(judge: JudgeSettings) -> Judge:
    """A scorer of the user's, given the options as they are."""
    module, _, name = judge.scorer.partition(":")
    try:
        make = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"agentic.judge.scorer={judge.scorer!r} cannot be imported ({error}); write none, endpoint or module:Class"
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
