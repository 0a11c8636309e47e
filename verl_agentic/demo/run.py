"""The whole demo: world, index, server, cold start, reinforcement learning by verl's own command, evaluation.

The trainer is not called from here: the printed command is run as a user would type it, and the figures are read from
the log that it writes.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from retriever_server.backends.bm25 import BM25Settings
from retriever_server.corpus import file_sha256
from retriever_server.errors import IndexRefused
from retriever_server.index import open_index
from retriever_server.process import start_server
from verl_agentic.data.files import replacing
from verl_agentic.data.rows import read_rows
from verl_agentic.demo.cold_start import named
from verl_agentic.demo.prepare import PrepareConfig, prepare, prepare_data
from verl_agentic.demo.recipe import WARM_START, cold_start_of, compose_recipe, judge_of, warm_start_of
from verl_agentic.demo.summary import HEADLINE, LONG, summarize, table
from verl_agentic.demo.warm_start import prepare_warm_start
from verl_agentic.report.curves import draw, search_agent_panels
from verl_agentic.report.metrics import read_log
from verl_agentic.report.page import write_page

RECIPE = "search_r1_cpu"
PASSED = "verl-agentic: preflight passed"
KINDS = (*HEADLINE, *LONG)
# The vectors that methods with a memory ask for; passages are ranked by BM25 alone.
SERVER_OPTIONS = ("--embedder", "hashing")
Line = Callable[[str], None]


@dataclass(frozen=True)
class RunConfig:
    """What `python -m verl_agentic.demo run` is told.

    Args:
        prepare: what the demo's files are made from; they are written under `prepare.out`.
        steps: RL steps of 16 prompts x 8 rollouts.
        seed: seed of the data order and of the rollout's requests.
        started: when the clock of `total_seconds` began (seconds since the epoch).
        overrides: further Hydra overrides for the trainer.
        recipe: a recipe for the CPU.
        folder: what the run itself writes goes here; None: beside the demo's files.
    """

    prepare: PrepareConfig
    steps: int
    seed: int
    started: float
    overrides: tuple[str, ...] = ()
    recipe: str = RECIPE
    folder: Path | None = None

    @property
    def data(self) -> Path:
        """Folder of the world, its questions and its cold starts."""
        return self.prepare.out

    @property
    def out(self) -> Path:
        """Folder of what the run writes."""
        return self.folder or self.prepare.out


def run(config: RunConfig, line: Line = print) -> Path:
    """Run the demo; returns the path of summary.json.

    Raises:
        ValueError, RuntimeError, RetrieverServerError: a part failed, in one sentence.
    """
    line("[1/5] world, questions and cold start")
    composed = compose_run(config)
    prepare_start(config, composed, line)
    line("[2/5] retriever index")
    index = build_index(config.data, line)
    line("[3/5] retriever server")
    with start_server(index, log_path=config.out / "retriever.log", options=SERVER_OPTIONS) as server:
        line(f"serving {index} at {server.url}")
        line("[4/5] reinforcement learning")
        seconds = train(config, server.url, line)
    line("[5/5] figures")
    return report(config, composed, seconds, line)


def compose_run(config: RunConfig) -> DictConfig:
    """What the run's command composes to.

    Raises:
        ValueError: the recipe or an override does not fit.
    """
    command = training_command(config, "http://127.0.0.1:PORT")
    return compose_recipe(config.recipe, command[command.index(f"+recipe={config.recipe}") + 1 :])


def prepare_start(config: RunConfig, composed: DictConfig, line: Line) -> None:
    """World, questions, and the checkpoint that the recipe starts from where it is the demo's: cold or warm start."""
    warm = warm_start_of(composed)
    name = warm or cold_start_of(composed)
    if name is None:
        prepare_data(config.prepare, line)
        return
    method, off = named(name)
    start = prepare(replace(config.prepare, method=method, actions_off=off), line)
    if warm:
        prepare_warm_start(start, config.data / WARM_START / warm, config.recipe, composed, line=line)


