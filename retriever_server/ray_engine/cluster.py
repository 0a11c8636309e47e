"""The Ray cluster that searches run on: a running one that is joined, or a local one that is started and stopped."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import threading
from typing import Any

import ray
from ray import serve

from retriever_server.errors import RetrieverServerError

SIGACTION_BYTES = 512  # more than any platform's struct sigaction
KNOCK_S = 5.0
_lock = threading.Lock()
_started_here = False


def connect(slots: int) -> None:
    """Join the cluster that RAY_ADDRESS names or that runs on this machine; else start a local one.

    Raises RetrieverServerError when RAY_ADDRESS cannot be reached, or the cluster has fewer than `slots` >= 1 free CPU
    slots: Ray itself would wait for them for ever.
    """
    global _started_here
    with _lock:
        if not ray.is_initialized() and not _join():
            _start_local(slots)
            _started_here = True
        free = int(ray.available_resources().get("CPU", 0))
        if free < slots:
            raise RetrieverServerError(
                f"The Ray cluster has {free} free CPU slots and {slots} are needed; lower --replicas or --threads, or "
                "add nodes."
            )
        logging.getLogger("ray.serve").setLevel(logging.ERROR)  # a replica that dies is replaced, and no news here
        serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})


def disconnect() -> None:
    """Stop the cluster if it was started here; a joined one goes on."""
    global _started_here
    with _lock:
        if _started_here:
            serve.shutdown()
            ray.shutdown()
            _started_here = False


def _start_local(slots: int) -> None:
    # slots are only a count; a reload opens the new index beside the old one
    settings: dict[str, Any] = {"num_cpus": max(2 * slots, os.cpu_count() or 1), "include_dashboard": False, **_quiet()}
    done, failures = threading.Event(), list[BaseException]()

    def start() -> None:
        try:
            _init("local", **settings)
        except BaseException as error:
            failures.append(error)
        done.set()
        # Linux kills the cluster's processes when the thread that started them ends, so this one stays
        threading.Event().wait()

    threading.Thread(target=start, name="ray-cluster", daemon=True).start()
    done.wait()
    if failures:
        sentence = " ".join(str(failures[0]).split())[:300]
        raise RetrieverServerError(f"A local Ray cluster could not be started ({sentence}).") from failures[0]


def _join() -> bool:
    address = os.environ.get("RAY_ADDRESS", "")
    try:
        _knock(address)
        _init("auto", **_quiet())
    except OSError as error:
        if address:
            raise RetrieverServerError(
                f"No Ray cluster answers at RAY_ADDRESS={address}; start one with `ray start --head`, or unset "
                "RAY_ADDRESS for a local one."
            ) from error
        return False
    return True


def _knock(address: str) -> None:
    """Raise OSError when nobody listens at host:port; Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.rpartition("/")[2].strip("[]"), int(port)), timeout=KNOCK_S).close()


def _init(address: str, **settings: Any) -> None:
    # Ray's native library takes SIGTERM over: its handler calls ours, and aborts the process three seconds later
    libc, handler = ctypes.CDLL(None), ctypes.create_string_buffer(SIGACTION_BYTES)
    libc.sigaction(signal.SIGTERM, None, handler)
    try:
        ray.init(address, **settings)
    finally:
        libc.sigaction(signal.SIGTERM, handler, None)


def _quiet() -> dict[str, Any]:
    return {"log_to_driver": False, "logging_level": logging.ERROR}
