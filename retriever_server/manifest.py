"""The manifest of an index folder: what built it, so that serving it differently is refused."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from retriever_server.errors import IndexRefused
from retriever_server.records import misfits

MANIFEST = "manifest.json"
CANARY_VECTORS = "canaries.npy"
FORMAT = 2
EDGED, EDGE = (".faiss", ".npy", ".json"), 1 << 16  # endings, bytes
LIBRARIES = ("numpy", "faiss-cpu", "bm25s", "torch", "transformers")


@dataclass(frozen=True)
class Canary:
    """A query made of a passage's first words, and the row and identifier of that passage, which must come first."""

    row: int
    id: str
    query: str


@dataclass(frozen=True)
class Part:
    """One way in which the passages are indexed.

    `kind` is `bm25` or `dense`, `settings` BM25 settings or the encoder record; `vectors` is the VectorRecord of a
    dense part (kind of index, dimension, metric, parameters, shards, advice), empty for BM25.
    """

    kind: str
    settings: dict[str, Any]
    vectors: dict[str, Any]


@dataclass(frozen=True)
class FileRecord:
    """A file of the index: its bytes and SHA-256, and, but for passages, the SHA-256 of its first and last EDGE bytes.

    The whole file is checked by `verify`; its size and edges, where the headers are that a library would follow
    blindly, whenever the index is opened.
    """

    name: str
    bytes: int
    sha256: str
    edges: str


@dataclass(frozen=True)
class Manifest:
    """What an index of `count` passages holds and was built from; each canary holds in every part.

    `found_by_own_words` is the share of sampled passages that their first words retrieve: a wrong encoder shows here.
    """

    count: int
    parts: list[Part]
    corpus: str
    corpus_sha256: str
    canaries: list[Canary]
    found_by_own_words: float
    files: list[FileRecord]
    versions: dict[str, str] = field(default_factory=lambda: library_versions())
    format: int = FORMAT

    @property
    def kind(self) -> str:
        """`bm25`, `dense`, or `hybrid` for both."""
        return self.parts[0].kind if len(self.parts) == 1 else "hybrid"

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the first part."""
        return self.parts[0].settings

    @property
    def encoder(self) -> str:
        """The name by which people call what answers: `bm25`, the encoder's id, or both."""
        return "+".join(str(part.settings["id"]) if part.kind == "dense" else part.kind for part in self.parts)

    def write(self, folder: Path) -> None:
        """Write the manifest into `folder`."""
        text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")

    def to_dict(self) -> dict[str, Any]:
        """Return the manifest as JSON values."""
        return {"kind": self.kind, **asdict(self)}


def library_versions() -> dict[str, str]:
    """Return the versions of the installed libraries on which an index depends."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue  # an index can be built without it
    return found


def file_records(folder: Path) -> list[FileRecord]:
    """Return the records of the files in `folder`, in the order of their names."""
    paths = sorted(folder.iterdir())
    return [FileRecord(path.name, path.stat().st_size, file_digest(path), _edges_digest(path)) for path in paths]


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's bytes in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _edges_digest(path: Path) -> str:
    if path.suffix not in EDGED:
        return ""
    with open(path, "rb") as file:
        digest = hashlib.sha256(file.read(EDGE))
        file.seek(max(path.stat().st_size - EDGE, 0))
        digest.update(file.read(EDGE))
    return digest.hexdigest()


def check_edges(folder: Path, manifest: Manifest) -> None:
    """Raise IndexRefused, naming the file, when a file of the right size begins or ends otherwise than built."""
    for record in manifest.files:
        path = folder / record.name
        if path.is_file() and path.stat().st_size == record.bytes and _edges_digest(path) != record.edges:
            raise IndexRefused(
                f"{path} is damaged (its first or last bytes are not those built); build the index again."
            )


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
        found = values.get("format") if isinstance(values, dict) else None
        raise IndexRefused(
            f"{path} is of format {found} and this version reads format {FORMAT}; build the index again."
        )
    kind = values.pop("kind", None)
    manifest = _manifest(values, path)
    if kind != manifest.kind:
        raise IndexRefused(f"{path} is damaged (kind {kind!r} of {manifest.kind} parts); build the index again.")
    return manifest


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Raise IndexRefused, naming file and both sizes, unless all files are there in the sizes they were built with."""
    for record in manifest.files:
        path = folder / record.name
        if not path.is_file():
            raise IndexRefused(f"{path} is missing; build the index again.")
        found = path.stat().st_size
        if found != record.bytes:
            raise IndexRefused(
                f"{path} is damaged ({found} bytes where the manifest says {record.bytes}); build the index again."
            )


def _manifest(values: dict[str, Any], path: Path) -> Manifest:
    if set(values) != {item.name for item in fields(Manifest)}:
        raise IndexRefused(f"{path} does not hold the keys of an index manifest; build the index again.")
    wrong = misfits(Manifest, values)
    if wrong:
        raise IndexRefused(f"{path} is damaged (values of the wrong type: {', '.join(wrong)}); build the index again.")
    manifest = Manifest(**values | {name: _records(kind, values[name], path) for name, kind in LISTS.items()})
    kinds = [part.kind for part in manifest.parts]
    if kinds not in (["bm25"], ["dense"], ["bm25", "dense"]):
        raise IndexRefused(f"{path} names parts of the kinds {kinds}; build the index again.")
    if not manifest.canaries:
        raise IndexRefused(f"{path} names no canary by which the index could be checked; build the index again.")
    outside = [canary.row for canary in manifest.canaries if not 0 <= canary.row < manifest.count]
    if outside:
        raise IndexRefused(f"{path} names canary rows {outside} of {manifest.count} passages; build the index again.")
    unsafe = [record.name for record in manifest.files if Path(record.name).name != record.name]
    if unsafe:
        raise IndexRefused(f"{path} names files outside its folder ({', '.join(unsafe)}); build the index again.")
    return manifest


LISTS: dict[str, type] = {"canaries": Canary, "parts": Part, "files": FileRecord}


def _records(kind: type, values: list[Any], path: Path) -> list[Any]:
    names = [item.name for item in fields(kind)]
    for value in values:
        if not isinstance(value, dict) or set(value) != set(names) or misfits(kind, value):
            what = {"Canary": "canary", "Part": "part", "FileRecord": "file"}[kind.__name__]
            listed = " and ".join([", ".join(names[:-1]), names[-1]])
            raise IndexRefused(f"{path} is damaged (a {what} that does not name {listed}); build the index again.")
    return [kind(**value) for value in values]
