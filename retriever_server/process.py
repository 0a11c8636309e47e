"""The server as a child process, started and stopped by the demo and by tests."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from retriever_server.errors import RetrieverServerError

READY = "retriever ready "
LOG_LINES = 8
STOP_S = 15.0


@dataclass(frozen=True)
class RunningServer:
    """A server that answers at `url`; `log_path` holds what it prints to standard error."""

    url: str
    process: subprocess.Popen[str]
    log_path: Path


@contextmanager
def start_server(
    index_dir: Path,
    port: int = 0,
    timeout_s: float = 120.0,
    log_path: Path | None = None,
    options: tuple[str, ...] = (),
) -> Iterator[RunningServer]:
    """Serve `index_dir` on loopback in a child process while the context lasts, then stop it by SIGTERM.

    `options` are further arguments of the `serve` command. Raises RetrieverServerError, with the child's last log
    lines, when it ends or is not ready within `timeout_s` seconds.
    """
    log_path = log_path or Path(tempfile.mkdtemp(prefix="retriever-")) / "server.log"
    command = [sys.executable, "-m", "retriever_server", "serve", "--index", str(index_dir), "--port", str(port)]
    with open(log_path, "w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [*command, *options],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=_environment(),
            stdin=subprocess.DEVNULL,
        )
    try:
        yield RunningServer(_wait_until_ready(process, timeout_s, log_path), process, log_path)
    finally:
        _stop(process)


def _environment() -> dict[str, str]:
    # the child finds this package even when it is imported from a source tree that is not installed
    root = str(Path(__file__).resolve().parent.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}


def _wait_until_ready(process: subprocess.Popen[str], timeout_s: float, log_path: Path) -> str:
    found: list[str] = []
    reader = threading.Thread(target=_find_ready_line, args=(process, found), daemon=True)
    reader.start()
    reader.join(timeout_s)
    if reader.is_alive():
        raise RetrieverServerError(f"The retriever was not ready within {timeout_s:g} s: {_last_lines(log_path)}")
    if not found:
        status = process.wait(STOP_S)
        raise RetrieverServerError(f"The retriever ended with status {status}: {_last_lines(log_path)}")
    return dict(part.split("=", 1) for part in found[0].split())["url"]


def _find_ready_line(process: subprocess.Popen[str], found: list[str]) -> None:
    for line in process.stdout or ():
        if line.startswith(READY):
            found.append(line.removeprefix(READY))
            return


def _last_lines(log_path: Path) -> str:
    lines = log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
    return " | ".join(lines) or "it logged nothing"


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout:
        process.stdout.close()