def build_index(out: Path, line: Line) -> Path:
    """The BM25 index of the demo's corpus, kept while it is whole and of this corpus.

    Raises RuntimeError when it cannot be built, CorpusError when there is no corpus.
    """
    index, corpus = out / "index", out / "corpus.jsonl"
    if _is_index_of(index, corpus):
        line(f"index: unchanged in {index}")
        return index
    command = [sys.executable, "-m", "retriever_server", "build", "--corpus", str(corpus)]
    done = subprocess.run(
        [*command, "--encoder", "bm25", "--out", str(index), "--force"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the index could not be built: {done.stderr.strip().splitlines()[-1]}")
    line(done.stdout.strip())
    return index


def _is_index_of(index: Path, corpus: Path) -> bool:
    try:
        manifest = open_index(index)[1]
    except IndexRefused:
        return False
    return manifest.corpus_sha256 == file_sha256(corpus) and manifest.settings == asdict(BM25Settings())


def training_command(config: RunConfig, url: str) -> list[str]:
    """verl's own command with our recipe, as a user would type it."""
    return [
        *("python", "-m", "verl.trainer.main_ppo", f"+recipe={config.recipe}"),
        f"agentic.demo_dir={config.data}",
        f"agentic.retriever.urls=[{url}]",
        f"agentic.seed={config.seed}",
        f"data.seed={config.seed}",
        f"trainer.total_training_steps={config.steps}",
        f"trainer.save_freq={config.steps}",
        f"trainer.default_local_dir={config.out / 'checkpoints'}",
        "trainer.logger=[console,file]",
        *config.overrides,
    ]


def train(config: RunConfig, url: str, line: Line) -> float:
    """Run the trainer to its end and show its progress; returns the seconds it took.

    Raises:
        RuntimeError: the trainer ended with an error.
    """
    log, metrics = config.out / "train.log", config.out / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    command = training_command(config, url)
    line("$ " + shlex.join(command))
    line(f"start-up takes one to two minutes; the full log is {log}")
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "VERL_FILE_LOGGER_PATH": str(metrics.resolve()),
        "PYTHONUNBUFFERED": "1",
    }
    started = time.time()
    with open(log, "w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [sys.executable, *command[1:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
            stdin=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        for text in process.stdout:
            file.write(text)
            progress(text, config.steps, line)
    if process.wait():
        raise RuntimeError(f"the trainer ended with status {process.returncode}; its last words: {_last_error(log)}")
    return time.time() - started


def progress(text: str, steps: int, line: Line) -> None:
    """Show a line of the trainer's log that tells a newcomer something."""
    if "verl-agentic:" in text:
        line(text.strip())
    if "Initial validation metrics" in text:
        line("validation before training is done")
    if (found := re.search(r"\bstep:(\d+) - (.*)", text)) is None:
        return
    values = dict(re.findall(r"(\S+?):(?:np\.\w+\()?(-?[\d.]+(?:e-?\d+)?)", found.group(2)))
    shown = {"agentic/em": "EM {:.2f}", "agentic/searches": "searches {:.2f}", "timing_s/step": "{:.1f} s"}
    parts = [form.format(float(values[name])) for name, form in shown.items() if name in values]
    if parts:
        line(f"step {found.group(1)}/{steps}  " + "  ".join(parts))


def _last_error(log: Path) -> str:
    """The last error of the log, or the sentence with which the checks before the run refused it."""
    text = log.read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines()]
    errors = [line for line in lines if "Error" in line]
    refusals = [] if PASSED in text else [line for line in lines if line.startswith("verl-agentic: ")]
    return [f"see {log}", *refusals, *errors][-1][:300]


def validated_counts(composed: DictConfig) -> dict[str, int]:
    """How many questions of each kind a run validates."""
    kinds = [row["extra_info"]["kind"] for path in composed.data.val_files for row in read_rows(Path(path))]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds), key=KINDS.index)}


def write_summary(config: RunConfig, found: Mapping[str, Any], judge: str | None) -> dict[str, Any]:
    """Write summary.json: what was found in a run's log, and which run it was; returns its content."""
    summary = {**found, "recipe": config.recipe, "seed": config.seed, "judge": judge}
    with replacing(config.out / "summary.json") as partial:
        partial.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return summary


def report(config: RunConfig, composed: DictConfig, rl_seconds: float, line: Line) -> Path:
    """Write summary.json, curves.png and report.html; print the table and where to look next."""
    out = config.out
    log, counts = read_log(out / "metrics.jsonl"), validated_counts(composed)
    found = summarize(log, counts, rl_seconds, time.time() - config.started)
    summary = write_summary(config, found, judge_of(composed))
    panels = search_agent_panels(log, {kind: f"demo_{kind}" for kind in counts})
    draw(panels, out / "curves.png", f"{config.recipe}, seed {config.seed}", columns=2)
    text = table(summary)
    command = shlex.join(training_command(config, "http://127.0.0.1:PORT"))
    write_page(out / "report.html", "verl-agentic demo", command, text, out / "curves.png", summary)
    line("")
    line(text)
    line("(headline: 1hop, 2hop and comparison; other kinds are reported apart)")
    if summary["judge"]:
        line(f"judge of the process rewards: {summary['judge']}")
    line(
        f"\n{summary['steps']} RL steps in {rl_seconds:.0f} s, start-up and validation included; "
        f"{summary['total_seconds']:.0f} s in all; {summary['infra_faults']} infrastructure faults; "
        f"{summary['tokens_compared']} trained tokens compared with the sampled ones; {agreement(summary)}"
    )
    line(f"Look next: {out / 'curves.png'}, {out / 'report.html'}, {out / 'summary.json'}, {out / 'train.log'}")
    return out / "summary.json"


def agreement(summary: Mapping[str, Any]) -> str:
    """How far rollout and training differ, in words; apart for edited and unedited sessions where some were edited."""
    largest = _scientific(summary["largest_log_prob_difference"])
    parts = [f"{_scientific(value)} in {kind} sessions" for kind, value in summary["log_prob_differences"].items()]
    inner = f" ({', '.join(parts)})" if parts else ""
    return f"largest difference between rollout and training log-probability {largest}{inner}"


def _scientific(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.1e}"
