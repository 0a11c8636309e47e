"""The data filter: items that need no retrieval or one trivial search are dropped, every decision is on record.

Files beside the output OUT: OUT.decisions.jsonl (one line an item, appended as decided) and OUT.report.json.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from verl_agentic import __version__
from verl_agentic.clients.retriever import RetrieverClient
from verl_agentic.core.items import question_and_golds
from verl_agentic.data.closed_book import Attempts, ClosedBook, EndpointModel, LocalModel
from verl_agentic.data.files import replacing
from verl_agentic.data.filter_rules import Decision, Verdict, findable, holds_answer, read_answer, right_share
from verl_agentic.data.ledger import Ledger
from verl_agentic.data.rows import Row, RowError, read_rows

NONE = "none"
REPORT_FORMAT = 1
PACKAGES = ("transformers", "torch", "pyarrow")
Line = Callable[[str], None]


@dataclass(frozen=True)
class FilterSettings:
    """What decides about items.

    Args:
        retriever: addresses of equal retriever servers; empty where no search is made.
        topk: passages asked for.
        trivial_search: whether items answered by one trivial search are dropped.
        closed_book: none, or the folder or address of the model that is asked without a retriever.
        model: its name where closed_book is an address.
        attempts: how it is asked.
        share: an item is dropped where at least this share, in (0, 1], of the attempts is right.
        limit: only the first items of the file; None: all.
    """

    retriever: tuple[str, ...]
    topk: int
    trivial_search: bool
    closed_book: str
    attempts: Attempts
    share: float
    limit: int | None = None
    model: str = ""

    @property
    def has_endpoint(self) -> bool:
        """Whether the closed-book model is behind an address."""
        return self.closed_book.startswith(("http://", "https://"))

    def __post_init__(self) -> None:
        if not self.trivial_search and self.closed_book == NONE:
            raise ValueError("nothing to filter by: --trivial-search is off and --closed-book is none; turn one on.")
        if self.trivial_search and not self.retriever:
            raise ValueError("--trivial-search on needs a retriever: give --retriever URL, or turn it off.")
        if self.has_endpoint != bool(self.model):
            raise ValueError("--closed-book URL needs --model NAME, and nothing else takes it.")
        if not 0 < self.share <= 1:
            raise ValueError(f"--share must be above 0 and at most 1, got {self.share:g}.")
        if self.topk < 1 or (self.limit is not None and self.limit < 1):
            raise ValueError(f"--topk and --limit must be at least 1, got {self.topk} and {self.limit}.")


@dataclass(frozen=True)
class Item:
    """One row as the filter sees it; `number` counts the file's rows from 0."""

    number: int
    question: str
    golds: tuple[str, ...]
    kind: str
    source: str


@dataclass(frozen=True)
class Pace:
    """How fast the servers are asked; nothing that a decision depends on.

    batch: items a request to the retriever, and requests to an endpoint at a time.
    concurrency: batches under way at a time.
    api_key_variable: the variable of the environment that holds the endpoint's key.
    """

    batch: int = 32
    concurrency: int = 4
    api_key_variable: str = "OPENAI_API_KEY"

    def __post_init__(self) -> None:
        if self.batch < 1 or self.concurrency < 1:
            raise ValueError(f"--batch and --concurrency must be at least 1, got {self.batch} and {self.concurrency}.")


def filter_file(
    data: Path, out: Path, settings: FilterSettings, pace: Pace | None = None, line: Line = print
) -> dict[str, Any]:
    """Write the items of `data` that are kept to `out`, unchanged and in their order; returns the report.

    Raises:
        RowError: a bad row, or no item is kept.
        ValueError: other settings than those of the run that is to be continued, or a model that cannot be loaded.
        RetrieverError, ChatError: a server failed; what was decided is on record, and the same command goes on.
    """
    if out.resolve() == data.resolve():
        raise ValueError(f"--out {out} is the data itself; choose another file.")
    items = read_items(data, settings.limit)
    ledger = Ledger(_beside(out, "decisions.jsonl"), "data filter", _recorded(data, settings))
    decided = read_decisions(ledger)
    if decided:
        line(f"filter: {len(decided)} decisions taken from {ledger.path}")
    decided += asyncio.run(_Filter(settings, pace or Pace(), ledger, line).run(items, decided))
    report = make_report(items, decided, data, settings)
    with replacing(_beside(out, "report.json")) as partial:
        partial.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    kept = sorted(decision.number for decision in decided if decision.verdict is Verdict.KEPT)
    if not kept:
        raise RowError(f"{out} would hold no row: all {len(items)} items of {data} were dropped; relax the rules.")
    _write_kept(data, out, kept)
    return report


def read_decisions(ledger: Ledger) -> list[Decision]:
    """The decisions that a ledger held when it was opened; ValueError where it is damaged."""
    try:
        return [Decision(**{**entry, "verdict": Verdict(entry["verdict"])}) for entry in ledger.entries]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{ledger.path} is damaged ({error}); delete it to start again.") from error


def read_items(data: Path, limit: int | None) -> list[Item]:
    """The questions and aliases of a file's rows; RowError as in `read_rows`, or for a row without a question."""
    return [_item(number, row, data) for number, row in enumerate(read_rows(data)[:limit])]


