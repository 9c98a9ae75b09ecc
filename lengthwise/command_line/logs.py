"""Lines of the log: one printable line per record."""

import logging
import sys
from typing import Any


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


def configure_logs(*, of_service: bool = False) -> None:
    """Send INFO and above to stderr, with level and message unless there are earlier settings.

    Lines of a service also have time and logger, and take the place of earlier settings.
    """
    start = "%(asctime)s %(levelname)s %(name)s:" if of_service else "%(levelname)s"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter(f"{start} %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=of_service)
