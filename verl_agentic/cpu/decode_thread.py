"""The thread that owns the batch: it admits requests, advances them, and runs commands between two steps."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from verl_agentic.cpu.batch import Batch
from verl_agentic.cpu.request import Request


class EngineClosedError(RuntimeError):
    """The engine was closed while the request waited or ran."""


@dataclass
class _Command:
    """Something the decode thread does between two steps.

    Attributes:
        when_idle: wait until no request is active; nothing joins meanwhile.
    """

    run: Callable[[], Any]
    deliver: Callable[[Any], None]
    when_idle: bool = False


class DecodeThread:
    """Runs a batch for requests and commands that come from other threads.

    Attributes:
        gates: reasons to hold requests back; changed inside commands only.
        rejecting: end requests that have not joined at once, as aborted; changed inside commands only.
        unusable: given to requests that have not joined, because the model cannot serve them; changed inside commands
            only.
        weight_version: reported with every output; changed inside commands only.

    Args:
        batch: used by this thread alone.
        max_batch: most requests decoded at once; others wait in order of arrival.
        max_prefill_tokens: most prompt tokens, padding included, of one prefill; a longer prompt goes alone.
        threads: torch threads of this process.
    """

    def __init__(self, batch: Batch, *, max_batch: int, max_prefill_tokens: int, threads: int) -> None:
        self.batch = batch
        self.gates: set[str] = set()
        self.rejecting = False
        self.unusable: Exception | None = None
        self.weight_version: int | None = None
        self._max_batch, self._max_prefill_tokens, self._threads = max_batch, max_prefill_tokens, threads
        self._wake = threading.Condition()
        self._waiting: deque[Request] = deque()
        self._urgent: deque[_Command] = deque()
        self._commands: deque[_Command] = deque()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="decode", daemon=True)
        self._thread.start()

    def enqueue(self, request: Request) -> None:
        """Hand over a request; its outcome comes through `request.deliver`, which must not raise."""
        with self._wake:
            self._refuse_if_closed()
            self._waiting.append(request)
            self._wake.notify()

    def submit(
        self, run: Callable[[], Any], deliver: Callable[[Any], None], when_idle: bool = False, urgent: bool = False
    ) -> None:
        """Run something between two steps.

        Args:
            run: called by the decode thread.
            deliver: gets its result or its exception; must not raise.
            when_idle: wait until no request is active; later commands wait too, and nothing joins.
            urgent: go before commands that are not, also before those that wait for an idle batch.
        """
        with self._wake:
            self._refuse_if_closed()
            (self._urgent if urgent else self._commands).append(_Command(run, deliver, when_idle))
            self._wake.notify()

    def close(self) -> None:
        """Stop; requests in flight and commands not yet run get EngineClosedError. Idempotent."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise EngineClosedError("the engine is closed")

    def in_flight(self) -> list[Request]:
        """Running and waiting requests. Only inside a command."""
        return [*self.batch.active, *self._waiting]

    def abort(self, requests: Sequence[Request]) -> list[str]:
        """End those of the requests that are not finished; returns their ids. Only inside a command."""
        found = [request for request in requests if not request.done]
        for request in found:
            request.finish_reason = "abort"
            if request in self.batch.active:
                self.batch.remove(request)
            else:
                self._waiting.remove(request)
        self._deliver(found)
        return [request.request_id for request in found]

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        while self._wait_for_work():
            self._run_commands()
            self._admit()
            self._step()
        self._fail(self.in_flight(), EngineClosedError("the engine was closed while the request was in flight"))
        for command in (*self._urgent, *self._commands):
            command.deliver(EngineClosedError("the engine was closed before it could do this"))

    def _wait_for_work(self) -> bool:
        with self._wake:
            self._wake.wait_for(lambda: self._closed or self._has_commands() or self.batch.active or self._has_next())
            return not self._closed

    def _has_commands(self) -> bool:
        return bool(self._urgent or self._commands)

    def _has_next(self) -> bool:
        return bool(self._waiting) and (not self.gates or self._turns_away())

    def _turns_away(self) -> bool:
        return self.rejecting or self.unusable is not None

    def _run_commands(self) -> None:
        while (command := self._next_command()) is not None:
            try:
                result = command.run()
            except Exception as error:  # belongs to whoever gave the command
                result = error
            command.deliver(result)

    def _next_command(self) -> _Command | None:
        if self._urgent:
            return self._urgent.popleft()
        if self._commands and not (self._commands[0].when_idle and self.batch.active):
            return self._commands.popleft()
        return None

    def _turn_away(self) -> None:
        while self._waiting:
            request = self._waiting.popleft()
            if self.rejecting:
                request.finish_reason = "abort"
            else:
                request.error = self.unusable
            self._deliver([request])

    def _admit(self) -> None:
        if self._turns_away():
            self._turn_away()
            return
        # A command left over waits for an idle batch: nothing may join before it has run.
        while not self._has_commands() and self._has_next():
            requests = self._next_prefill()
            if not requests:
                return
            self._prefill(requests)

    def _next_prefill(self) -> list[Request]:
        requests: list[Request] = []
        longest = 0
        while self._waiting and len(self.batch.active) + len(requests) < self._max_batch:
            longest = max(longest, len(self._waiting[0].prompt))
            if requests and longest * (len(requests) + 1) > self._max_prefill_tokens:
                break
            requests.append(self._waiting.popleft())
        return requests

    def _prefill(self, requests: list[Request]) -> None:
        try:
            finished = self.batch.join(requests)
        except Exception as error:
            if len(requests) == 1:
                self._fail(requests, error)
            else:  # one of them is to blame: each gets its own try
                for request in requests:
                    self._prefill([request])
        else:
            self._deliver(finished)

    def _step(self) -> None:
        if not self.batch.active:
            return
        try:
            finished = self.batch.step()
        except Exception as error:  # a shared forward pass failed: every request in it is lost, the engine is not
            self._fail(self.batch.clear(), error)
        else:
            self._deliver(finished)

    def _deliver(self, requests: Iterable[Request]) -> None:
        for request in requests:
            request.deliver(request.error or request.output(self.weight_version))

    def _fail(self, requests: Iterable[Request], error: BaseException) -> None:
        for request in requests:
            request.error = error
        self._deliver(requests)
