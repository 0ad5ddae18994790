"""Log lines: one JSON object each, on standard error."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any


def log(event: str, **fields: Any) -> None:
    """Write a line about something that happened."""
    line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **fields}
    with suppress(OSError):  # standard error may be a file on a full disk
        print(json.dumps(line, default=str), file=sys.stderr, flush=True)


class Lines(logging.Handler):
    """What libraries log, as such lines."""

    def emit(self, record: logging.LogRecord) -> None:
        error = {} if record.exc_info is None else {"error": logging.Formatter().formatException(record.exc_info)}
        log("log", level=record.levelname.lower(), logger=record.name, message=record.getMessage(), **error)


CONFIG: dict[str, Any] = {
    "version": 1, "disable_existing_loggers": False,
    "handlers": {"lines": {"class": "taurank.serve.logs.Lines"}},
    "loggers": {"uvicorn": {"handlers": ["lines"], "level": "WARNING"}},
}  # fmt: skip
