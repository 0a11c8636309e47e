"""Supervised training of a policy on traces: transformers' Trainer, loss on the policy's tokens only."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from verl_agentic import __version__
from verl_agentic.data.files import replacing
from verl_agentic.warm_start.trace_file import TraceFile, TraceRow, fingerprint, read_traces

RECORD = "sft.json"
RECORD_FORMAT = 1
IGNORED = -100  # the label of a token without loss
DEVICES = ("auto", "cpu", "cuda")
Line = Callable[[str], None]


@dataclass(frozen=True)
class FineTuning:
    """How a policy is trained.

    Args:
        epochs: times that every row is seen; a fraction is allowed.
        learning_rate: the peak; it falls linearly to 0 after 3 percent of the steps.
        batch: rows an optimizer step.
        micro_batch: rows at a time on the device; None: the batch.
        max_length: rows with more tokens are left out and counted; None: none is.
        seed: of the order of rows (and of dropout).
        device: auto (a GPU where there is one), cpu or cuda.
    """

    epochs: float = 3.0
    learning_rate: float = 1e-5
    batch: int = 16
    micro_batch: int | None = None
    max_length: int | None = None
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        if not (self.epochs > 0 and self.learning_rate > 0 and self.batch > 0):
            raise ValueError(
                f"--epochs, --learning-rate and --batch must be above 0, got {self.epochs:g}, {self.learning_rate:g} "
                f"and {self.batch}."
            )
        if self.micro_batch is not None and (self.micro_batch < 1 or self.batch % self.micro_batch):
            raise ValueError(f"--batch {self.batch} must be a multiple of --micro-batch, got {self.micro_batch}.")
        if self.max_length is not None and self.max_length < 1:
            raise ValueError(f"--max-length must be at least 1, got {self.max_length}.")
        if self.device not in DEVICES:
            raise ValueError(f"--device must be one of {', '.join(DEVICES)}, got {self.device!r}.")


def fine_tune(traces: Path, model: str, out: Path, settings: FineTuning, line: Line = print) -> dict[str, Any]:
    """Train `model` (a Hugging Face folder or name) on a file of traces; returns the content of sft.json.

    `out` becomes a Hugging Face folder with model, tokenizer and sft.json, whole or not at all.

    Raises:
        ValueError: the traces, the model or `out` do not fit, in one sentence.
        RuntimeError: the loss is not finite; nothing is written.
    """
    found = read_traces(traces)
    _require_ours(out)
    on_gpu = takes_gpu(settings.device)
    stored, tokenizer = load_parts(model)
    if (ours := fingerprint(tokenizer)) != found.header["tokenizer"]:
        raise ValueError(
            f"{traces} was written with another tokenizer ({found.header['tokenizer']}) than that of {model} ({ours}); "
            "write traces with this model's tokenizer, or train the model that they were written for."
        )
    rows = [row for trace in found.traces for row in trace.rows]
    chosen = [row for row in rows if settings.max_length is None or row.length <= settings.max_length]
    _require_fit(chosen, stored, traces, model)
    policy = load_weights(model)
    trained = _counts(chosen)["trained_tokens"]
    line(f"sft: {len(chosen)} rows of {len(found.traces)} sessions, {trained} tokens with a loss")
    started = time.monotonic()
    losses = _train(policy, tokenizer, chosen, settings, on_gpu, line)
    origin = {"model": str(model), "traces": _origin(traces, found)}
    counts = {"sessions": len(found.traces), "rows_left_out": len(rows) - len(chosen), **_counts(chosen)}
    record = _record(origin, counts, losses, settings, time.monotonic() - started)
    save_policy(out, policy.to(device="cpu", dtype=stored.dtype or policy.dtype), tokenizer, record)
    line(f"sft: loss {losses[0]:.4f} -> {losses[-1]:.4f}, {record['train_seconds']:.0f} s -> {out}")
    return record


def load_parts(model: str) -> tuple[Any, Any]:
    """Configuration and tokenizer; ValueError where they cannot be loaded."""
    from transformers import AutoConfig, AutoTokenizer

    try:
        return AutoConfig.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ValueError(f"--model {model} cannot be loaded: {' '.join(str(error).split())}") from error


def load_weights(model: str) -> Any:
    """The model in float32; ValueError where it cannot be loaded."""
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(f"--model {model} cannot be loaded: {' '.join(str(error).split())}") from error


def takes_gpu(device: str) -> bool:
    """Whether a GPU is used; ValueError where one is asked for and there is none."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: this machine has no CUDA device; use cpu or auto.")
    return device != "cpu" and torch.cuda.is_available()


