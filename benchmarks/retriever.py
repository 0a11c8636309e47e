"""Queries a second and latency of the retriever server against its limit and against itself without batches, one run.

    python benchmarks/retriever.py --output benchmarks/results/retriever.json
    python benchmarks/retriever.py --parts limit server --seconds 20

The limit is a plain loop in one process: the same index and encoder, encoded and searched in batches by as many
threads as there are cores, nothing else running. Two such loops of half the threads, which is how the server runs
them, do more, and are shown too. The server is asked by the load generator (`bench`) in a process of its own, by 1, 8
and 64 clients, with queries that never repeat and with a half that repeats earlier ones; once as it is, once without
micro-batching and cache. Queries are the questions of the data set and sentences of its passages, shuffled. Memory is
that of a server with the `hashing` encoder (fast, so that 50,000 requests take minutes) and a cache that is soon full.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from retriever_server.index import OpenOptions, build_index, open_index
from retriever_server.process import RunningServer, start_server

ROOT = Path(__file__).resolve().parent.parent
ENCODER = "all-MiniLM-L6-v2"
CLIENTS = (1, 8, 64)
BATCHES = (32, 64)
TOPK = 3
WARM_UP = 64
MEMORY_REQUESTS = 50_000
MEMORY_QUERIES = 2_000  # few enough that the words which `hashing` remembers are all known before it counts
MEMORY_OPTIONS = ("--cache-mb", "2", "--threads", "1")
PARTS = ("limit", "server", "baseline", "memory", "limit-again")
BASELINE = ("--max-batch", "1", "--cache-mb", "0")
KINDS = ("unique", "half repeated")
NAMES = {1: "one loop", 2: "two loops"}
SERVER = ("--executors", "2", "--threads", str(max(1, len(os.sched_getaffinity(0)) // 2)))
ENOUGH = {1: 100, 8: 200, 64: 300}  # queries a second that so many clients will not exceed


def read_queries(data: Path) -> list[str]:
    """The questions, and the passages' sentences of 4 to 40 words; each once, in a fixed random order."""
    questions = [row["question"] for row in rows(data / "questions.jsonl.gz")]
    sentences = [
        sentence for row in rows(data / "corpus.jsonl.gz") for sentence in re.split(r"(?<=[.!?])\s+", row["text"])
    ]
    usable = [" ".join(text.split()) for text in sentences if 4 <= len(text.split()) <= 40]
    queries = list(dict.fromkeys([*questions, *usable]))
    random.Random(0).shuffle(queries)
    return queries


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a gzipped JSON-lines file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def half_repeated(queries: list[str]) -> list[str]:
    """Every second query is one that came earlier."""
    draw = random.Random(1)
    stream: list[str] = []
    for query in queries:
        stream += [query, draw.choice(stream or [query])]
    return stream


def measure_limit(index: Path, loops: int, queries: list[str], seconds: float) -> dict[str, float]:
    """Queries a second of encode-and-search loops: batches as they come, and sorted by length beforehand."""
    backend, _ = open_index(index, OpenOptions(threads=threads_of(loops)))
    backend.search(queries[:WARM_UP], TOPK)
    ordered = sorted(queries[: 64 * BATCHES[-1]], key=len)
    random.Random(2).shuffle(queries)
    rates = {}
    for batch in BATCHES:
        as_they_come = [queries[i : i + batch] for i in range(0, 8192, batch)]
        rates[f"{NAMES[loops]}, batch {batch}"] = loop_rate(backend, loops, as_they_come, seconds)
        groups = [ordered[i : i + batch] for i in range(0, len(ordered), batch)]
        random.Random(3).shuffle(groups)
        rates[f"{NAMES[loops]}, batch {batch}, sorted beforehand"] = loop_rate(backend, loops, groups, seconds)
    return rates


def loop_rate(backend: Any, loops: int, batches: list[list[str]], seconds: float) -> float:
    """Queries a second over as many of the batches as fit into `seconds`."""
    started, left = time.perf_counter(), iter(batches)

    def loop(_: int) -> int:
        done = 0
        while time.perf_counter() - started < seconds and (batch := next(left, None)):
            done += len(backend.search(batch, TOPK))
        return done

    with ThreadPoolExecutor(loops) as pool:
        done = sum(pool.map(loop, range(loops)))
    return round(done / (time.perf_counter() - started), 2)


