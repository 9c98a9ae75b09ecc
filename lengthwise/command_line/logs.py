"""Lines of the log: readable text or JSON, one printable line per record."""

import json
import logging
import sys
from typing import Any, Literal


def printable(text: str) -> str:
    """Return a text with its control characters and line ends escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class TextFormatter(logging.Formatter):
    """One line per record; the trace of an exception follows, each line indented."""

    # Text from a client must not look like a record of its own, or move a terminal's cursor.
    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return "\n".join(f"  {printable(line)}" for line in super().formatException(ei).split("\n"))


class JsonFormatter(logging.Formatter):
    """One JSON object per record, with the trace of an exception in its own field."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def configure_logs(kind: Literal["text", "json"] | None = None) -> None:
    """Send INFO and above to stderr, with level and message unless there are earlier settings.

    Lines of a service, of a `kind`, also have time and logger, and replace earlier settings.
    """
    start = "%(asctime)s %(levelname)s %(name)s:" if kind else "%(levelname)s"
    handler = logging.StreamHandler(sys.stderr)
    text = TextFormatter(f"{start} %(message)s")
    handler.setFormatter(JsonFormatter() if kind == "json" else text)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=kind is not None)
