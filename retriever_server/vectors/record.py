"""What an index of passage vectors is declared to be: asked for by a build, recorded in a manifest."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from typing import Any

from retriever_server.errors import IndexRefused
from retriever_server.records import misfits

METRIC = "inner_product"
EXACT, SCALAR, INVERTED, GRAPH = ("flat",), ("fp16", "sq8"), ("ivf_flat", "ivf_pq"), ("hnsw",)
KINDS = (*EXACT, *SCALAR, *INVERTED, *GRAPH)
AUTO = "auto"
POINTS_PER_LIST = 39  # faiss's own least number of training points for a centroid
PQ_POINTS = 1024  # a product quantizer learns 256 centroids for each slice
PQ_BITS = 8
HNSW_LINKS = 32
STREAMED = (*EXACT, *SCALAR)  # their files are a header and the codes row by row, so that nothing is held in memory
TRAINING_POINTS_PER_LIST = 64
LEAST_TRAINING = 65_536
MOST = 2**31 - 1  # faiss keeps its parameters in 32 bits


@dataclass(frozen=True)
class VectorSettings:
    """What a build is asked for; 0 lets the build choose.

    `kind`: one of KINDS or `auto`. `nlist`: lists of an inverted file. `pq_m`: bytes of a product-quantized vector.
    `hnsw_m`: links of a node. `nprobe`, `ef_search`: how much a search looks at. `recall_target`: share of the ten true
    neighbours that a search is to find, 0 to 1, where the build chooses. Raises IndexRefused for unusable values.
    """

    kind: str = "flat"
    nlist: int = 0
    pq_m: int = 0
    hnsw_m: int = 0
    nprobe: int = 0
    ef_search: int = 0
    recall_target: float = 0.95

    def __post_init__(self) -> None:
        if self.kind not in (*KINDS, AUTO):
            raise IndexRefused(f"Unknown index kind '{self.kind}'; choose one of {', '.join((*KINDS, AUTO))}.")
        if not 0 < self.recall_target <= 1:
            raise IndexRefused(f"The recall target {self.recall_target} is not above 0 and at most 1.")
        for name, kinds in (("nlist", INVERTED), ("nprobe", INVERTED), ("pq_m", ("ivf_pq",)), ("hnsw_m", GRAPH),
                            ("ef_search", GRAPH)):  # fmt: skip
            value = getattr(self, name)
            if value < 0:
                raise IndexRefused(f"The index parameter {name} is {value}; it cannot be negative.")
            if value and self.kind not in kinds:
                raise IndexRefused(f"An index of kind '{self.kind}' has no {name}; that is for {' and '.join(kinds)}.")
        if self.hnsw_m and not 2 <= self.hnsw_m <= 256:
            raise IndexRefused(f"HNSW needs 2 to 256 links a node (hnsw_m), found {self.hnsw_m}.")


@dataclass(frozen=True)
class VectorRecord:
    """The vectors of a dense part: `rows` are the first rows of its files and, last, the number of passages.

    `recall` is the share of the true ten nearest passages that this index found for the first words of sampled
    passages as queries (1.0 for an exact index), `advice` says in sentences what was chosen and why. Parameters that
    the kind lacks are 0.
    """

    kind: str
    dimension: int
    rows: list[int]
    metric: str = METRIC
    nlist: int = 0
    pq_m: int = 0
    hnsw_m: int = 0
    nprobe: int = 0
    ef_search: int = 0
    recall: float = 1.0
    advice: list[str] = field(default_factory=list)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> VectorRecord:
        """Read a record from JSON values; raises IndexRefused unless they are exactly the declared ones."""
        if set(values) != {item.name for item in fields(cls)}:
            raise IndexRefused(f"The vectors' record holds the keys {sorted(values)}; build the index again.")
        wrong = misfits(cls, values)
        if wrong or not all(type(row) is int for row in values["rows"]):
            raise IndexRefused(
                f"The vectors' record holds values of the wrong type ({', '.join(wrong or ['rows'])}); "
                "build the index again."
            )
        record = cls(**values)
        if record.kind not in KINDS or record.metric != METRIC:
            raise IndexRefused(
                f"The vectors' record names kind '{record.kind}' and metric '{record.metric}' where this version reads "
                f"{', '.join(KINDS)} by {METRIC}; build the index again."
            )
        amounts = {name: getattr(record, name) for name in ("nlist", "pq_m", "hnsw_m", "nprobe", "ef_search")}
        outside = [name for name, value in amounts.items() if not 0 <= value <= MOST]
        if outside or not 0 <= record.recall <= 1:
            raise IndexRefused(
                f"The vectors' record holds numbers outside their range ({', '.join(outside or ['recall'])}); "
                "build the index again."
            )
        if len(record.rows) < 2 or record.rows[0] != 0 or sorted(set(record.rows)) != record.rows:
            raise IndexRefused(f"The vectors' record names the row ranges {record.rows}; build the index again.")
        return record

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return asdict(self)

    @property
    def shards(self) -> int:
        """The number of files that the vectors lie in."""
        return len(self.rows) - 1

    def file_names(self) -> list[str]:
        """Return the vectors' files in row order."""
        if self.shards == 1:
            return ["vectors.faiss"]
        return [f"vectors-{number:03d}-of-{self.shards:03d}.faiss" for number in range(self.shards)]