def save_policy(out: Path, policy: Any, tokenizer: Any, record: Mapping[str, Any]) -> None:
    """Write model, tokenizer and sft.json; `out` is replaced when all of them are there."""
    with replacing(out) as partial:
        partial.mkdir()
        policy.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        (partial / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def example(row: TraceRow) -> dict[str, list[int]]:
    """Token ids and labels of a row, of equal length; only the policy's tokens have a label of their own."""
    masked = zip(row.response_ids, row.response_mask, strict=True)
    labels = [IGNORED] * len(row.prompt_ids) + [token if mask else IGNORED for token, mask in masked]
    ids = [*row.prompt_ids, *row.response_ids]
    return {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": labels}


def _train(
    policy: Any, tokenizer: Any, rows: Sequence[TraceRow], settings: FineTuning, on_gpu: bool, line: Line
) -> list[float]:
    """Train; returns the mean loss of each twentieth of the run."""
    from transformers import DataCollatorForSeq2Seq, PrinterCallback, Trainer

    with TemporaryDirectory(prefix="sft-") as scratch:
        trainer = Trainer(
            model=policy,
            args=_arguments(scratch, len(rows), settings, on_gpu),
            train_dataset=[example(row) for row in rows],
            data_collator=DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=IGNORED),
            callbacks=[_reporter(line)],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    if not all(map(math.isfinite, losses)):
        raise RuntimeError(f"the loss became {losses[-1]} and nothing was written; lower --learning-rate.")
    return losses


def _arguments(scratch: str, count: int, settings: FineTuning, on_gpu: bool) -> Any:
    from transformers import TrainingArguments

    micro = settings.micro_batch or settings.batch
    steps = max(1, math.ceil(math.ceil(count / settings.batch) * settings.epochs))
    return TrainingArguments(
        output_dir=scratch,
        max_steps=steps,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=settings.batch // micro,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=math.ceil(0.03 * steps),
        bf16=on_gpu,
        use_cpu=not on_gpu,
        dataloader_pin_memory=on_gpu,
        logging_steps=max(1, steps // 20),
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        seed=settings.seed,
    )


def _reporter(line: Line) -> Any:
    """A callback that shows each logged loss."""
    from transformers import TrainerCallback

    class Reporter(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if logs and "loss" in logs:
                line(f"sft {state.global_step}/{state.max_steps}: loss {logs['loss']:.4f}")

    return Reporter()


def _counts(rows: Sequence[TraceRow]) -> dict[str, int]:
    trained = sum(sum(row.response_mask) for row in rows)
    return {"rows": len(rows), "tokens": sum(row.length for row in rows), "trained_tokens": trained}


def _record(
    origin: Mapping[str, Any], counts: Mapping[str, int], losses: list[float], settings: FineTuning, seconds: float
) -> dict[str, Any]:
    """The content of sft.json."""
    return {
        "format": RECORD_FORMAT,
        **origin,
        "settings": asdict(settings),
        "counts": dict(counts),
        "losses": [round(loss, 4) for loss in losses],
        "train_seconds": round(seconds, 1),
        "versions": {"verl_agentic": __version__, **{name: version(name) for name in ("transformers", "torch")}},
    }


def _origin(path: Path, found: TraceFile) -> dict[str, Any]:
    kept = ("method", "recipe", "source", "tokenizer")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"file": str(path), "sha256": digest, **{name: found.header[name] for name in kept}}


def _require_fit(rows: Sequence[TraceRow], config: Any, traces: Path, model: str) -> None:
    if not rows:
        raise ValueError(f"every row of {traces} is longer than --max-length; raise it.")
    longest, positions = max(row.length for row in rows), getattr(config, "max_position_embeddings", None)
    if positions is not None and longest > positions:
        raise ValueError(
            f"a row of {traces} has {longest} tokens and {model} has {positions} positions; leave long rows out with "
            f"--max-length {positions}, or choose a model with more positions."
        )
    highest = max(max(row.prompt_ids + row.response_ids) for row in rows)
    if highest >= config.vocab_size:
        raise ValueError(f"{traces} holds the token {highest} and {model} knows {config.vocab_size}; write it again.")


def _require_ours(out: Path) -> None:
    """A folder is replaced only where this command wrote it."""
    if out.exists() and not (out / RECORD).is_file() and not (out.is_dir() and not any(out.iterdir())):
        raise ValueError(f"--out {out} exists and was not written by this command; choose another folder.")
