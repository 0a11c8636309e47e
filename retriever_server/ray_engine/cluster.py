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
    """Join the cluster of RAY_ADDRESS, or that `ray start` began on this machine; else start a local one.

    RAY_ADDRESS=local starts one in any case. Raises RetrieverServerError when RAY_ADDRESS cannot be reached, or the
    cluster has fewer than `slots` >= 1 free CPU slots: Ray itself would wait for them for ever.
    """
    global _started_here
    with _lock:
        if not ray.is_initialized():
            _started_here = _init_in_a_lasting_thread(slots)
        free = int(ray.available_resources().get("CPU", 0))
        if free < slots:
            raise RetrieverServerError(
                f"The Ray cluster has {free} free CPU slots and {slots} are needed; lower --replicas or --threads, or "
                "add nodes."
            )
        logging.getLogger("ray.serve").setLevel(logging.ERROR)  # a replica that dies is replaced, and no news here
        serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})


def disconnect() -> bool:
    """Stop the cluster if it was started here, and return whether it was; a joined one goes on."""
    global _started_here
    with _lock:
        stopped, _started_here = _started_here, False
        if stopped:
            serve.shutdown()
            ray.shutdown()
    return stopped


def _init_in_a_lasting_thread(slots: int) -> bool:
    done, failures, started = threading.Event(), list[Exception](), list[bool]()

    def work() -> None:
        try:
            started.append(_join_or_start(slots))
        except Exception as error:
            failures.append(error)
        done.set()
        # Linux kills a cluster's processes when the thread that started them ends, so this one stays
        threading.Event().wait()

    threading.Thread(target=work, name="ray-cluster", daemon=True).start()
    done.wait()
    if failures:
        raise _sentence(failures[0]) from failures[0]
    return started[0]


def _join_or_start(slots: int) -> bool:
    """Return whether a cluster was started."""
    _knock(os.environ.get("RAY_ADDRESS", ""))
    try:
        # slots are only a count; a reload opens the new index beside the old one
        _init(num_cpus=max(2 * slots, os.cpu_count() or 1), include_dashboard=False)
    except ValueError:  # there is a cluster, so that the number of its slots is not ours to say
        _init()
        return False
    return True


def _knock(address: str) -> None:
    """Raise OSError when nobody listens at host:port; Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.rpartition("/")[2].strip("[]"), int(port)), timeout=KNOCK_S).close()


def _init(**settings: Any) -> None:
    # Ray's native library takes SIGTERM over: its handler calls ours, and aborts the process three seconds later
    libc, handler = ctypes.CDLL(None), ctypes.create_string_buffer(SIGACTION_BYTES)
    libc.sigaction(signal.SIGTERM, None, handler)
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **settings)
    finally:
        libc.sigaction(signal.SIGTERM, handler, None)


def _sentence(error: Exception) -> RetrieverServerError:
    address = os.environ.get("RAY_ADDRESS", "")
    if address and isinstance(error, OSError):
        return RetrieverServerError(
            f"No Ray cluster can be joined at RAY_ADDRESS={address}; start one with `ray start --head`, set "
            "RAY_AUTH_MODE as it was set there, or unset RAY_ADDRESS for a local one."
        )
    reason = " ".join(str(error).split())[:300]
    return RetrieverServerError(f"Ray could not be started ({reason}); RAY_ADDRESS=local starts a cluster of its own.")
