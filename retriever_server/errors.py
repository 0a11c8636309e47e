"""Errors that a user can meet; the message of each is one sentence fit to be shown as it is."""


class RetrieverServerError(Exception):
    """Base of every error that this package raises on purpose."""


class CorpusError(RetrieverServerError):
    """A corpus file that cannot be read; names the file, the line and the expected keys."""


class IndexRefused(RetrieverServerError):
    """An index folder that must not be written or served; names both sides of the mismatch."""


class EncoderError(RetrieverServerError):
    """An encoder that is unknown, not installed, or gives unusable vectors."""


class RerankerError(RetrieverServerError):
    """A reranker that is unknown, not installed, or whose record does not fit its model."""


class SettingsError(RetrieverServerError):
    """Settings that contradict each other or lie outside their range."""


class RequestError(RetrieverServerError):
    """A request that breaks the wire schema (HTTP 400)."""


class SearchError(RetrieverServerError):
    """A query that the index cannot answer (HTTP 422); never answered with arbitrary passages."""


class Overloaded(RetrieverServerError):
    """Too many requests or queries are waiting already (HTTP 429 with Retry-After)."""


class Unavailable(RetrieverServerError):
    """No index is open, or the server is stopping (HTTP 503 with Retry-After)."""


class DeadlinePassed(RetrieverServerError):
    """A request whose time ran out before its answer was found (HTTP 503 with Retry-After)."""


class NotOffered(RetrieverServerError):
    """Something that this server was not started with (HTTP 404)."""
