"""The errors by which clients of HTTP services fail."""

from __future__ import annotations

from typing import ClassVar


class ServiceError(Exception):
    """A call that failed for good, in one sentence.

    `kind` is one of connection, timeout, overloaded, server, refused (the request is at fault), shape, deadline, or a
    further one of the service; `status` is the HTTP status where one other than 200 was the cause.
    """

    service: ClassVar[str] = "service"

    def __init__(self, url: str, kind: str, what: str, status: int | None = None) -> None:
        super().__init__(url, kind, what, status)
        self.url = url
        self.kind = kind
        self.what = what
        self.status = status

    def __str__(self) -> str:
        return f"{self.service} at {self.url} {self.what}"


class RetrieverError(ServiceError):
    """A call of a retriever; further kinds are canary (the start-up check found wrong passages), slow (it found too few
    queries per second).
    """

    service = "retriever"


class ChatError(ServiceError):
    """A call of a chat endpoint; further kinds are truncated (the reply was cut off) and empty (there is no text)."""

    service = "chat endpoint"

    @property
    def reason(self) -> str:
        """A short code for counting: timeout, connection, status, shape, truncated or empty."""
        if self.status is not None or self.kind == "refused":
            return "status"
        return "timeout" if self.kind == "deadline" else self.kind


class RetryableError(Exception):
    """A failure of one attempt that another attempt may mend, after `wait_s` seconds if the server said so."""

    def __init__(self, error: ServiceError, wait_s: float = 0.0) -> None:
        super().__init__(str(error))
        self.error = error
        self.wait_s = wait_s
