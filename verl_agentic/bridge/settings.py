"""Our part of the configuration, the single top-level key `agentic`, read and checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from verl_agentic.core.budget import Budget
from verl_agentic.core.suggest import did_you_mean


@dataclass(frozen=True)
class RetrieverSettings:
    """Where and how the retriever is asked; the fields of `agentic.retriever`."""

    urls: tuple[str, ...]
    topk: int
    timeout_s: float
    deadline_s: float
    retries: int
    min_queries_per_s: float
    check_concurrent: int


@dataclass(frozen=True)
class JudgeSettings:
    """Who judges; the fields of `agentic.judge`."""

    scorer: str
    urls: tuple[str, ...]
    model: str
    prompts: str | None
    timeout_s: float
    deadline_s: float
    retries: int
    concurrency: int
    cache_size: int
    field_chars: int
    temperature: float
    top_p: float
    max_tokens: int
    on_missing: str
    max_missing_share: float
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Settings:
    """The fields of `agentic` less `credit` and `selection`, with the token limits that verl's own configuration sets.

    Those two are the trainer's (`training_rules.TrainerSettings`).
    """

    method: str
    prompts: str
    seed: int
    assert_tokens: bool
    preflight: bool
    demo_dir: str
    retriever: RetrieverSettings
    budget: Budget
    actions_off: tuple[str, ...]
    forgery_ends: bool
    environment: Mapping[str, Any]
    reward: Mapping[str, Any]
    judge: JudgeSettings


def default_agentic(method: str) -> DictConfig:
    """The defaults of `recipes/agentic` for a method, as Hydra would compose them.

    A method of the user's own may have no file there; it gets the common defaults.
    """
    folder = resources.files("recipes") / "agentic"
    merged = OmegaConf.create((folder / "base.yaml").read_text(encoding="utf-8"))
    own = folder / f"{method}.yaml"
    if own.is_file():
        merged = OmegaConf.merge(merged, OmegaConf.create(own.read_text(encoding="utf-8")))
    merged.pop("defaults", None)
    merged.method = method
    return merged


def default_environment(method: str) -> dict[str, Any]:
    """The defaults of `agentic.environment` for a method."""
    knobs = OmegaConf.to_container(default_agentic(method).environment, resolve=True)
    assert isinstance(knobs, dict)
    return {str(name): value for name, value in knobs.items()}


def load_settings(config: DictConfig, method: str | None = None) -> Settings:
    """Read `config.agentic`, or a method's defaults where a stock verl configuration has no such key.

    Args:
        config: verl's whole configuration.
        method: the method that reads them, where it is known (an agent loop knows its own).

    Raises:
        ValueError: an unknown key (nearest name suggested), a missing or wrong value.
    """
    agentic = config.get("agentic")
    chosen = None if agentic is None else agentic.get("method")
    name = method or chosen
    if name is None:
        raise ValueError("agentic.method is not set: choose a recipe, or give +agentic.method=NAME")
    if chosen is not None and chosen.rsplit(".", 1)[-1] != name.rsplit(".", 1)[-1]:
        raise ValueError(
            f"the agent loop {name!r} was asked for (agent_name of a data row, or rollout.agent.default_agent_loop) "
            f"but agentic.method is {chosen!r}; name the same method in both, or leave agent_name out of the data"
        )
    return _build(completed(agentic, name), config)


def completed(agentic: DictConfig | None, method: str) -> DictConfig:
    """What a configuration gives under `agentic`, if anything, over the defaults of a method.

    Raises:
        ValueError: an unknown key (nearest name suggested) or a value of another type.
    """
    defaults = default_agentic(method)
    if agentic is None:
        return defaults
    check_keys(agentic, defaults)
    # Under a root of its own, so that a value may refer to another by its full name (`${agentic.demo_dir}`).
    return OmegaConf.create({"agentic": OmegaConf.merge(defaults, agentic)}).agentic


def check_keys(given: Any, known: Any, path: str = "agentic") -> None:
    """Refuse keys that the defaults do not have, and values of another type; a node whose default is empty is open.

    Raises:
        ValueError: naming the key and the nearest known one, or the value and the type that is due.
    """
    if not isinstance(known, DictConfig):
        if not _same_type(given, known):
            due = "a text or null" if known is None else f"like {known!r}"
            raise ValueError(f"{path} must be {due}, got {given!r}")
        return
    if not isinstance(given, DictConfig):
        raise ValueError(f"{path} must hold the keys {sorted(map(str, known))}, got {given!r}")
    for key in given if known else ():
        if key not in known:
            raise ValueError(f"unknown key {path}.{key}{did_you_mean(str(key), map(str, known))}")
        if not OmegaConf.is_missing(given, key) and not OmegaConf.is_missing(known, key):
            check_keys(given[key], known[key], f"{path}.{key}")


def _same_type(given: Any, known: Any) -> bool:
    """Whether a value may stand for a default: a whole number for a fraction, a text for a list of them or for null."""
    if known is None:
        return given is None or isinstance(given, str)
    if isinstance(known, bool) or isinstance(given, bool):
        return isinstance(known, bool) and isinstance(given, bool)
    if isinstance(known, ListConfig):
        return isinstance(given, (ListConfig, str))
    return isinstance(given, (int, float) if isinstance(known, float) else type(known))


def _build(agentic: DictConfig, config: DictConfig) -> Settings:
    plain = OmegaConf.to_container(agentic, resolve=True, throw_on_missing=True)
    assert isinstance(plain, dict)
    retriever, judge = plain.pop("retriever"), plain.pop("judge")
    for servers in (retriever, judge):
        urls = servers["urls"]
        servers["urls"] = (urls,) if isinstance(urls, str) else tuple(map(str, urls))
    if not retriever["urls"]:
        raise ValueError("agentic.retriever.urls is empty; give at least one retriever server")
    rollout = config.actor_rollout_ref.rollout
    budget = Budget(**plain.pop("budget"), prompt_tokens=rollout.prompt_length, response_tokens=rollout.response_length)
    for trainers in ("credit", "selection"):
        plain.pop(trainers)
    parts: dict[str, Any] = {
        "judge": JudgeSettings(**judge),
        "actions_off": tuple(plain.pop("actions_off")),
    }
    return Settings(**plain, **parts, retriever=RetrieverSettings(**retriever), budget=budget)
