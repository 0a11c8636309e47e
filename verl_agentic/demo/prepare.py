"""Making the demo's files: world, corpus, question files, tokenizer and cold start; unchanged parts are skipped."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from verl_agentic.core.question import Question
from verl_agentic.data.corpus import corpus_record, write_corpus
from verl_agentic.data.rows import question_row, write_rows
from verl_agentic.demo.cold_start import RECORD, ColdStartConfig, cached_cold_start
from verl_agentic.demo.questions import shared_intermediates
from verl_agentic.demo.splits import SplitSizes, split_questions
from verl_agentic.demo.world import World, WorldSizes, generate_world

DATA_SOURCE = "demo"
STAMP = "prepared.json"
DATA_CODE = ("lexicon.py", "world.py", "questions.py", "splits.py", "prepare.py")
Line = Callable[[str], None]


@dataclass(frozen=True)
class PrepareConfig:
    """What fixes the files of a demo.

    cold_start: "packaged" copies the checkpoint that ships with the package, "build" trains it (about three minutes).
    cold_start_steps: training steps of "build".
    """

    out: Path
    method: str = "search_r1"
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

    Files: world.json, corpus.jsonl, {train,val,test,test_3hop,...}.parquet, cold_start/METHOD (a Hugging Face folder).
    """
    prepare_data(config, line)
    return prepare_cold_start(config, line)


def prepare_data(config: PrepareConfig, line: Line = print) -> None:
    """Write world, corpus and question files, unless the same ones are there already."""
    config.out.mkdir(parents=True, exist_ok=True)
    stamp_path, stamp = config.out / STAMP, _stamp(config)
    if stamp_path.is_file() and stamp_path.read_text(encoding="utf-8") == stamp:
        line(f"world and questions: unchanged in {config.out}")
        return
    world = generate_world(config.seed, config.world)
    splits = split_questions(world, config.splits)
    count = write_world(config.out, world)
    line(f"world: seed {config.seed}, {count} passages -> {config.out / 'corpus.jsonl'}")
    for name, questions in splits.items():
        write_split(config.out / f"{name}.parquet", name, questions)
        shared = len(shared_intermediates(questions))
        line(f"questions: {name:10s} {len(questions):5d} rows, {shared} bridge entities shared by several questions")
    stamp_path.write_text(stamp, encoding="utf-8")


def write_world(folder: Path, world: World) -> int:
    """Write world.json (seed, sizes, entities, facts) and corpus.jsonl; returns the number of passages.

    The demo's corpus shows the bare passage as `contents`: a quoted title would bring words outside the vocabulary.
    """
    facts = [[entity, relation, value] for (entity, relation), value in world.facts.items()]
    record = {"seed": world.seed, "sizes": asdict(world.sizes), "entities": world.entities, "facts": facts}
    (folder / "world.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
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
    target = config.out / "cold_start" / config.method
    if config.cold_start == "packaged":
        source = packaged_cold_start(config.method)
    else:
        start = ColdStartConfig(method=config.method, steps=config.cold_start_steps)
        source = cached_cold_start(start, config.out / "cache", line)
    record = target / RECORD
    if record.is_file() and record.read_bytes() == (source / RECORD).read_bytes():
        line(f"cold start: unchanged in {target}")
        return target
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    line(f"cold start: {source} -> {target}")
    return target


def packaged_cold_start(method: str) -> Path:
    """The checkpoint of a method that ships with the package; ValueError where none does."""
    folder = Path(__file__).parent / "checkpoints" / method
    if not (folder / RECORD).is_file():
        raise ValueError(f"no packaged cold start for method {method!r}: train one with --cold-start build.")
    return folder


def _stamp(config: PrepareConfig) -> str:
    """What the data files depend on: options and the code that makes them."""
    code = hashlib.sha256()
    for name in DATA_CODE:
        code.update((Path(__file__).parent / name).read_bytes())
    options = {"seed": config.seed, "world": asdict(config.world)}
    return json.dumps({**options, "splits": asdict(config.splits), "code": code.hexdigest()}, indent=1) + "\n"
