"""A timeline written while an engine serves: one line per finished request.

`read_timeline` reads the file. Aborted requests have no line. A line that cannot be written is
dropped.
"""

import errno
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from pathlib import Path
from typing import Any, Final

from lengthwise.errors import ConfigError, raised_as
from scheduler_adapters.timeline.background import BackgroundWriter
from scheduler_adapters.timeline.observer import RunObserver
from scheduler_adapters.views import RequestView

VARIABLE: Final = "LENGTHWISE_TIMELINE"
"""Environment variable of the engine process with the path of the file."""
_TIMES: Final = {"arrival_s", "scheduled_s", "answer_scheduled_s"}


@dataclass(slots=True)
class _Open:
    scheduled_s: float
    token_s: list[float] = field(default_factory=list)
    reasoning_tokens: int | None = None
    """None until the end of thinking is reported."""
    answer_scheduled_s: float = nan


class TimelineFile:
    """Appends rows to the .jsonl file at `path`, in a thread of its own.

    The times of a row and its `start_s` are on one clock; the file has the times after `start_s`.
    Raises ConfigError if the file cannot be written.
    """

    def __init__(self, path: str) -> None:
        why = f"timeline {path} cannot be written ({{}}); choose another place"
        with raised_as(ConfigError, why, OSError):
            # Without O_NONBLOCK a pipe that nobody reads would hold up the start.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
            self._file = os.open(path, flags, 0o644)
            os.set_blocking(self._file, True)
        self._writer = BackgroundWriter[dict[str, Any]]("timeline", self._write)
        self.drops, self.put = self._writer.drops, self._writer.put

    def close(self) -> None:
        if self._writer.close() and self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, rows: Sequence[dict[str, Any]]) -> None:
        for row in rows:
            start_s = row.pop("start_s")
            row["token_s"] = [round(max(0.0, each - start_s), 6) for each in row["token_s"]]
            times = {name: row[name] for name in _TIMES if row.get(name) is not None}
            row |= {name: round(max(0.0, each - start_s), 6) for name, each in times.items()}
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        if not os.fstat(self._file).st_nlink:
            raise OSError(errno.ENOENT, "the file was removed")
        # Several engines may append: each writes whole lines in one call.
        if (written := os.write(self._file, content)) < len(content):
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise OSError(errno.ENOSPC, "the disk is full")


def finished_row(
    request: RequestView, token_s: Sequence[float], *, start_s: float, **more: Any
) -> dict[str, Any]:
    """Return a finished request as a row of a `TimelineFile`; `more`: further columns."""
    names = ("request_id", "arrival_s", "prompt_tokens", "score", "user_class", "tbt_s")
    row = {name: getattr(request, name) for name in (*names, "preemptions")}
    row |= {"output_tokens": len(token_s), "scheduled_s": None, "rejected": False}
    return row | more | {"start_s": start_s, "token_s": token_s}


class TimelineLog(RunObserver[_Open]):
    """Appends the timeline of engine number `instance` to the .jsonl file at `path`.

    Times are in seconds after `start_s` on the engine's clock, which may be set anew until the
    first request has finished. Raises ConfigError if the file cannot be written.
    """

    def __init__(self, path: str, *, start_s: float, instance: int = 0) -> None:
        super().__init__()
        self.start_s = start_s
        self._instance = instance
        self._step_end_s = nan
        """End of the newest step; the next step starts there while the engine has requests."""
        self.file = TimelineFile(path)
        self.drops = self.file.drops

    def admitted(self, request: RequestView, now_s: float) -> None:
        self.open.setdefault(request.request_id, _Open(now_s))

    def began(self, one: _Open) -> None:
        if one.reasoning_tokens == len(one.token_s) > 0:  # the first answering token
            one.answer_scheduled_s = self._step_end_s

    def took(self, one: _Open, step_s: list[float], each: int) -> None:
        one.token_s += step_s * each

    def thinking_ended(self, request: RequestView, now_s: float) -> None:
        self.take(request.request_id, ends=True)
        served = self.open.get(request.request_id)
        if served is not None and served.reasoning_tokens is None:
            served.reasoning_tokens = len(served.token_s)

    def finished(self, request: RequestView, now_s: float) -> None:
        done = self.open.get(request.request_id)
        self.withdrawn(request, now_s)
        if done is None or not done.token_s:
            return
        thought, answer_s = done.reasoning_tokens, done.answer_scheduled_s
        if thought is None:
            thought = min(request.thinking_tokens, len(done.token_s))
        row = finished_row(
            request,
            done.token_s,
            start_s=self.start_s,
            reasoning_tokens=thought,
            scheduled_s=done.scheduled_s,
            instance=self._instance,
            answer_scheduled_s=None if isnan(answer_s) else answer_s,
        )
        self.file.put(row)

    def stepped(self, now_s: float) -> None:
        self._step_end_s = now_s

    def close(self) -> None:
        self.file.close()


def require_writable(path: Path) -> None:
    """Raise ConfigError unless a timeline can be written at `path`, and read again."""
    if path.suffix != ".jsonl":
        raise ConfigError(f"timeline is {path}; use a name that ends in .jsonl")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(f"timeline is {path}; use a folder that exists and can be written")
