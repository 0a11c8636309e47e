"""The demo's warm start: the oracle's good habits, taught to a cold start before reinforcement learning."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from verl_agentic.demo.cold_start import code_of, named
from verl_agentic.demo.fingerprint import code_hash
from verl_agentic.warm_start.fine_tuning import FineTuning, fine_tune
from verl_agentic.warm_start.oracle_traces import collect_from_oracle
from verl_agentic.warm_start.workplace import make_workplace

STAMP = "warm_start.json"
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", STAMP)
CODE = "verl_agentic/warm_start/*.py"
Line = Callable[[str], None]


@dataclass(frozen=True)
class WarmStartConfig:
    """What fixes a warm start beside recipe and cold start: the oracle's sessions, and the training on them."""

    sessions: int = 480
    seed: int = 0
    training: FineTuning = field(default_factory=lambda: FineTuning(learning_rate=5e-4, batch=24, device="cpu"))


def prepare_warm_start(
    start: Path,
    target: Path,
    recipe: str,
    composed: DictConfig,
    config: WarmStartConfig | None = None,
    line: Line = print,
) -> Path:
    """The folder of a warm start; made anew only where what it depends on has changed, which a recipe's name does not.

    Args:
        start: the cold start that is trained on.
        target: the folder; the traces lie beside it.
        recipe, composed: whose method, prompts and budget the traces have.
        config: how much is taught.

    Raises:
        ValueError: the method has no oracle.
    """
    config = config or WarmStartConfig()
    place = make_workplace(composed, str(start))
    stamp = _stamp(start, config, place.told)
    if all((target / name).is_file() for name in FILES) and (target / STAMP).read_text(encoding="utf-8") == stamp:
        line(f"warm start: unchanged in {target}")
        return target
    traces = target.with_name(f"{target.name}.traces.jsonl")
    for old in traces.parent.glob(f"{traces.name}*"):
        old.unlink()
    collect_from_oracle(place, recipe, traces, config.sessions, config.seed, line=line)
    fine_tune(traces, str(start), target, config.training, line)
    (target / STAMP).write_text(stamp, encoding="utf-8")
    return target


def _stamp(start: Path, config: WarmStartConfig, told: dict[str, Any]) -> str:
    """What a warm start depends on: options, the code that makes it, and the weights that it starts from."""
    weights = hashlib.sha256((start / "model.safetensors").read_bytes()).hexdigest()
    method, _ = named(start.name)
    code = code_hash((*code_of(method), CODE))
    return json.dumps({"config": asdict(config), "told": told, "start": weights, "code": code}, indent=1) + "\n"
