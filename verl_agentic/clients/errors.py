"""The one error by which a client of the retriever fails."""

from __future__ import annotations


class RetrieverError(Exception):
    """A call that failed for good, in one sentence.

    `kind` is one of connection, timeout, overloaded, server, refused (the request is at fault), shape, deadline,
    canary (the start-up check found wrong passages), slow (it found too few queries per second).
    """

    def __init__(self, url: str, kind: str, what: str) -> None:
        super().__init__(url, kind, what)
        self.url = url
        self.kind = kind
        self.what = what

    def __str__(self) -> str:
        return f"retriever at {self.url} {self.what}"


class RetryableError(Exception):
    """A failure of one attempt that another attempt may mend, after `wait_s` seconds if the server said so."""

    def __init__(self, error: RetrieverError, wait_s: float = 0.0) -> None:
        super().__init__(str(error))
        self.error = error
        self.wait_s = wait_s
