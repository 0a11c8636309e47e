"""Logs as one JSON object a line on standard error; never a query's text nor a body."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

LEVELS = ("debug", "info", "warning", "error")


class JsonFormatter(logging.Formatter):
    """One JSON object a record: time, level, message, the fields given as `extra={"fields": {...}}`, the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter.format."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_as_json(level: str) -> None:
    """Write records of `level` (one of LEVELS) and above to standard error; other packages' from warning on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=max(logging.WARNING, _number(level)), handlers=[handler], force=True)
    logging.getLogger("retriever_server").setLevel(_number(level))
    # it warns whenever a request finds no idle thread, which the spare threads refuse a moment later
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[level.upper()]