def _item(number: int, row: Row, data: Path) -> Item:
    try:
        question, golds = question_and_golds({**row, "raw_prompt": row["prompt"]})
    except ValueError as error:
        raise RowError(f"row {number + 1} of {data}: {error}") from error
    return Item(number, question, tuple(golds), row["extra_info"].get("kind") or "qa", row["data_source"])


class _Filter:
    """Decides about items, batch by batch."""

    def __init__(self, settings: FilterSettings, pace: Pace, ledger: Ledger, line: Line):
        self._settings, self._pace, self._ledger, self._line = settings, pace, ledger, line
        self._made: list[Decision] = []

    async def run(self, items: Sequence[Item], decided: Sequence[Decision]) -> list[Decision]:
        """Decide about the items that are not decided yet."""
        known = {decision.number for decision in decided}
        left = [item for item in items if item.number not in known]
        if not left:
            return []
        search = self._search()
        if search:
            await search.wait_ready(0.0)
        model = make_closed_book(self._settings, self._pace)
        batches = iter([left[i : i + self._pace.batch] for i in range(0, len(left), self._pace.batch)])
        counts = Counter(decision.verdict for decision in decided)
        workers = [
            asyncio.ensure_future(self._work(batches, search, model, counts, len(items)))
            for _ in range(self._pace.concurrency)
        ]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            for client in (search, model):
                if client:
                    await client.aclose()
        return self._made

    def _search(self) -> RetrieverClient | None:
        settings = self._settings
        return RetrieverClient(settings.retriever, topk=settings.topk) if settings.trivial_search else None

    async def _work(
        self,
        batches: Iterator[list[Item]],
        search: RetrieverClient | None,
        model: ClosedBook | None,
        counts: Counter[Verdict],
        total: int,
    ) -> None:
        for batch in batches:
            decisions = await decide(batch, search, model, self._settings.share)
            self._ledger.append(asdict(decision) for decision in decisions)
            self._made += decisions
            counts.update(decision.verdict for decision in decisions)
            shown = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict)
            self._line(f"filter {counts.total()}/{total}: {shown}")


def make_closed_book(settings: FilterSettings, pace: Pace) -> ClosedBook | None:
    """The model that is asked without a retriever; None where none is."""
    name = settings.closed_book
    if settings.has_endpoint:
        return EndpointModel(name, settings.model, settings.attempts, pace.batch, pace.api_key_variable)
    return None if name == NONE else LocalModel(Path(name), settings.attempts)


async def decide(
    items: Sequence[Item], search: RetrieverClient | None, model: ClosedBook | None, share: float
) -> list[Decision]:
    """Decide about a batch: the model first, then one search for each item that it cannot answer.

    Raises:
        RetrieverError, ChatError: the retriever or the endpoint failed, and nothing is decided.
    """
    right: dict[int, float] = {}
    if model:
        replies = await model.replies([item.question for item in items])
        for item, said in zip(items, replies, strict=True):
            right[item.number] = right_share([read_answer(text) for text in said], item.golds)
    known = {number for number, found in right.items() if found >= share}
    asked = [item for item in items if item.number not in known and search and findable(item.golds)]
    passages = await search.retrieve([item.question for item in asked]) if search else []
    trivial = {item.number for item, hits in zip(asked, passages, strict=True) if holds_answer(hits, item.golds)}

    def decision(item: Item) -> Decision:
        number = item.number
        if number in known:
            return Decision(number, Verdict.NO_RETRIEVAL, right[number])
        judged = bool(findable(item.golds)) if search else None
        return Decision(number, Verdict.ONE_SEARCH if number in trivial else Verdict.KEPT, right.get(number), judged)

    return [decision(item) for item in items]


def make_report(
    items: Sequence[Item], decided: Sequence[Decision], data: Path, settings: FilterSettings
) -> dict[str, Any]:
    """Counts by verdict, in all and by kind and data source, with what they depend on."""
    found = {decision.number: decision for decision in decided}
    by_kind: dict[str, Counter[str]] = defaultdict(Counter)
    by_source: dict[str, Counter[str]] = defaultdict(Counter)
    for item in items:
        for table, name in ((by_kind, item.kind), (by_source, item.source)):
            table[name][found[item.number].verdict.value] += 1
    return {
        "format": REPORT_FORMAT,
        "rows": len(items),
        "counts": _counts(Counter(decision.verdict.value for decision in decided)),
        "not_judged_by_search": sum(decision.judged_by_search is False for decision in decided),
        "by_kind": {name: _counts(counts) for name, counts in sorted(by_kind.items())},
        "by_data_source": {name: _counts(counts) for name, counts in sorted(by_source.items())},
        "data": str(data),
        "settings": _recorded(data, settings),
        "versions": {"verl_agentic": __version__, **{name: _version(name) for name in PACKAGES}},
    }


def _counts(counts: Counter[str]) -> dict[str, int]:
    return {verdict.value: counts[verdict.value] for verdict in Verdict}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _recorded(data: Path, settings: FilterSettings) -> dict[str, Any]:
    """What decisions depend on; the same in every run that may continue another."""
    return {**asdict(settings), "data_sha256": hashlib.sha256(data.read_bytes()).hexdigest()}


def _beside(out: Path, ending: str) -> Path:
    return out.with_name(f"{out.name}.{ending}")


def _write_kept(data: Path, out: Path, kept: Sequence[int]) -> None:
    import pyarrow.parquet as pq

    with replacing(out) as partial:
        pq.write_table(pq.ParquetFile(data).read().take(list(kept)), partial)
