"""Whether a build fits on the disk and into memory, asked before anything long begins."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from retriever_server.corpus import corpus_stat
from retriever_server.errors import IndexRefused
from retriever_server.units import size
from retriever_server.vectors.record import STREAMED, VectorRecord, index_bytes, training_size

GZIP_FACTOR = 4  # text against its gzip
BM25_DISK_SHARE = 1.0  # of the passages' bytes; .7 was measured on 100,000 passages (docs/scale.md)
BM25_RAM_SHARE = 5.0  # of the passages' bytes, at the peak of indexing; 4.1 was measured
PROCESS_RAM = 300 << 20  # the interpreter, numpy and faiss themselves
CGROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory"))
CGROUP_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
FILE_PAGES = ("active_file", "inactive_file")  # read from files, and given back when memory is asked for


@dataclass(frozen=True)
class Limits:
    """Bytes that a build may use; None means what the machine has free."""

    disk: int | None = None
    ram: int | None = None

    def disk_bytes(self, folder: Path) -> int:
        """Return the bytes of disk that may be used at `folder`."""
        return shutil.disk_usage(folder).free if self.disk is None else self.disk

    def ram_bytes(self) -> int:
        """Return the bytes of memory that may be used."""
        return available_ram() if self.ram is None else self.ram


def available_ram() -> int:
    """Return the bytes of memory available to this process: the machine's, or what its control group still has."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        values = dict(line.split(":", 1) for line in lines)
    available = int(values["MemAvailable"].split()[0]) * 1024
    return min([available, *(free for group in CGROUPS for free in group_ram(group))])


def group_ram(group: Path) -> list[int]:
    """Return the bytes that the control group in the folder `group` still has; none when it has no limit."""
    found = []
    for limit, used in CGROUP_FILES:
        if (group / limit).is_file() and (text := (group / limit).read_text().strip()) != "max":
            held = int((group / used).read_text()) - _file_pages(group)
            found.append(max(int(text) - held, 0))
    return found


def _file_pages(group: Path) -> int:
    path = group / "memory.stat"
    lines = [line.split() for line in path.read_text().splitlines()] if path.is_file() else []
    values = {name: int(number) for name, number in lines}
    # the first version counts the group alone under the plain names, and with its children under total_ ones
    return sum(values.get(f"total_{name}", values.get(name, 0)) for name in FILE_PAGES)


def check_passages(corpus: Path, folder: Path, limits: Limits) -> None:
    """Raise IndexRefused unless the passages of `corpus` fit on the disk of `folder`."""
    need = corpus_stat(corpus)[0] * (GZIP_FACTOR if corpus.suffix == ".gz" else 1)
    _refuse_disk("the passages", need, folder, limits)


def check_bm25(passage_bytes: int, folder: Path, limits: Limits) -> None:
    """Raise IndexRefused unless a BM25 index of `passage_bytes` of text fits on the disk and into memory."""
    _refuse_disk("the BM25 index", round(BM25_DISK_SHARE * passage_bytes), folder, limits)
    _refuse_ram("indexing BM25", round(BM25_RAM_SHARE * passage_bytes) + PROCESS_RAM, limits)


def check_vectors(record: VectorRecord, made: int, folder: Path, limits: Limits) -> str:
    """Raise IndexRefused unless the vectors fit; returns the sentence that states the estimates.

    `made` is the number of vectors that an earlier run has written already.
    """
    count = record.rows[-1]
    chunks, index = 4 * record.dimension * (count - made), index_bytes(record, count)
    _refuse_disk(f"the vectors and their {record.kind} index", chunks + index, folder, limits)
    need = assembly_ram(record)
    _refuse_ram(f"assembling the {record.kind} index", need, limits)
    how = "written in a stream" if record.kind in STREAMED else "held in memory while it is built, one shard at a time"
    return (
        f"{count:,} vectors of {record.dimension} dimensions: {size(chunks)} of chunks to encode and {size(index)} of "
        f"{record.kind} index on disk, {size(need)} of memory at most (the index is {how})"
    )


def assembly_ram(record: VectorRecord) -> int:
    """Return the estimated bytes of memory at the peak of assembling the index."""
    largest = max(stop - start for start, stop in pairwise(record.rows))
    training = 4 * record.dimension * training_size(record, largest)
    held = 0 if record.kind in STREAMED else index_bytes(record, largest)
    return PROCESS_RAM + training + held


def _refuse_disk(what: str, need: int, folder: Path, limits: Limits) -> None:
    have = limits.disk_bytes(folder)
    if need > have:
        raise IndexRefused(
            f"Not enough disk for {what}: about {size(need)} are needed and {size(have)} are free at {folder}."
        )


def _refuse_ram(what: str, need: int, limits: Limits) -> None:
    have = limits.ram_bytes()
    if need > have:
        raise IndexRefused(
            f"Not enough memory for {what}: about {size(need)} are needed and {size(have)} are available; "
            "choose a smaller --index kind, more --shards, or another machine."
        )
