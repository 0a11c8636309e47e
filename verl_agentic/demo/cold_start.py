"""Cold start: supervised training of the tiny policy on oracle episodes, loss on the policy's tokens only.

Every group of batches comes from a fresh random world, so the policy must learn to search and copy; it cannot memorise.
The start is engineered: the oracle shows a hasty habit on purpose (see the method's oracle), so that reinforcement
learning afterwards has something to mend.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from verl_agentic.core.trajectory import Row
from verl_agentic.data.files import replacing
from verl_agentic.demo.codec import WordCodec
from verl_agentic.demo.evaluate import Asked, evaluate
from verl_agentic.demo.fingerprint import code_hash
from verl_agentic.demo.oracles import load_oracle
from verl_agentic.demo.policy import PolicyShape, build_policy, parameter_count
from verl_agentic.demo.search import CorpusSearch
from verl_agentic.demo.splits import SplitSizes, split_questions
from verl_agentic.demo.tokenizer import save_tokenizer
from verl_agentic.demo.traces import DEMO_PACK, HabitMix, TraceSource, trace_source
from verl_agentic.demo.world import generate_world

RECORD = "cold_start.json"
CHECKPOINT_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", RECORD)
REBUILD = (
    "python -m verl_agentic.demo cold-start --method {method}{off} --seed {seed} --steps {steps} --batch {batch} "
    "--out FOLDER"
)
WITHOUT = "-without-"
BATCHES_PER_WORLD = 4
SIDE_SHARE = 1 / 3  # of what is written beside sessions: it repeats their contexts, and is the easiest to learn
HELD_OUT_WORLD = 1
HELD_OUT_SIZES = SplitSizes(train=0, val=0, test=100, long_train=0, long_test=40, shared_train=0, shared_test=40)
COLD_START_KINDS = {"1hop": 0.35, "2hop": 0.35, "comparison": 0.3}  # comparing is the slowest to learn
TEST_SPLITS = ("test", "test_3hop", "test_4hop", "test_shared")
COLD_START_CODE = (
    *(f"verl_agentic/demo/{name}.py" for name in ("lexicon", "world", "questions", "search", "tokenizer", "codec")),
    *(f"verl_agentic/demo/{name}.py" for name in ("policy", "traces", "oracles", "cold_start")),
    *(f"verl_agentic/bridge/{name}.py" for name in ("turn_engine", "text_sampler", "prompts", "codec", "settings")),
    "verl_agentic/core/*.py",
    *(f"retriever_server/{name}.py" for name in ("text", "backends/base", "backends/bm25")),
    *(f"retriever_server/encoders/{name}.py" for name in ("catalogue", "hashing", "opening", "record")),
    "verl_agentic/methods/__init__.py",
)


@dataclass(frozen=True)
class ColdStartConfig:
    """What fixes a cold start.

    batch: sessions a step. learning_rate falls linearly after `warm_up` steps. kinds: share of each kind of question.
    Where kinds or mix is None it is the oracle's own: `COLD_START_KINDS` (else this module's) and `HASTY_MIX`.
    actions_off: actions that the policy lacks.
    """

    method: str = "search_r1"
    seed: int = 0
    steps: int = 1400
    batch: int = 24
    learning_rate: float = 3e-3
    warm_up: int = 50
    weight_decay: float = 0.01
    clip: float = 1.0
    kinds: dict[str, float] | None = None
    mix: HabitMix | None = None
    actions_off: tuple[str, ...] = ()
    shape: PolicyShape = field(default_factory=PolicyShape)

    @property
    def name(self) -> str:
        """The method, and the actions that the policy lacks; `named` reads it."""
        return self.method + (WITHOUT + "-".join(self.actions_off) if self.actions_off else "")

    def key(self) -> str:
        """Hash of the configuration and of the code that the result depends on."""
        load_oracle(self.method)  # names the methods there are
        parts = json.dumps(asdict(self), sort_keys=True) + code_hash(code_of(self.method))
        return hashlib.sha256(parts.encode()).hexdigest()[:16]


def named(name: str) -> tuple[str, tuple[str, ...]]:
    """Method and actions off of a cold start's name."""
    method, _, off = name.partition(WITHOUT)
    return method, tuple(off.split("-")) if off else ()


def code_of(method: str) -> tuple[str, ...]:
    """Patterns of the source files that a method's cold start depends on (see verl_agentic.demo.fingerprint)."""
    folder = f"verl_agentic/methods/{method}"
    return (*COLD_START_CODE, f"{folder}/*.py", f"{folder}/prompts/{DEMO_PACK}/*.txt")


def kinds_of(method: str) -> dict[str, float]:
    """Share of each kind of question in a method's cold start."""
    return dict(getattr(load_oracle(method), "COLD_START_KINDS", COLD_START_KINDS))


Line = Callable[[str], None]


