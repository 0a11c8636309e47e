"""The manifest of an index folder: what built it, so that serving it differently is refused."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from retriever_server.errors import IndexRefused
from retriever_server.records import misfits

MANIFEST = "manifest.json"
FORMAT = 1
LIBRARIES = ("numpy", "faiss-cpu", "bm25s")


@dataclass(frozen=True)
class Canary:
    """A query made of a passage's first words, and the row and identifier of that passage, which must come first."""

    row: int
    id: str
    query: str


@dataclass(frozen=True)
class Manifest:
    """`kind` is `bm25` or `dense`, `settings` BM25 settings or the encoder record, `count` the number of passages.

    `found_by_own_words` is the share of sampled passages that their first words retrieve: a wrong encoder shows here.
    """

    kind: str
    count: int
    settings: dict[str, Any]
    corpus: str
    corpus_sha256: str
    canaries: list[Canary]
    found_by_own_words: float
    versions: dict[str, str] = field(default_factory=lambda: {name: version(name) for name in LIBRARIES})
    format: int = FORMAT

    @property
    def encoder(self) -> str:
        """The name by which people call what answers: `bm25` or the encoder's id."""
        return str(self.settings["id"]) if self.kind == "dense" else self.kind

    def write(self, folder: Path) -> None:
        """Write the manifest into `folder`."""
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of an index folder; raises IndexRefused when it is none or of another format."""
    path = folder / MANIFEST
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise IndexRefused(f"{folder} holds no index ({path.name} is missing); make one with `build`.") from error
    except (ValueError, RecursionError) as error:
        raise IndexRefused(f"{path} is damaged ({error}); build the index again.") from error
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise IndexRefused(f"{path} is not of format {FORMAT}, which this version reads; build the index again.")
    if set(values) != {item.name for item in fields(Manifest)}:
        raise IndexRefused(f"{path} does not hold the keys of an index manifest; build the index again.")
    wrong = misfits(Manifest, values)
    if wrong:
        raise IndexRefused(f"{path} is damaged (values of the wrong type: {', '.join(wrong)}); build the index again.")
    values["canaries"] = [_canary(canary, path) for canary in values["canaries"]]
    if not values["canaries"]:
        raise IndexRefused(f"{path} names no canary by which the index could be checked; build the index again.")
    return Manifest(**values)


def _canary(values: Any, path: Path) -> Canary:
    names = {item.name for item in fields(Canary)}
    if not isinstance(values, dict) or set(values) != names or misfits(Canary, values):
        raise IndexRefused(f"{path} is damaged (a canary that does not name row, id and query); build the index again.")
    return Canary(**values)
