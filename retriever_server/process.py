"""The server as a child process, started and stopped by the demo and by tests."""

from __future__ import annotations

import os
import re
import site
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from retriever_server.errors import RetrieverServerError

READY = re.compile(r"retriever ready url=(\S+)")
LOG_LINES = 8
STOP_S = 15.0


@dataclass(frozen=True)
class RunningServer:
    """A server that answers at `url`; `log_path` holds what it prints to standard error while it runs."""

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

    `options` are further arguments of the `serve` command, which here logs only warnings unless they say otherwise;
    without `log_path` the log goes when the server does. Raises RetrieverServerError, with the child's last log lines,
    when it ends or is not ready within `timeout_s` seconds.
    """
    command = ["-m", "retriever_server", "serve", "--index", str(index_dir), "--port", str(port)]
    command += ["--log-level", "warning", *options]
    with ExitStack() as ending:
        if log_path is None:
            log_path = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="retriever-"))) / "server.log"
        process = _spawn(command, log_path)
        ending.callback(_stop, process)
        yield RunningServer(_wait_until_ready(process, timeout_s, log_path), process, log_path)


def child_environment(root: Path) -> dict[str, str]:
    """Return this environment for a child that is to import a package of the folder `root`, installed or not.

    A source tree is put on PYTHONPATH; site-packages is not, for there it would come before the standard library.
    """
    installed = [Path(folder).resolve() for folder in (*site.getsitepackages(), site.getusersitepackages())]
    if root.resolve() in installed:
        return dict(os.environ)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))}


def _spawn(arguments: list[str], log_path: Path) -> subprocess.Popen[str]:
    with open(log_path, "w", encoding="utf-8") as log:
        return subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=child_environment(Path(__file__).resolve().parent.parent),
            stdin=subprocess.DEVNULL,
        )


def _wait_until_ready(process: subprocess.Popen[str], timeout_s: float, log_path: Path) -> str:
    found: list[str] = []
    reader = threading.Thread(target=_find_url, args=(process, found), daemon=True)
    reader.start()
    reader.join(timeout_s)
    if reader.is_alive():
        raise RetrieverServerError(f"The retriever was not ready within {timeout_s:g} s: {_last_lines(log_path)}")
    if not found:
        status = process.wait(STOP_S)
        raise RetrieverServerError(f"The retriever ended with status {status}: {_last_lines(log_path)}")
    return found[0]


def _find_url(process: subprocess.Popen[str], found: list[str]) -> None:
    for line in process.stdout or ():
        if ready := READY.match(line):
            found.append(ready[1])
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
