"""The options of `serve`, what they mean to the server and the index, and which combinations make no sense."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from retriever_server.commands.arguments import at_least_zero, positive, positive_number
from retriever_server.errors import RetrieverServerError
from retriever_server.logs import LEVELS
from retriever_server.settings import ServerSettings

if TYPE_CHECKING:
    from retriever_server.index import OpenOptions

DEFAULTS = ServerSettings()
EXECUTORS = 2  # while one batch is computed, the next is tokenized and the last one answered
MOST_THREADS = 10_000  # systems allow some ten thousand


def threads_of(options: argparse.Namespace) -> int:
    """Return --threads, else OMP_NUM_THREADS, else what cores this process may use for each executor."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    if options.threads:
        return int(options.threads)
    if given.isdecimal() and int(given):
        return int(given)
    return max(1, _cores() // (options.executors or EXECUTORS))


def executors_of(options: argparse.Namespace) -> int:
    """Return --executors, else as many as the cores allow with that many threads each, 2 at most."""
    return int(options.executors or max(1, min(EXECUTORS, _cores() // threads_of(options))))


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `serve`."""
    parser.add_argument("--index", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=8000, help="0 picks a free port")
    parser.add_argument("--log-level", choices=LEVELS, default="info", help="info: one line a request")
    _add_engine(parser.add_argument_group("engine"))
    _add_admission(parser.add_argument_group("admission"))
    _add_index(parser.add_argument_group("index"))
    _add_models(parser.add_argument_group("hybrid and models"))


def _add_engine(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--engine", choices=("local", "ray"), default="local", help="where searches run")
    group.add_argument("--replicas", type=positive, help="ray: copies of the index (default 1)")
    group.add_argument(
        "--threads",
        "--search-threads",
        type=positive,
        help="threads of one search or encoding (default: OMP_NUM_THREADS, else the cores shared among executors)",
    )
    group.add_argument(
        "--executors",
        type=positive,
        help=f"batches searched at once (default: {EXECUTORS}, if cores and threads allow)",
    )
    group.add_argument("--device", choices=("cpu", "cuda", "auto"), default="cpu", help="of encoder and reranker")
    group.add_argument(
        "--max-batch", type=positive, default=DEFAULTS.max_batch, help="queries searched together; 1: never together"
    )
    group.add_argument(
        "--window-ms", type=at_least_zero, help=f"longest wait for a fuller batch (default {DEFAULTS.window_ms:g})"
    )
    group.add_argument(
        "--cache-mb", type=at_least_zero, default=DEFAULTS.cache_mb, help="MiB of remembered results; 0: none"
    )


def _add_admission(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--max-pending", type=positive, default=DEFAULTS.max_pending, help="requests waiting before 429")
    group.add_argument("--max-queued", type=positive, default=DEFAULTS.max_queued, help="queries waiting before 429")
    group.add_argument(
        "--deadline", type=positive_number, default=DEFAULTS.deadline_s, help="seconds before 503, unless X-Deadline-Ms"
    )
    group.add_argument(
        "--drain-timeout", type=at_least_zero, default=DEFAULTS.drain_timeout_s, help="seconds for requests under way"
    )


def _add_index(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--no-mmap", action="store_true", help="read the vectors into memory")
    group.add_argument("--nprobe", type=positive, help="ivf: lists searched (default: the index's own)")
    group.add_argument("--ef-search", type=positive, help="hnsw: breadth of the search (default: the index's own)")


def _add_models(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--use", choices=("bm25", "dense"), default="", help="serve one part of a hybrid index")
    group.add_argument("--fusion", choices=("rrf", "weighted"), help="of a hybrid's parts (default rrf)")
    group.add_argument("--rrf-k", type=positive, help="rrf: the constant added to ranks (default 60)")
    group.add_argument("--weights", type=float, nargs="+", metavar="W", help="fusion: one weight for each part")
    group.add_argument("--fusion-depth", type=positive, help="hits of each part that are fused (default 100)")
    group.add_argument("--reranker", default="", help="name or folder of a reranker, also for /rerank")
    group.add_argument("--rerank-depth", type=positive, help="hits that are reranked (default 50)")
    group.add_argument("--embedder", default="", help="encoder for /embed where the index has none")


def refuse_nonsense(options: argparse.Namespace) -> None:
    """Raise RetrieverServerError, in one sentence, for options that contradict each other."""
    for nonsense, sentence in (
        (options.replicas and options.engine != "ray", "--replicas needs --engine ray."),
        (
            options.executors and options.replicas,
            "--executors is for one copy of the index; --replicas are searched at once.",
        ),
        (options.window_ms and options.max_batch == 1, "--window-ms waits for more queries, but --max-batch is 1."),
        (options.rerank_depth and not options.reranker, "--rerank-depth needs --reranker."),
        (options.use and _fused(options), f"--use {options.use} serves one part, so there is nothing to fuse."),
        (options.rrf_k and options.fusion == "weighted", "--rrf-k belongs to --fusion rrf."),
        (
            max(options.max_pending, options.executors or 0) > MOST_THREADS,
            f"--max-pending and --executors each hold as many threads; at most {MOST_THREADS} are allowed.",
        ),
        (options.max_queued < options.max_batch, "--max-queued must be at least --max-batch, or no batch ever fills."),
    ):
        if nonsense:
            raise RetrieverServerError(sentence)


def server_settings(options: argparse.Namespace) -> ServerSettings:
    """Return the server's settings."""
    return ServerSettings(
        max_pending=options.max_pending,
        max_queued=options.max_queued,
        deadline_s=options.deadline,
        max_batch=options.max_batch,
        window_ms=DEFAULTS.window_ms if options.window_ms is None else options.window_ms,
        cache_mb=options.cache_mb,
        drain_timeout_s=options.drain_timeout,
        executors=executors_of(options),
        threads=threads_of(options),
    )


def open_options(options: argparse.Namespace) -> OpenOptions:
    """Return how the index is to be opened."""
    from retriever_server.backends.hybrid import FusionSettings
    from retriever_server.index import OpenOptions

    fusion = {
        "method": options.fusion,
        "rrf_k": options.rrf_k,
        "weights": tuple(options.weights) if options.weights else None,
        "depth": options.fusion_depth,
    }
    given = {
        "nprobe": options.nprobe,
        "ef_search": options.ef_search,
        "rerank_depth": options.rerank_depth,
    }
    return OpenOptions(
        use=options.use,
        fusion=FusionSettings(**{name: value for name, value in fusion.items() if value is not None}),
        reranker=options.reranker,
        embedder=options.embedder,
        device=options.device,
        threads=threads_of(options),
        mmap=not options.no_mmap,
        **{name: value for name, value in given.items() if value is not None},
    )


def _fused(options: argparse.Namespace) -> bool:
    return any((options.fusion, options.rrf_k, options.weights, options.fusion_depth))
