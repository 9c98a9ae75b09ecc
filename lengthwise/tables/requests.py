"""Rows of a file to requests: the values at the paths of its format, and their token counts."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any, Final, NamedTuple

from lengthwise.errors import DataError
from lengthwise.tables.files import BadRow, Row
from lengthwise.tables.gateways.formats import REDACTED, TABLE, LogFormat
from lengthwise.tables.options import SKIP, ReadingOptions, RecordOptions
from lengthwise.tables.prompt_text import prompt_of
from lengthwise.tables.times import Time, time_of
from lengthwise.tables.token_counts import CACHED_BESIDE, TokenCounts, settle, token_counter
from lengthwise.tables.values import count_of, first_at, shape_of, unpacked, value_at, way_to

OPTIONS: Final = {
    "prompt": "--prompt-column",
    "output_tokens": "--length-column",
    "prompt_tokens": "--prompt-tokens-column",
    "arrival_s": "--arrival-column",
    "model": "--model-column",
}
COUNTS: Final = ("prompt_tokens", "output_tokens", "reasoning_tokens", "answer_tokens")
_FIELDS: Final = (
    *("output_tokens", "prompt_tokens", "reasoning_tokens", "total_tokens", "cached_tokens"),
    *("output_parts", "model", "arrival_s", "request_id", "finish_reason", "limit", "choices"),
    *("broken", "answer", "censored", "prompt_cut"),
)
_MORE: Final = {
    "prompt": " (of fit: --data.prompt-column)",
    "output_tokens": " (of fit: --data.length-column), or count texts by --tokenizer",
    "prompt_tokens": ", or add --scores bundle:PATH, whose tokenizer counts prompt tokens",
}
_SHOWN: Final = 30
_MOST_SHAPES: Final = 4096

_Way = tuple[str, tuple[str, ...]]
"""A path, and its keys in rows of one shape; no keys: `value_at` walks."""


class LeftOut(str):
    """Reason in the place of a row that is no request to learn from or to replay."""


@dataclass(kw_only=True, eq=False)
class Reading:
    """Columns that one reading needs, and the tallies of rows without a request."""

    options: ReadingOptions
    needs: Sequence[str]
    wants: Sequence[str]
    extras: Mapping[str, Sequence[str]]
    """Further column -> its names in a plain table."""
    is_lenient: bool
    left_out: Counter[str] = field(default_factory=Counter)
    warned: Counter[str] = field(default_factory=Counter)
    """Warning -> rows; 0 for one of the whole log."""
    given: dict[str, str] = field(init=False)
    """Our column -> the path that an option states for it."""

    def __post_init__(self) -> None:
        options = self.options
        columns = ("prompt", "model", "prompt_tokens", "arrival")
        given = {name: getattr(options, f"{name}_column", None) for name in columns}
        given = {"arrival_s" if name == "arrival" else name: path for name, path in given.items()}
        given["output_tokens"] = next(iter(options.length_column), None)
        self.given = {name: path for name, path in given.items() if path}
        self.further = options.length_column[1:]
        """Columns of lengths beside the first."""
        self.model = options.model if isinstance(options, RecordOptions) else None
        """The only model whose rows are read."""
        self.count_tokens = token_counter(options.tokenizer) if options.tokenizer else None

    def leave_out(self, reason: LeftOut | BadRow, path: Path, row: int) -> None:
        """Count a row without a request. Raises DataError for a bad one unless it is skipped."""
        if isinstance(reason, LeftOut):
            self.left_out[str(reason)] += 1
            return
        if self.options.on_bad_rows == "error" and not self.is_lenient:
            raise DataError(f"{reason}; {SKIP}", path=path, row=row)
        self.left_out[reason.partition(" (")[0]] += 1


@dataclass(slots=True)
class LoggedRequest:
    """Values and counts of one row about its request."""

    known: LogFormat
    row: Mapping[str, Any]
    values: dict[str, Any]
    """Field -> value, as it stands in the row."""
    sources: dict[str, str]
    """Field -> the path or rule that it is from."""
    prompt: str | None
    counts: dict[str, int | None]
    time: Time | str
    """The time of arrival, or the reason why there is none."""
    doubt: str
    """Disagreement of the counts; empty without."""


class _Plan(NamedTuple):
    """Ways to what is read in rows of one shape."""

    prompt: tuple[_Way, ...]
    fields: dict[str, tuple[_Way, ...]]
    checks: tuple[tuple[_Way, tuple[Any, ...], bool], ...]
    """Ways, values, and whether an answered row has one of them."""


class RequestReader:
    """Reader of the rows of one file; ways to the fields are found once per shape of rows."""

    def __init__(
        self, reading: Reading, path: Path, known: LogFormat, sample: Iterable[Row | BadRow]
    ) -> None:
        """Find the columns in the first rows. Raises DataError for a needed one that none has."""
        self.path, self.known, self.given = path, known, reading.given
        self._count_tokens, self._tokenizer = reading.count_tokens, str(reading.options.tokenizer)
        paths = {name: getattr(known, name) for name in ("prompt", *_FIELDS)}
        paths |= {name: (path,) for name, path in self.given.items()}
        if known is TABLE:
            paths |= {name: tuple(names) for name, names in reading.extras.items()}
        paths |= {name: (name,) for name in ("answer_tokens", *reading.further)}
        self._fields = paths
        self._plans: dict[tuple[Any, ...], _Plan] = {}
        rows = [row for row in sample if not isinstance(row, BadRow)]
        if rows:
            self._require_columns(reading, rows)
        every_path = (*chain(*paths.values()), *known.answered, *known.no_load)
        self.unread: tuple[str, ...] = ()
        if known is TABLE and rows:
            read = {path.partition(".")[0] for path in every_path} | set(every_path)
            self.unread = tuple(name for name in rows[0] if name not in read)
        self._inner = frozenset(
            ".".join(keys[start:end])
            for keys in (path.split(".") for path in every_path)
            for end in range(1, len(keys))
            for start in range(end)
        )

    def _require_columns(self, reading: Reading, rows: Sequence[Row]) -> None:
        asked = [n for n in self.given if n in (*reading.needs, "model", "arrival_s")]
        if self.known is TABLE:
            every = reading.needs if reading.is_lenient else (*reading.needs, *reading.wants)
            asked += [name for name in every if name != "arrival_s"]
            asked += ["model"] * (reading.model is not None)
        missing = {
            self.given.get(name, name): name
            for name in (*asked, *reading.further)
            if not any(first_at(row, self._fields[name]) is not None for row in rows)
        }
        if missing:
            length = OPTIONS["output_tokens"]
            given = [f"{OPTIONS.get(name, length)} COLUMN" for name in missing.values()]
            more = "".join(_MORE.get(name, "") for name in missing.values())
            advice = f"; give {' '.join(dict.fromkeys(given))}{more}"
            raise DataError(no_column(list(missing), _leaves(rows[0]), advice), path=self.path)

    def read(self, row: Row | BadRow) -> LoggedRequest | LeftOut | BadRow:
        """Return the request of a row, or the reason why the row is none."""
        if isinstance(row, BadRow):
            return row
        known = self.known
        prepared = row if known.prepare is None else known.prepare(row)
        plan = self._plan(prepared)
        if (reason := _no_request(prepared, known, plan)) is not None:
            return reason
        values, sources = _values(prepared, plan)
        prompt = _prompt(prepared, plan, sources)
        found = self._counts(values, sources, prompt)
        if found.rule:
            name = "prompt_tokens" if found.rule == CACHED_BESIDE else "output_tokens"
            sources[name] = f"{found.rule} ({sources.get(name, '')})"
        output, reasoning = found.output, found.reasoning
        answer = None if output is None or reasoning is None else output - reasoning
        if known is TABLE and "answer_tokens" in prepared:
            answer = count_of(prepared["answer_tokens"])
        if output is None and reasoning is not None and answer is not None:
            output = reasoning + answer
        counts = dict(zip(COUNTS, (found.prompt, output, reasoning, answer), strict=True))
        time = time_of(values.get("arrival_s"))
        return LoggedRequest(known, prepared, values, sources, prompt, counts, time, found.doubt)

    def _plan(self, row: Mapping[str, Any]) -> _Plan:
        """Return the ways to each field in rows of the shape of this one."""
        shape = shape_of(row, self._inner)
        if (found := self._plans.get(shape)) is None:
            if len(self._plans) >= _MOST_SHAPES:
                self._plans.clear()
            fields = {name: _ways(row, paths) for name, paths in self._fields.items()}
            known, checks = self.known, list[tuple[_Way, tuple[Any, ...], bool]]()
            for values, is_right in ((known.answered, True), (known.no_load, False)):
                for path, wanted in values.items():
                    checks += [(way, wanted, is_right) for way in _ways(row, (path,))]
            prompt = fields.pop("prompt")
            filled = {name: ways for name, ways in fields.items() if ways}
            found = self._plans[shape] = _Plan(prompt, filled, tuple(checks))
        return found

    def _counts(
        self, values: Mapping[str, Any], sources: dict[str, str], prompt: str | None
    ) -> TokenCounts:
        """Return the token counts of a row; the tokenizer is their source where it counts."""
        raw = values.get("output_tokens")
        output, reasoning = count_of(raw), count_of(values.get("reasoning_tokens"))
        size = count_of(values.get("prompt_tokens"))
        if output is None and self._count_tokens is not None:
            text = raw if isinstance(raw, str) else values.get("answer")
            if isinstance(text, str) and text.strip():
                output, sources["output_tokens"] = self._count_tokens(text), self._tokenizer
                if size is None and prompt is not None:
                    size, sources["prompt_tokens"] = self._count_tokens(prompt), self._tokenizer
        if "output_tokens" in self.given:
            return TokenCounts(size, output, reasoning)
        beside = self.known.parts_beside
        found = settle(
            size,
            output,
            reasoning,
            count_of(values.get("total_tokens")),
            count_of(values.get("cached_tokens")),
            parts_beside=beside,
            cached_beside=beside or sources.get("prompt_tokens", "").endswith("input_tokens"),
            details=count_of(values.get("output_parts")),
        )
        return found._replace(prompt=size) if "prompt_tokens" in self.given else found


def _no_request(row: Mapping[str, Any], known: LogFormat, plan: _Plan) -> LeftOut | None:
    """Return why a row is no request that a model answered; None for an answered row."""
    if known.left_out and (said := first_at(row, known.left_out)) is not None:
        return LeftOut(said)
    for way, wanted, is_right in plan.checks:
        value = _value(row, way)
        if value is not None and (value in wanted) is not is_right:
            return LeftOut(f"{way[0]} is {str(value)[:40]!r}" if wanted else f"it has {way[0]}")
    return None


def _ways(row: Mapping[str, Any], paths: Iterable[str]) -> tuple[_Way, ...]:
    """Return the ways to the paths that may lead to a value."""
    return tuple((path, way) for path in paths if (way := way_to(row, path)) is not None)


def _value(row: Mapping[str, Any], way: _Way) -> Any:
    path, keys = way
    if not keys:
        return value_at(row, path)
    value: Any = row
    for key in keys:
        value = value[key]
    return value


def _values(row: Mapping[str, Any], plan: _Plan) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of the fields that a row has, and their paths."""
    values, paths = dict[str, Any](), dict[str, str]()
    for name, ways in plan.fields.items():
        for way in ways:
            value = _value(row, way)
            if value is not None and value != "":
                values[name], paths[name] = value, way[0]
                break
    return values, paths


def _prompt(row: Mapping[str, Any], plan: _Plan, sources: dict[str, str]) -> str | None:
    for way in plan.prompt:
        text = prompt_of(_value(row, way))
        if text is not None:
            sources["prompt"] = REDACTED if text == REDACTED else way[0]
            return None if text == REDACTED else text
    return None


def no_column(missing: Sequence[str], columns: Iterable[str], advice: str = "") -> str:
    """Return the error of missing columns, with the columns as a shell takes them."""
    there = list(map(quote, columns))
    shown = ", ".join(there[:_SHOWN]) + (", ..." if len(there) > _SHOWN else "")
    return f"no column {', '.join(map(repr, missing))}; the columns are: {shown}{advice}"


def _leaves(value: Any, prefix: str = "", depth: int = 4) -> Iterator[str]:
    value = unpacked(value)
    if isinstance(value, Mapping) and value and depth:
        for key, inner in value.items():
            yield from _leaves(inner, f"{prefix}.{key}".lstrip("."), depth - 1)
    elif prefix:
        yield prefix