def threads_of(loops: int) -> int:
    """Threads of each of so many loops, or executors."""
    return max(1, len(os.sched_getaffinity(0)) // loops)


class Bench:
    """The measurements of one run, each of which takes queries that no other has taken from the same server."""

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self.options = options
        self.work = work
        self.queries = read_queries(options.data)

    def part(self, name: str) -> Any:
        """Measure one of PARTS."""
        if name.startswith("limit"):
            return self.limit()
        if name == "memory":
            return self.memory()
        return self.levels(BASELINE if name == "baseline" else ())

    def limit(self) -> Any:
        """In fresh processes, as the servers are."""
        rates: dict[str, float] = {}
        for loops in NAMES:
            command = [sys.executable, __file__, "--limit-of", str(self.index(ENCODER)), "--loops", str(loops)]
            command += ["--data", str(self.options.data), "--seconds", str(self.options.seconds)]
            environment = {**self.environment(), "OMP_NUM_THREADS": str(threads_of(loops))}
            rates |= json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment).stdout)
        return rates

    def levels(self, serve: tuple[str, ...]) -> list[dict[str, Any]]:
        """What 1, 8 and 64 clients see of one server."""
        unused, found = iter(self.queries), []
        with start_server(self.index(ENCODER), options=(*SERVER, *serve)) as server:
            self.ask(server, [next(unused) for _ in range(WARM_UP)], 8, 60)
            for clients in CLIENTS:
                for kind in KINDS:
                    enough = [next(unused) for _ in range(int(ENOUGH[clients] * self.options.seconds))]
                    stream = half_repeated(enough) if kind != "unique" else enough
                    found.append({"queries": kind, **self.ask(server, stream, clients, self.options.seconds)})
                    print(found[-1], flush=True)
        return found

    def memory(self) -> dict[str, Any]:
        """Resident MiB before and after 50,000 requests, once the cache has been filled."""
        draw = random.Random(4)
        stream = [draw.choice(self.queries[:MEMORY_QUERIES]) for _ in range(MEMORY_REQUESTS)]
        with start_server(self.index("hashing"), options=MEMORY_OPTIONS) as server:
            self.ask(server, [*self.queries[:MEMORY_QUERIES], *stream[:5000]], 64, 600)
            resident = [resident_mib(server)]
            for part in (stream[: MEMORY_REQUESTS // 2], stream[MEMORY_REQUESTS // 2 :]):
                report = self.ask(server, part, 64, 600)
                resident.append(resident_mib(server))
        return {"requests": MEMORY_REQUESTS, "resident_mib": resident, "encoder": "hashing", "last": report}

    def ask(self, server: RunningServer, stream: list[str], clients: int, seconds: float) -> dict[str, Any]:
        """Run the load generator; adds the server's share of the processors."""
        (self.work / "queries.txt").write_text("\n".join(stream), encoding="utf-8")
        command = [sys.executable, "-m", "retriever_server", "bench", "--url", server.url, "--unrepeated"]
        command += ["--queries", str(self.work / "queries.txt"), "--clients", str(clients), "--seconds", str(seconds)]
        command += ["--topk", str(TOPK), "--json", str(self.work / "report.json")]
        busy, started = processor_s(server), time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT, env=self.environment())
        report = json.loads((self.work / "report.json").read_text())[0]
        report["server_cpus"] = round((processor_s(server) - busy) / (time.perf_counter() - started), 2)
        return report

    def index(self, encoder: str) -> Path:
        """The index of an encoder, built when it is not there yet."""
        folder = self.work / encoder
        if not folder.exists():
            build_index(self.options.data / "corpus.jsonl.gz", encoder, folder)
        return folder

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT)}


