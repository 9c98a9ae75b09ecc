"""Requests in the log of a vLLM server, each from several lines.

Source: `RequestLogger` of vLLM (vllm/entrypoints/logger.py, since 0.30
vllm/entrypoints/serve/utils/request_logger.py). Older versions have the prompt and the token ids in
the lines of request and response. Newer versions write separate "details" at DEBUG only.
"""

import ast
import logging
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import Any, Final

from lengthwise.tables.files import Row
from lengthwise.tables.gateways import VLLM_PATTERNS, WORDS
from lengthwise.tables.prompt_text import prompt_of
from lengthwise.tables.times import instant_of
from lengthwise.tables.values import unpacked

CUT: Final = "cut at --max-log-len"
_PATTERNS: Final = {name: re.compile(text) for name, text in VLLM_PATTERNS.items()}
_DAY_S: Final = 86_400
_LINGER, _OPEN, _BODIES = 1000, 50_000, 10_000
"""Lines in which another choice may follow; most open requests; most bodies without a request."""
_USER_TURNS: Final = tuple(
    zip(*(map(re.compile, WORDS[name]) for name in ("turn_starts", "turn_ends")), strict=True)
)
_warnings = logging.getLogger(__name__)


@dataclass(slots=True)
class _Request:
    row: Row
    starts: list[str] = field(default_factory=list)
    deltas: list[int] = field(default_factory=list)
    choices: list[Row] = field(default_factory=list)
    details: Row = field(default_factory=dict)
    num_choices: int | None = None
    max_tokens: int | None = None
    num_characters: int = 0
    last_line: int = 0
    """Number of the answer's newest line; 0 without an answer."""


def vllm_rows(lines: Iterable[str]) -> Iterator[Row]:
    """Yield a row per choice of a request, and one per request without a usable answer.

    A row holds id, prompt, prompt_tokens, output_tokens, arrival_s, model and finish_reason, as far
    as the log states them. Reasons stand under `left_out` (no length), `censored` (the length is a
    lower bound) and `prompt_censored` (prompt or prompt_tokens are cut).

    Args:
        lines: all lines of a log in order, also in the wrappers of Docker and Kubernetes.
    """
    log = _Log()
    for message, time, is_outer in _messages(lines):
        log.read(message, time, is_outer)
        yield from log.ready
        log.ready.clear()
    for name in list(log.open):
        log.close(name)
    yield from log.ready
    if log.num_lines and log.limit is None:
        _warnings.warning("no line has vLLM's arguments: with --max-log-len counts are too low")


def _messages(lines: Iterable[str]) -> Iterator[tuple[str, Any, bool]]:
    """Yield the server's messages, each with its time and whether a wrapper states that."""
    parts: dict[str, str] = {}
    for line in lines:
        text, time, stream, is_part = line.lstrip("\ufeff"), None, "", False
        entry = unpacked(text) if text.startswith("{") else None
        if isinstance(entry, dict) and isinstance(entry.get("log"), str) and "stream" in entry:
            text, time, stream = entry["log"], entry.get("time"), str(entry["stream"])
            is_part = not text.endswith("\n") and entry.keys() <= {"log", "stream", "time", "attrs"}
        elif (cri := _PATTERNS["cri"].match(text)) is not None:
            time, stream, tag, text = cri.groups()
            is_part = tag == "P"
        text = parts.pop(stream, "") + text.rstrip("\r\n")
        if is_part:
            parts[stream] = text
            continue
        if stream:
            entry = unpacked(text) if text.startswith("{") else None
        if isinstance(entry, dict):
            time = time or _first(entry, ("asctime", "timestamp", "@timestamp", "time", "ts"))
            text = str(_first(entry, ("message", "msg", "event", "text", "log", "line")))
        text = _PATTERNS["colour"].sub("", text) if "\x1b" in text else text
        is_bare = text.startswith(("Received ", "Generated ", "Request "))
        if (is_bare and isinstance(entry, dict)) or _PATTERNS["arguments"].match(text):
            yield text, time, bool(stream)
        elif (header := _PATTERNS["header"].match(text)) is not None:
            own = _PATTERNS["time"].search(header[0])
            yield text[header.end() :], time or (own and own[0]), bool(stream)


