"""Log formats of the entry points: lines of text, or one JSON object per line."""

from __future__ import annotations

import json
import logging
from typing import Final

FORMATS: Final = ("text", "json")


class JsonFormatter(logging.Formatter):
    """One JSON object per record, the exception's trace in a field of its own."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def configure_logs(kind: str) -> None:
    """Send INFO and above to stderr, as "text" or "json"."""
    handler = logging.StreamHandler()
    if kind == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