def resident_mib(server: RunningServer) -> float:
    """Resident memory of the server."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return round(int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024, 1)  # type: ignore[index]


def processor_s(server: RunningServer) -> float:
    """Processor time of the server so far."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine() -> dict[str, Any]:
    """Where the figures come from."""
    packages = ("torch", "transformers", "faiss-cpu", "flask", "waitress")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
        "load_average_before": os.getloadavg()[0],
    }


def summarise(results: dict[str, Any]) -> dict[str, Any]:
    """The figures that the run is to show: the ratio to the limit and the factor over the baseline, at 64 clients."""
    limits = [results[name] for name in ("limit", "limit-again") if name in results]
    best = {key: max(limit[key] for limit in limits) for key in limits[0]} if limits else {}
    summary: dict[str, Any] = {"limit_best_of_runs": best}
    if best and "server" in results:
        for name in NAMES.values():
            plain = max(value for key, value in best.items() if key.startswith(name) and "sorted" not in key)
            summary[f"share of {name}"] = round(rate_at_64(results["server"], KINDS[0]) / plain, 2)
    if "server" in results and "baseline" in results:
        for kind in KINDS:
            factor = rate_at_64(results["server"], kind) / rate_at_64(results["baseline"], kind)
            summary[f"times the server without micro-batches and cache, queries {kind}"] = round(factor, 2)
    return summary


def rate_at_64(levels: list[dict[str, Any]], kind: str) -> float:
    """Queries a second of 64 clients with queries of a kind."""
    return next(float(level["rate"]) for level in levels if level["clients"] == 64 and level["queries"] == kind)


def table(results: dict[str, Any]) -> str:
    """The results in Markdown."""
    lines = ["| what | queries | clients | queries/s | p50 ms | p99 ms | errors | server CPUs | generator CPU |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for key, rate in results["summary"]["limit_best_of_runs"].items():
        lines.append(f"| in-process loop, {key} | unique | | {rate:.1f} | | | | | |")
    for part in ("server", "baseline"):
        name = "server" if part == "server" else "server, no micro-batches, no cache"
        lines += [f"| {name} | {level_cells(level)} |" for level in results.get(part, [])]
    summary = {key: value for key, value in results["summary"].items() if key != "limit_best_of_runs"}
    lines += ["", *(f"* Server at 64 clients, {key}: {value}." for key, value in summary.items())]
    if "memory" in results:
        before, middle, after = results["memory"]["resident_mib"]
        lines.append(
            f"* Memory of a server in MiB before, amid and after {MEMORY_REQUESTS:,} requests, with the `hashing`"
        )
        lines.append(f"  encoder and a small full cache: {before}, {middle}, {after}.")
    return "\n".join(lines) + "\n"


def level_cells(level: dict[str, Any]) -> str:
    """One line of the table."""
    cells = (level["queries"], level["clients"], level["rate"], level["p50_ms"], level["p99_ms"])
    errors = sum(level["errors"].values())
    return " | ".join(map(str, (*cells, errors, level["server_cpus"], f"{level['generator_cpu_share']:.1%}")))


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "multihop")
    parser.add_argument(
        "--work", type=Path, default=Path("runs") / "bench-retriever", help="indexes, kept for the next run"
    )
    parser.add_argument("--output", type=Path, default=Path("retriever.json"), help="and a table beside it (.md)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="others are kept from --output")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--limit-of", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--loops", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure, and write after each part."""
    options = parse_options()
    if options.limit_of:
        print(json.dumps(measure_limit(options.limit_of, options.loops, read_queries(options.data), options.seconds)))
        return
    options.work.mkdir(parents=True, exist_ok=True)
    results = json.loads(options.output.read_text()) if options.output.exists() else {}
    bench = Bench(options, options.work.resolve())
    results |= {"machine": machine(), "encoder": ENCODER, "server_options": SERVER, "seconds": options.seconds}
    for part in options.parts:
        results[part] = bench.part(part)
        results["summary"] = summarise(results)
        options.output.write_text(json.dumps(results, indent=2) + "\n")
        options.output.with_suffix(".md").write_text(table(results))
        print(part, json.dumps(results["summary"]), flush=True)


if __name__ == "__main__":
    main()