def _first(entry: Row, keys: Iterable[str]) -> Any:
    return next((entry[key] for key in keys if entry.get(key) is not None), None)


class _Log:
    """Open requests of a log, and rows that are ready."""

    def __init__(self) -> None:
        self.ready: list[Row] = []
        self.open: dict[str, _Request] = {}
        self.bodies: dict[str, Row] = {}
        self.answered: deque[tuple[int, str]] = deque()
        self.clock, self.day, self.newest_s, self.earlier_s, self.num_lines = "", "", 0.0, 0, 0
        self.model: str | None = None
        self.limit: float | None = None
        """Most characters and token ids of a text; None before the line of arguments."""

    def read(self, message: str, time: Any, is_outer: bool) -> None:
        """Take in a message; rows whose last line it is are ready."""
        if (line := _PATTERNS["line"].match(message)) is None:
            if _PATTERNS["arguments"].match(message):
                model, limit = (
                    _PATTERNS["model"].search(message),
                    _PATTERNS["limit"].search(message),
                )
                self.model, self.limit = model and model[1], int(limit[1]) if limit else math.inf
            return
        self.num_lines += 1
        seconds = self._seconds(time, is_outer)
        if line["what"] == "Generated response":
            self._read_answer(line)
        elif line["body"] is None:
            self._read_start(line, seconds)
        else:
            body = unpacked(line["body"])
            body = body if isinstance(body, dict) else {}  # a text if --max-log-len cut it
            found = {"model": body.get("model"), "prompt": prompt_of(body), "arrival_s": seconds}
            self.bodies[line["id"]] = {key: v for key, v in found.items() if v is not None}
            if len(self.bodies) > _BODIES:
                del self.bodies[next(iter(self.bodies))]
        while self.answered and self.answered[0][0] <= self.num_lines - _LINGER:
            number, name = self.answered.popleft()
            if name in self.open and self.open[name].last_line == number:
                self.close(name)

    def _seconds(self, time: Any, is_outer: bool) -> float | None:
        """Return seconds on the log's first clock. A fall by more than a day is a new year."""
        has_year = is_outer or not _PATTERNS["undated"].match(str(time))
        clock = "outer" if is_outer else "dated" if has_year else "undated"
        seconds = instant_of(time if has_year else f"2000-{time}")
        self.clock = self.clock or (clock if seconds is not None else "")
        if seconds is None or clock != self.clock or has_year:
            return seconds if clock == self.clock else None
        if seconds < self.newest_s - _DAY_S:
            self.earlier_s += 366 * _DAY_S
        elif (self.day, time[:5]) == ("02-28", "03-01"):  # no leap year, unlike 2000
            self.earlier_s -= _DAY_S
        self.newest_s, self.day = seconds, time[:5]
        return self.earlier_s + seconds

    def _read_start(self, line: re.Match[str], seconds: float | None) -> None:
        name, rest, step = line["id"], line["rest"], line["details"] or "received"
        request = self.open.get(name)
        if request is not None and (request.last_line or step in request.starts):
            self.close(name)
        if name not in self.open:
            part = _PATTERNS["part"].match(name)
            keys = [name, part[0] if part else name]
            keys += [key.partition("-")[2] for key in keys]
            body = next((self.bodies.pop(key) for key in keys if key in self.bodies), {})
            row = {"model": self.model, "arrival_s": seconds} | body
            row = {key: value for key, value in row.items() if value is not None}
            self.open[name] = _Request({"id": name} | row)
            if len(self.open) > _OPEN:
                self.close(next(iter(self.open)))
        request = self.open[name]
        request.starts.append(step)
        if line["text"] not in (None, "None"):
            with suppress(SyntaxError, ValueError):
                text = ast.literal_eval(line["text"])
                request.num_characters = len(text)
                request.row.setdefault("prompt", user_turn(text))
        if (number := _number_of_ids(rest)) is not None:
            request.row["prompt_tokens"] = number
        if params := _PATTERNS["params"].search(rest):
            request.num_choices, request.max_tokens = (
                int(number) if number else None for number in params.group(2, 3)
            )
            if params[4]:
                request.row["model"] = params[4]
            if params[1] in ("PoolingParams", "None"):
                request.row["left_out"] = "it generates nothing"
                self.close(name)

    def _answered(self, name: str) -> _Request:
        """Return the request of an answer, also one whose start the log lacks."""
        mark = "-" if name.startswith("cmpl-") else "_"
        numbered = (f"{name}{mark}{number}" for number in count())
        parts = list(takewhile(self.open.__contains__, numbered))
        if not parts or (mark == "_" and name in self.open):
            left_out = {"id": name, "left_out": "its start is missing"}
            return self.open.setdefault(name, _Request(left_out))
        request = self.open[parts[0]]
        for part in parts[1:]:
            for several in (request, self.open[part]):
                several.row["left_out"] = "several prompts share the id of an answer"
            request.num_choices = None
            self.close(part)
        return request

    def _read_answer(self, line: re.Match[str]) -> None:
        request, text = self._answered(line["id"]), line["text"] or ""
        request.last_line = self.num_lines
        number, finish = _number_of_ids(line["rest"]), _PATTERNS["finish"].search(line["rest"])
        found: Row = {"finish_reason": finish[1]} if finish else {}
        if line["stream"] == " (streaming delta)":
            request.deltas.append(number or 0)
            request.row |= found
            return
        if number is not None:
            found |= {"output_tokens": number, "ids": number}
        if counted := _PATTERNS["counted"].fullmatch(text):
            found["output_tokens"] = int(counted[1])
        if request.details or not line["details"]:
            request.choices.append(request.details | ({} if line["details"] else found))
        request.details = found if line["details"] else {}
        self.answered.append((self.num_lines, request.row["id"]))
        if len(request.choices) == request.num_choices:
            self.close(request.row["id"])

    def close(self, name: str) -> None:
        """Make the rows of a request ready."""
        request = self.open.pop(name)
        row, choices = request.row, request.choices + [request.details] * bool(request.details)
        if not request.last_line:
            row.setdefault("left_out", "it has no answer")
        elif not choices and "finish_reason" not in row:
            row["censored"] = "the stream is broken off"
        if request.deltas and not all("output_tokens" in choice for choice in choices or [{}]):
            if max(request.num_choices or 1, len(choices)) > 1:
                row.setdefault("left_out", "deltas of several choices cannot be divided")
            elif tokens := sum(request.deltas):
                choices = [{"output_tokens": tokens, "ids": max(request.deltas)}]
        if "left_out" in row:
            self.ready.append(row)
            return
        for number, choice in enumerate(choices or [{}]):
            ids = choice.pop("ids", 0)
            row = request.row | choice | {"answer": f"{name}#{number}"}
            is_end = row.get("output_tokens", -1) == request.max_tokens
            finish = row.get("finish_reason", "length" if is_end else None)
            if finish in ("abort", "error") or (
                finish == "length" and not _PATTERNS["bench"].fullmatch(name)
            ):
                row.setdefault("censored", f"finish_reason is {finish}")
            # An answer that ends where the client set it is whole, whatever the limit of the log.
            limit, is_whole = self.limit or math.inf, is_end and finish == "length"
            if ids >= limit and not is_whole:
                row["censored"] = CUT
            if max(request.num_characters, row.get("prompt_tokens", 0)) >= limit:
                row["prompt_censored"] = CUT
            self.ready.append(row)


def _number_of_ids(rest: str) -> int | None:
    ids = found[1].strip(", ") if (found := _PATTERNS["ids"].search(rest)) else None
    return None if ids is None else ids.count(",") + bool(ids)


def user_turn(prompt: str) -> str:
    """Return the user's newest turn in a prompt by a chat template; else the prompt."""
    for starts, ends in _USER_TURNS:
        turn, place = "", 0
        while (start := starts.search(prompt, place)) and (end := ends.search(prompt, start.end())):
            turn, place = prompt[start.end() : end.start()].strip(), end.end()
        if place:
            return turn or prompt
    return prompt
