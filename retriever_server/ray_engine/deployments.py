"""Deployments of replicas on a Ray cluster, and calls to them that outlive the death of a replica."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from ray import serve
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import DeploymentUnavailableError, ReplicaUnavailableError

from retriever_server.errors import IndexRefused, RetrieverServerError, Unavailable

CALL_S = 120.0
ATTEMPTS = 6
FIRST_PAUSE_S = 0.05
QUEUED = 4  # calls that a replica may hold: with one at a time it would idle while the next one is routed
# Ray puts a replica's error into a text with its traceback
_OWN_ERROR = re.compile(r"\b(?:IndexRefused|EncoderError|RerankerError|SettingsError): ([^\n]+)")
_numbers = count(1)


@dataclass(frozen=True)
class Target:
    """A class to run with its arguments, `replicas` times, each with `cpus` slots and `gpus` GPUs."""

    kind: type
    arguments: tuple[Any, ...]
    replicas: int
    cpus: int
    gpus: int = 0


class Deployment:
    """Equal replicas, `name` on the cluster; a call goes to the one that is least busy."""

    def __init__(self, name: str, handle: Any) -> None:
        self.name = name
        self._handle = handle

    def call(self, method: str, *arguments: Any) -> Any:
        """Return what `method` returns in a replica; see `call_all`."""
        return call_all([(self, method, arguments)])[0]

    def send(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """Start a call and return Ray's response."""
        return getattr(self._handle, method).remote(*arguments)


def call_all(calls: Sequence[tuple[Deployment, str, tuple[Any, ...]]]) -> list[Any]:
    """Make calls at the same time and return their values in order; one whose replica dies is made on another.

    Raises the error of this package that a replica raised, Unavailable when no replica answers.
    """
    responses = [deployment.send(method, arguments) for deployment, method, arguments in calls]
    return [_value(response, *call) for response, call in zip(responses, calls, strict=True)]


def _value(response: Any, deployment: Deployment, method: str, arguments: tuple[Any, ...]) -> Any:
    for attempt in range(ATTEMPTS):
        try:
            return response.result(timeout_s=CALL_S)
        except RayTaskError as error:
            raise _own(error) from None
        except TimeoutError as error:
            raise Unavailable(f"No Ray replica answered within {CALL_S:g} s; look at `ray status`.") from error
        except (RayActorError, DeploymentUnavailableError, ReplicaUnavailableError) as error:
            lost = error
        time.sleep(FIRST_PAUSE_S * 2**attempt)
        response = deployment.send(method, arguments)
    raise Unavailable(f"{ATTEMPTS} Ray replicas in turn died or were lost during a search; try again later.") from lost


def _own(error: RayTaskError) -> BaseException:
    """Return the error as the replica raised it."""
    cause = error.cause
    return cause if isinstance(cause, Exception) else error


def deploy(targets: Sequence[Target]) -> list[Deployment]:
    """Start deployments, all at the same time, and return them once every replica has opened.

    Raises IndexRefused with the sentence of a replica that refused, RetrieverServerError where Ray failed.
    """
    names = [f"retriever-{os.uname().nodename}-{os.getpid()}-{next(_numbers)}" for _ in targets]
    applications = [
        serve.RunTarget(_application(target), name=name, route_prefix=None)
        for name, target in zip(names, targets, strict=True)
    ]
    try:
        handles = serve.run_many(applications)
    except RuntimeError as error:
        reason = _reason(names, error)
        for name in names:
            remove(name)
        raise reason from error
    return [Deployment(name, handle) for name, handle in zip(names, handles, strict=True)]


def remove(name: str) -> None:
    """Delete a deployment from the cluster; one that is gone already is passed over."""
    serve.delete(name)


def _application(target: Target) -> Any:
    deployment = serve.deployment(
        target.kind,
        num_replicas=target.replicas,
        max_ongoing_requests=QUEUED,
        max_constructor_retry_count=1,
        graceful_shutdown_timeout_s=10,
        graceful_shutdown_wait_loop_s=0.2,
        logging_config={"log_level": "WARNING", "enable_access_log": False},
        ray_actor_options={"num_cpus": target.cpus, "num_gpus": target.gpus},
    )
    return deployment.bind(*target.arguments)


def _reason(names: Sequence[str], error: RuntimeError) -> RetrieverServerError:
    applications = serve.status().applications
    messages = [str(error)]
    for name in names:
        if name in applications:
            messages += [status.message for status in applications[name].deployments.values()]
    for message in messages:
        if found := _OWN_ERROR.search(message):
            return IndexRefused(found[1])
    last = " ".join(messages[-1].split())[-300:]
    return RetrieverServerError(f"Ray could not start the replicas ({last}); look at Ray's logs.")
