"""Making the demo's files: world, corpus, question files, tokenizer and cold start; unchanged parts are skipped."""

from __future__ import annotations

import filecmp
import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from verl_agentic.core.question import Question
from verl_agentic.data.corpus import corpus_record, write_corpus
from verl_agentic.data.files import replacing
from verl_agentic.data.rows import question_row, write_rows
from verl_agentic.demo.cold_start import RECORD, ColdStartConfig, cached_cold_start
from verl_agentic.demo.fingerprint import code_hash
from verl_agentic.demo.questions import shared_intermediates
from verl_agentic.demo.splits import SPLITS, SplitSizes, split_questions
from verl_agentic.demo.world import World, WorldSizes, generate_world

DATA_SOURCE = "demo"
STAMP = "prepared.json"
DATA_FILES = ("world.json", "corpus.jsonl", *(f"{name}.parquet" for name in SPLITS))
DATA_CODE = (
    *(f"verl_agentic/demo/{name}.py" for name in ("lexicon", "world", "questions", "splits", "prepare")),
    "verl_agentic/data/*.py",
    "verl_agentic/core/question.py",
)
Line = Callable[[str], None]


@dataclass(frozen=True)
class PrepareConfig:
    """What fixes the files of a demo.

    actions_off: actions that the method's policy lacks.
    cold_start: "packaged" copies the checkpoint that ships with the package, "build" trains it (about three minutes).
    cold_start_steps: training steps of "build".
    """

    out: Path
    method: str = "search_r1"
    actions_off: tuple[str, ...] = ()
    seed: int = 0
    world: WorldSizes = field(default_factory=WorldSizes)
    splits: SplitSizes = field(default_factory=SplitSizes)
    cold_start: str = "build"
    cold_start_steps: int = ColdStartConfig.steps

    def __post_init__(self) -> None:
        if self.cold_start not in ("build", "packaged"):
            raise ValueError(f"cold start must be 'build' or 'packaged', not {self.cold_start!r}.")


def prepare(config: PrepareConfig, line: Line = print) -> Path:
    """Make everything under `config.out`; returns the folder of the cold start.

    Files: world.json, corpus.jsonl, {train,val,test,test_3hop,...}.parquet, cold_start/NAME (a Hugging Face folder).
    """
    prepare_data(config, line)
    return prepare_cold_start(config, line)


def prepare_data(config: PrepareConfig, line: Line = print) -> None:
    """Write world, corpus and question files, unless the same ones are there already."""
    config.out.mkdir(parents=True, exist_ok=True)
    stamp = config.out / STAMP
    if stamp.is_file() and stamp.read_text(encoding="utf-8", errors="replace") == _stamp(config):
        line(f"world and questions: unchanged in {config.out}")
        return
    world = generate_world(config.seed, config.world)
    stamp.unlink(missing_ok=True)  # it must never stand beside files that it does not describe
    splits = split_questions(world, config.splits)
    count = write_world(config.out, world)
    line(f"world: seed {config.seed}, {count} passages -> {config.out / 'corpus.jsonl'}")
    for name, questions in splits.items():
        write_split(config.out / f"{name}.parquet", name, questions)
        shared = len(shared_intermediates(questions))
        line(f"questions: {name:10s} {len(questions):5d} rows, {shared} bridge entities shared by several questions")
    stamp.write_text(_stamp(config), encoding="utf-8")


def write_world(folder: Path, world: World) -> int:
    """Write world.json (seed, sizes, entities, facts) and corpus.jsonl; returns the number of passages.

    The demo's corpus shows the bare passage as `contents`: a quoted title would bring words outside the vocabulary.
    """
    facts = [[entity, relation, value] for (entity, relation), value in world.facts.items()]
    record = {"seed": world.seed, "sizes": asdict(world.sizes), "entities": world.entities, "facts": facts}
    with replacing(folder / "world.json") as partial:
        partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    rows = (corpus_record(p.id, p.title, p.contents, contents=p.contents) for p in world.passages)
    return write_corpus(folder / "corpus.jsonl", rows)


def write_split(path: Path, name: str, questions: tuple[Question, ...]) -> None:
    """Write one question file; rows keep their order, `extra_info.index` counts them from 0."""
    rows = (
        question_row(question, index=index, split=name, data_source=f"{DATA_SOURCE}_{question.kind}")
        for index, question in enumerate(questions)
    )
    write_rows(path, rows)


def prepare_cold_start(config: PrepareConfig, line: Line = print) -> Path:
    """The folder of the method's cold start under `config.out`, copied from the package or trained."""
    start = ColdStartConfig(method=config.method, steps=config.cold_start_steps, actions_off=config.actions_off)
    target = config.out / "cold_start" / start.name
    if config.cold_start == "packaged":
        source = packaged_cold_start(start.name)
    else:
        source = cached_cold_start(start, config.out / "cache", line)
    names = [path.name for path in source.iterdir()]
    if filecmp.cmpfiles(source, target, names, shallow=False)[0] == names:
        line(f"cold start: unchanged in {target}")
        return target
    with replacing(target) as partial:
        shutil.copytree(source, partial)
    line(f"cold start: {source} -> {target}")
    return target


def packaged_cold_start(name: str) -> Path:
    """The checkpoint by this name (`ColdStartConfig.name`) that ships with the package; ValueError where none does."""
    folder = Path(__file__).parent / "checkpoints" / name
    if not (folder / RECORD).is_file():
        raise ValueError(f"no packaged cold start {name!r}: train one with --cold-start build.")
    return folder


def _stamp(config: PrepareConfig) -> str:
    """What the data files depend on (options, and the code that makes them), and the hash of each as it is now."""
    options = {"seed": config.seed, "world": asdict(config.world), "splits": asdict(config.splits)}
    files = {name: _file_hash(config.out / name) for name in DATA_FILES}
    return json.dumps({**options, "code": code_hash(DATA_CODE), "files": files}, indent=1) + "\n"


def _file_hash(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
