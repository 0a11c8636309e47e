"""What a client counts: calls, failures by kind, cache hits, and how long calls took."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import ceil, log

SHORTEST_S = 1e-4
RATIO = 1.1  # between the bounds of neighbouring buckets: a quantile is at most this factor too large
BUCKETS = 170  # reach from 0.1 ms to 1,000 s


class Latencies:
    """Seconds of any number of calls in bounded memory; `total` and `longest` are exact, quantiles within 10%."""

    def __init__(self) -> None:
        self.total = 0.0
        self.longest = 0.0
        self._counts = [0] * (BUCKETS + 1)

    def add(self, seconds: float) -> None:
        """Count a call that took `seconds` >= 0."""
        self.total += seconds
        self.longest = max(self.longest, seconds)
        self._counts[_bucket(seconds)] += 1

    def quantile(self, share: float) -> float:
        """Return the seconds within which `share` (0 < share <= 1) of the calls ended; 0.0 before the first."""
        wanted = ceil(share * sum(self._counts))
        seen = 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                return min(SHORTEST_S * RATIO**bucket, self.longest)
        return 0.0


def _bucket(seconds: float) -> int:
    """Return the number of the first bucket whose upper bound is not below `seconds`."""
    if seconds <= SHORTEST_S:
        return 0
    return min(ceil(log(seconds / SHORTEST_S, RATIO)), BUCKETS)


@dataclass
class RetrieverCounters:
    """What a client has done.

    `queries`, `empty` (queries without passages) and `cache_hits` (queries that a server answered from its cache, as
    its header X-Cache-Hits says) count those of `retrieve`; the others count every call. `errors` are failed calls,
    `latencies` the seconds of all calls, failed ones and waits between attempts included.
    """

    calls: int = 0
    queries: int = 0
    empty: int = 0
    retries: int = 0
    cache_hits: int = 0
    errors: int = 0
    errors_by_kind: Counter[str] = field(default_factory=Counter)
    latencies: Latencies = field(default_factory=Latencies)

    @property
    def seconds(self) -> float:
        """Seconds of all calls together."""
        return self.latencies.total

    def as_dict(self) -> dict[str, float]:
        """Return all of them by name: counts, failed calls in all and as `errors_KIND`, and seconds."""
        return {
            "calls": self.calls,
            "queries": self.queries,
            "empty": self.empty,
            "retries": self.retries,
            "cache_hits": self.cache_hits,
            "errors": self.errors,
            **{f"errors_{kind}": count for kind, count in sorted(self.errors_by_kind.items())},
            "seconds": self.seconds,
            "seconds_max": self.latencies.longest,
            "seconds_p50": self.latencies.quantile(0.5),
            "seconds_p99": self.latencies.quantile(0.99),
        }