def resolve(settings: VectorSettings, dimension: int, rows: list[int]) -> VectorRecord:
    """Fill in what `settings` leave open for vectors of `dimension` in the row ranges `rows`.

    Raises IndexRefused when there are too few passages to train the kind, or `pq_m` does not divide the dimension.
    """
    smallest = min(stop - start for start, stop in pairwise(rows))
    record = VectorRecord(settings.kind, dimension, rows)
    if settings.kind in GRAPH:
        return replace(record, hnsw_m=settings.hnsw_m or HNSW_LINKS, ef_search=settings.ef_search)
    if settings.kind not in INVERTED:
        return record
    nlist = settings.nlist or max(1, min(round(4 * math.sqrt(smallest)), smallest // POINTS_PER_LIST))
    need = max(POINTS_PER_LIST * nlist, PQ_POINTS if settings.kind == "ivf_pq" else 0)
    if smallest < need:
        raise IndexRefused(
            f"An index of kind '{settings.kind}' with {nlist} lists trains on at least {need} passages a shard, and "
            f"there are {smallest}; use --index flat."
        )
    if settings.nprobe > nlist:
        raise IndexRefused(f"nprobe {settings.nprobe} is more than the {nlist} lists of the index.")
    pq_m = _slices(settings, dimension) if settings.kind == "ivf_pq" else 0
    return replace(record, nlist=nlist, pq_m=pq_m, nprobe=settings.nprobe)


def _slices(settings: VectorSettings, dimension: int) -> int:
    if settings.pq_m and dimension % settings.pq_m:
        raise IndexRefused(
            f"The {dimension} dimensions of the vectors cannot be cut into {settings.pq_m} equal slices (pq_m)."
        )
    return settings.pq_m or next(m for m in range(max(dimension // 4, 1), 0, -1) if dimension % m == 0)


def vector_bytes(record: VectorRecord) -> int:
    """Return the bytes that one vector takes in the index (an inverted file's centroids come on top)."""
    codes = {"flat": 4 * record.dimension, "fp16": 2 * record.dimension, "sq8": record.dimension}
    if record.kind in codes:
        return codes[record.kind]
    if record.kind == "hnsw":
        return 4 * record.dimension + 4 * (2 * record.hnsw_m + 1) + 12  # links at the base, few above; level, offset
    return (record.pq_m if record.kind == "ivf_pq" else 4 * record.dimension) + 8  # the row number


def index_bytes(record: VectorRecord, count: int) -> int:
    """Return the estimated bytes of an index of `count` vectors."""
    return count * vector_bytes(record) + 4 * record.nlist * record.dimension


def training_size(record: VectorRecord, count: int) -> int:
    """Return how many of `count` vectors the kind is trained on (evenly spaced ones); 0 when it needs no training."""
    if record.kind in ("flat", "fp16", "hnsw"):
        return 0
    return min(count, max(LEAST_TRAINING, TRAINING_POINTS_PER_LIST * record.nlist))
