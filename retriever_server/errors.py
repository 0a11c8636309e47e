"""Errors that a user can meet; the message of each is one sentence fit to be shown as it is."""


class RetrieverServerError(Exception):
    """Base of every error that this package raises on purpose."""


class CorpusError(RetrieverServerError):
    """A corpus file that cannot be read; names the file, the line and the expected keys."""


class IndexRefused(RetrieverServerError):
    """An index folder that must not be written or served; names both sides of the mismatch."""


class EncoderError(RetrieverServerError):
    """An encoder that is unknown, not installed, or gives unusable vectors."""


class RequestError(RetrieverServerError):
    """A request that breaks the wire schema (HTTP 400)."""


class SearchError(RetrieverServerError):
    """A query that the index cannot answer (HTTP 422); never answered with arbitrary passages."""


class Overloaded(RetrieverServerError):
    """Too many searches are waiting already (HTTP 503 with Retry-After)."""
