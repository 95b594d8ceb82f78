"""What a command that runs for long has logged: lines on standard error, as text or as JSON."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any, Final

from .units import iso

FORMATS: Final = ("text", "json")
LEVELS: Final = ("debug", "info", "warning", "error")


def log_messages(form: str, level: str) -> None:
    """Have what embedlog logs go to standard error: in a form of FORMATS, from a level of LEVELS on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    root = logging.getLogger("embedlog")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False


class _Text(logging.Formatter):
    """A line a message; what a client has put into it cannot make it two."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return super().formatMessage(record).replace("\r", "\\r").replace("\n", "\\n")


class _Json(logging.Formatter):
    """A JSON object a message."""

    def format(self, record: logging.LogRecord) -> str:
        facts: dict[str, Any] = {
            "time": iso(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "thread": record.threadName,
            "message": record.getMessage(),
        }
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)
        return json.dumps(facts, ensure_ascii=False)