def train_cold_start(config: ColdStartConfig, folder: Path, line: Line = print) -> dict[str, Any]:
    """Train a cold start and write model, tokenizer and cold_start.json to `folder`; returns the json's content."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # one thread is fastest at this size, and makes sums come out in one order
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer = save_tokenizer(folder)
        model = build_policy(tokenizer, config.shape, config.seed)
        source = trace_source(
            config.method,
            WordCodec(tokenizer),
            config.kinds or kinds_of(config.method),
            mix=config.mix,
            actions_off=config.actions_off,
        )
        started = time.monotonic()
        losses = _fit(model, source, config, line)
        seconds = time.monotonic() - started
        model.save_pretrained(folder)
        record = {**_record(config, model, losses, seconds), "held_out": _held_out(config, folder)}
        (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        return record
    finally:
        torch.set_num_threads(threads)


def cached_cold_start(config: ColdStartConfig, cache: Path, line: Line = print) -> Path:
    """The folder of a cold start under `cache`, trained only if none with the same configuration and code is there."""
    folder = cache / f"{config.name}-{config.key()}"
    if all((folder / name).is_file() for name in CHECKPOINT_FILES):
        line(f"cold start of {config.name}: unchanged, taken from {folder}")
    else:
        with replacing(folder) as partial:
            train_cold_start(config, partial, line)
    return folder


def _record(config: ColdStartConfig, model: Any, losses: list[float], seconds: float) -> dict[str, Any]:
    off = "".join(f" --actions-off {name}" for name in config.actions_off)
    told = {"method": config.method, "seed": config.seed, "steps": config.steps, "batch": config.batch}
    rebuild = REBUILD.format(off=off, **told)
    return {
        "rebuild": rebuild,
        "engineered": "trained on oracle episodes with a hasty habit, on purpose; see the method's oracle.py",
        "config": {**asdict(config), "kinds": config.kinds or kinds_of(config.method)},
        "habits": config.mix if config.mix is not None else getattr(load_oracle(config.method), "HASTY_MIX", None),
        "key": config.key(),
        "parameters": parameter_count(model),
        "train_seconds": round(seconds, 1),
        "losses": [round(loss, 4) for loss in losses],
    }


def _held_out(config: ColdStartConfig, folder: Path) -> dict[str, dict[str, float]]:
    """Greedy figures of a checkpoint by kind, on questions of a world that no training has seen."""
    world = generate_world(HELD_OUT_WORLD)
    kinds, splits = config.kinds or kinds_of(config.method), split_questions(world, HELD_OUT_SIZES)
    questions = [question for name in TEST_SPLITS for question in splits[name] if question.kind in kinds]
    asked = [Asked(question.text, question.answers, question.kind) for question in questions]
    found = evaluate(folder, asked, CorpusSearch(world.passages), config.method, actions_off=config.actions_off)
    return {kind: {name: round(value, 4) for name, value in asdict(figures).items()} for kind, figures in found.items()}


def _fit(model: Any, source: TraceSource, config: ColdStartConfig, line: Line) -> list[float]:
    """Run the training; returns the mean loss of each twentieth of the run."""
    import torch

    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=config.weight_decay
    )
    every, recent, means = max(1, config.steps // 20), [], []
    model.train()
    started, tokens = time.monotonic(), 0
    for step, rows in enumerate(_batches(source, config), start=1):
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * _rate(step, config)
        loss = policy_loss(model, rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        recent.append(loss.item())
        tokens += sum(len(row.prompt_ids) + len(row.response_ids) for row in rows)
        if step % every == 0 or step == config.steps:
            means.append(sum(recent) / len(recent))
            recent, seconds = [], time.monotonic() - started
            speed = tokens / seconds
            line(f"cold start {step}/{config.steps}: loss {means[-1]:.4f}, {seconds:.0f} s, {speed:.0f} tokens/s")
    return means


def _rate(step: int, config: ColdStartConfig) -> float:
    """Share of the peak learning rate at a step: linear warm-up, then linear decay to a fiftieth."""
    return min(1.0, step / max(1, config.warm_up)) * max(0.02, 1 - step / config.steps)


def _batches(source: TraceSource, config: ColdStartConfig) -> Iterator[list[Row]]:
    """One batch a step: as many rows as `config.batch` sessions have, of like length, from one fresh world."""
    rng, made = random.Random(f"batches {config.seed}"), 0
    while made < config.steps:
        episodes = source.episodes(f"{config.seed} {made}", config.batch * BATCHES_PER_WORLD)
        written = [row for episode in episodes for row in episode.rows]
        written += [row for episode in episodes for row in episode.side_rows if rng.random() < SIDE_SHARE]
        rows = sorted(written, key=lambda row: len(row.response_ids))
        size = max(1, len(rows) // BATCHES_PER_WORLD)
        groups = [rows[i : i + size] for i in range(0, len(rows), size)]
        rng.shuffle(groups)
        for group in groups[: config.steps - made]:
            made += 1
            yield group


def policy_loss(model: Any, rows: list[Row]) -> Any:
    """Mean cross-entropy of the policy's tokens of `rows` (observations and prompts carry none); a scalar tensor."""
    import torch

    width = max(len(row.prompt_ids) + len(row.response_ids) for row in rows)
    ids, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width, dtype=torch.bool)
    for number, row in enumerate(rows):
        start, end = len(row.prompt_ids), len(row.prompt_ids) + len(row.response_ids)
        ids[number, :end] = torch.tensor(row.prompt_ids + row.response_ids)
        mask[number, start:end] = torch.tensor(row.response_mask, dtype=torch.bool)
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    chosen = mask[:, 1:]
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[chosen]), ids[:, 1:][chosen])
