"""Writing a retrieval corpus: JSON lines with id, title, text and contents."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from verl_agentic.data.files import replacing


def corpus_record(identifier: str, title: str, text: str, contents: str | None = None) -> dict[str, str]:
    """One corpus row. `contents` is what is indexed and shown; by custom the quoted title, a newline and the text."""
    usual = f'"{title}"\n{text}'
    return {"id": identifier, "title": title, "text": text, "contents": usual if contents is None else contents}


def write_corpus(path: Path, records: Iterable[dict[str, str]]) -> int:
    """Write corpus rows as JSON lines; returns their number. Raises ValueError on a repeated id or blank contents."""
    seen: set[str] = set()
    lines = []
    for number, record in enumerate(records, start=1):
        if record["id"] in seen or not record["contents"].strip():
            fault = f"repeats the id {record['id']!r}" if record["id"] in seen else "has blank contents"
            raise ValueError(f"corpus row {number} for {path} {fault}; give every passage its own id and a text.")
        seen.add(record["id"])
        lines.append(json.dumps(record, ensure_ascii=False) + "\n")
    with replacing(path) as partial:
        partial.write_text("".join(lines), encoding="utf-8")
    return len(lines)
