"""Rows of a verl data set: the schema, the writer to parquet, and the reader that names what is wrong.

A row: data_source str, prompt [{"role": "user", "content": question}], ability "qa", agent_name (optional: the agent
loop of this row where the recipe names none), reward_model {"style": "rule", "ground_truth": {"target": [gold
aliases]}}, extra_info {"index", "split", "question", "kind", ...}. The agent loop wraps extra_info.question in its
method's prompt pack.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from verl_agentic.core.question import Question
from verl_agentic.data.files import replacing

Row = dict[str, Any]


class RowError(ValueError):
    """A data row that cannot be trained on; the message is one sentence with file, row and field."""


def make_row(
    question: str,
    answers: Sequence[str],
    *,
    index: int,
    split: str,
    data_source: str,
    agent_name: str | None = None,
    kind: str = "qa",
    extra: Mapping[str, Any] | None = None,
) -> Row:
    """One row. `extra` joins extra_info; every row of a file must have the same extra keys.

    agent_name: leave it out of rows that any method may be trained on; verl puts it before the recipe's choice, and a
    recipe of another method then refuses to run.
    """
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": question}],
        "ability": "qa",
        **({"agent_name": agent_name} if agent_name else {}),
        "reward_model": {"style": "rule", "ground_truth": {"target": list(answers)}},
        "extra_info": {"index": index, "split": split, "question": question, "kind": kind, **(extra or {})},
    }


def question_row(question: Question, *, index: int, split: str, data_source: str, agent_name: str | None = None) -> Row:
    """The row of a question with a known solution; gold passages and decomposition go into extra_info."""
    extra = {
        "id": question.id,
        "gold_passages": list(question.passage_ids),
        "decomposition": [{**asdict(step), "depends": list(step.depends)} for step in question.steps],
    }
    return make_row(
        question.text,
        question.answers,
        index=index,
        split=split,
        data_source=data_source,
        agent_name=agent_name,
        kind=question.kind,
        extra=extra,
    )


def write_rows(path: Path, rows: Iterable[Row]) -> int:
    """Validate and write rows to a parquet file; returns their number.

    Raises RowError, then no file is written: a bad row, a row whose fields are not those of row 1 (parquet would drop
    them, or fill the gaps with nulls), or values that parquet cannot hold.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    checked = [validate_row(row, number, path) for number, row in enumerate(rows, start=1)]
    if not checked:
        raise RowError(f"{path} would hold no row; give at least one.")
    _require_same_fields(checked, path)
    try:
        with replacing(path) as partial:
            pq.write_table(pa.Table.from_pylist(checked), partial)
    except pa.ArrowException as error:
        fault = str(error).splitlines()[0]
        raise RowError(f"{path} cannot hold these rows ({fault}); give every field values of one type.") from error
    return len(checked)


def _require_same_fields(rows: Sequence[Row], path: Path) -> None:
    first = _fields(rows[0])
    for number, row in enumerate(rows, start=1):
        if odd := _fields(row) ^ first:
            field = min(odd)
            what = "is missing, but row 1 has it" if field in first else "is not in row 1"
            raise RowError(f"row {number} of {path}: field {field} {what}; give every row of a file the same fields.")


def _fields(row: Mapping[str, Any], parent: str = "") -> set[str]:
    """Dotted paths of all fields of a row, those of nested mappings (but not of lists) included."""
    nested = (_fields(value, f"{parent}{key}.") for key, value in row.items() if isinstance(value, Mapping))
    return {f"{parent}{key}" for key in row}.union(*nested)


def read_rows(path: Path) -> list[Row]:
    """All rows of a parquet file, validated. Raises RowError on a missing or unreadable file, no rows, or a bad row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.ParquetFile(path).read().to_pylist()
    except FileNotFoundError:
        raise RowError(f"data file {path} does not exist; check data.train_files and data.val_files.") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise RowError(f"data file {path} is not a readable parquet file: {str(error).splitlines()[0]}") from error
    if not rows:
        raise RowError(f"data file {path} holds no rows; write it again with at least one.")
    return [validate_row(row, number, path) for number, row in enumerate(rows, start=1)]


def validate_row(row: Row, number: int, path: Path | str) -> Row:
    """The row itself if it is fit for training and scoring.

    number: its place in the file, counted from 1. Raises RowError naming file, row and field.
    """
    problem = next(_problems(row), None)
    if problem is not None:
        field, what, remedy = problem
        raise RowError(f"row {number} of {path}: field {field} {what}; {remedy}.")
    return row


def _problems(row: Row) -> Iterator[tuple[str, str, str]]:
    """Yield (field, what is wrong, what to do) for each fault of a row, in the order of the schema."""
    yield from _text_problem(row, "data_source", "name the data set")
    if "agent_name" in row:
        yield from _text_problem(row, "agent_name", "name a method, or leave the column out")
    messages = row.get("prompt")
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        yield "prompt", _fault(messages), 'give a list like [{"role": "user", "content": question}]'
    elif not all(isinstance(m, Mapping) and _is_text(m.get("role")) and _is_text(m.get("content")) for m in messages):
        yield "prompt", "holds a message without role or content", "give both as non-empty strings"
    target = _at(row, "reward_model.ground_truth.target")
    if not isinstance(target, Sequence) or isinstance(target, str) or not target:
        yield "reward_model.ground_truth.target", _fault(target), "give a list with at least one gold answer"
    elif not all(_is_text(answer) for answer in target):
        yield "reward_model.ground_truth.target", "holds a blank gold answer", "remove it or write the answer"
    index = _at(row, "extra_info.index")
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        yield "extra_info.index", _fault(index), "number the rows from 0 with whole numbers"
    yield from _text_problem(row, "extra_info.split", "give a non-empty string")
    for field in ("question", "kind"):
        if field in (row.get("extra_info") or {}):
            yield from _text_problem(row, f"extra_info.{field}", "give a non-empty string, or leave it out")


def _text_problem(row: Row, field: str, remedy: str) -> Iterator[tuple[str, str, str]]:
    value = _at(row, field)
    if not _is_text(value):
        yield field, _fault(value), remedy


def _at(row: Row, field: str) -> Any:
    """The value at a dotted path, None where any part of it is missing."""
    value: Any = row
    for name in field.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _fault(value: Any) -> str:
    if value is None:
        return "is missing"
    if isinstance(value, Sequence) and not (value.strip() if isinstance(value, str) else value):
        return "is empty"
    return f"has the wrong type ({type(value).__name__}: {str(value)[:40]!r})"
