"""Rows of a file to requests: the values at the paths of its format, and their token counts."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any, Final, NamedTuple

from lengthwise.errors import DataError
from lengthwise.tables.files import BadRow, Row
from lengthwise.tables.gateways import WORDS
from lengthwise.tables.gateways.formats import OPENAI, REDACTED, LogFormat
from lengthwise.tables.options import SKIP, ReadingOptions, RecordOptions
from lengthwise.tables.prompt_text import prompt_of
from lengthwise.tables.times import Time, time_column, time_of
from lengthwise.tables.token_counts import CACHED_BESIDE, TokenCounts, settle, token_counter
from lengthwise.tables.values import count_of, first_at, plain, shape_of, unpacked, value_at, way_to

OPTIONS: Final = {
    **{name: f"--{name.replace('_', '-')}-column" for name in ("prompt", "prompt_tokens", "model")},
    **{"output_tokens": "--length-column", "arrival_s": "--arrival-column"},
}
COUNTS: Final = ("prompt_tokens", "output_tokens", "reasoning_tokens", "answer_tokens")
_BESIDE: Final = (*COUNTS[::2], "total_tokens", "cached_tokens", "finish_reason")
"""Fields that stand beside a length which an option names."""
_FAILED: Final = re.compile("|".join(WORDS["failed"]))
_MORE: Final = {
    "prompt": " (of fit: --data.prompt-column)",
    "output_tokens": " (of fit: --data.length-column), or count texts by --tokenizer",
    "prompt_tokens": ", or add --scores bundle:PATH, whose tokenizer counts prompt tokens",
}
_SHOWN: Final = 30
_MOST_SHAPES, _MOST_COLUMNS = 4096, 300

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
    levels: "Levels" = field(default_factory=lambda: Levels())
    bad: DataError | None = None
    """Error of the first bad row, unless bad rows are skipped."""
    left_out: Counter[str] = field(default_factory=Counter)
    warned: Counter[str] = field(default_factory=Counter)
    """Warning -> rows; 0 for one of the whole log."""
    given: dict[str, str] = field(init=False)
    """Our column -> the path that an option states for it."""

    def __post_init__(self) -> None:
        options = self.options
        given = {
            name: getattr(options, option[2:].replace("-", "_"), None)
            for name, option in OPTIONS.items()
        }
        given["output_tokens"] = next(iter(options.length_column), None)
        self.given = {name: path for name, path in given.items() if path}
        self.further = options.length_column[1:]
        """Columns of lengths beside the first."""
        self.model = options.model if isinstance(options, RecordOptions) else None
        """The only model whose rows are read."""
        self.count_tokens = token_counter(options.tokenizer) if options.tokenizer else None

    def leave_out(self, reason: LeftOut | BadRow, path: Path, row: int) -> None:
        """Count a row without a request, and keep the error of the first bad one."""
        if isinstance(reason, LeftOut):
            self.left_out[str(reason)] += 1
            return
        if self.bad is None and self.options.on_bad_rows == "error" and not self.is_lenient:
            self.bad = DataError(f"{reason}; {SKIP}", path=path, row=row)
        self.left_out[reason.partition(" (")[0]] += 1


class Levels:
    """Rows of one trace that stand above others: of a call at several levels the lowest counts."""

    def __init__(self) -> None:
        self._above: dict[int, int] = {}
        self._calls: list[int] = []

    def add(self, values: Mapping[str, Any], output: int | None) -> int:
        """Take in a row and return its key; 0 for a row without an id."""
        own, above, trace = (str(values.get(f"{n}_id", "")) for n in ("row", "parent", "trace"))
        key, parent = hash((trace, own)), hash((trace, above))
        if above.lower() not in WORDS["roots"] and parent != key:
            self._above[key] = parent
            self._calls += [key] * bool(output)
        return key if own else 0

    def above_calls(self) -> set[int]:
        """Return the keys of all rows above one with an output."""
        found: set[int] = set()
        for call in self._calls:
            key = self._above.get(call)
            while key is not None and key not in found:
                found.add(key)
                key = self._above.get(key)
        return found


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
    key: int
    """Key of its level; 0 without."""
    doubt: str
    """Disagreement of the counts; empty without."""


class _Plan(NamedTuple):
    """Ways to what is read in rows of one shape."""

    prompt: tuple[_Way, ...]
    fields: dict[str, tuple[_Way, ...]]
    checks: tuple[tuple[_Way, tuple[Any, ...], bool], ...]
    """Ways, words, and whether an answered row has one of them; no words: a failure has one."""


class RequestReader:
    """Reader of the rows of one file; ways to the fields are found once per shape of rows."""

    def __init__(
        self, reading: Reading, path: Path, known: LogFormat, sample: Iterable[Row | BadRow]
    ) -> None:
        """Find the columns in the first rows. Raises DataError for a needed one that none has."""
        self.path, self.known, self.given = path, known, reading.given
        self._count_tokens, self._tokenizer = reading.count_tokens, str(reading.options.tokenizer)
        self._levels = reading.levels
        rows = [row for row in sample if not isinstance(row, BadRow)]
        prepared = [known.prepared(row) for row in rows]
        paths = dict(known.paths)
        if known.is_table:
            paths |= {name: tuple(names) for name, names in reading.extras.items()}
        if "arrival_s" in (*reading.needs, *reading.wants):
            paths["arrival_s"] = _times(known, prepared, reading)
        self.siblings = _beside(self.given.get("output_tokens", ""))
        """Fields beside a given length of a known name, by whose rules it counts."""
        paths |= {name: (*paths[name], *more) for name, more in self.siblings.items()}
        paths |= {name: (path,) for name, path in self.given.items()}
        paths |= {name: (name,) for name in ("answer_tokens", *reading.further)}
        self._fields = paths
        self._plans: dict[tuple[Any, ...], _Plan] = {}
        if rows:
            self._require_columns(reading, prepared)
        every_path = (*chain(*paths.values()), *known.answered, *known.no_load)
        self.unread: tuple[str, ...] = ()
        if known.is_table and rows:
            read = {plain(name) for path in every_path for name in (path, path.partition(".")[0])}
            self.unread = tuple(name for name in rows[0] if plain(name) not in read)
        self._inner = frozenset(
            plain("".join(keys[start:end]))
            for keys in (path.split(".") for path in every_path)
            for end in range(1, len(keys))
            for start in range(end)
        )

    def _require_columns(self, reading: Reading, rows: Sequence[Mapping[str, Any]]) -> None:
        asked = [n for n in self.given if n in (*reading.needs, "model", "arrival_s")]
        if self.known.is_table:
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
            raise DataError(no_column(list(missing), leaves(rows[0]), advice), path=self.path)

    def read(self, row: Row | BadRow) -> LoggedRequest | LeftOut | BadRow:
        """Return the request of a row, or the reason why the row is none."""
        if isinstance(row, BadRow):
            return row
        known = self.known
        prepared = known.prepared(row)
        plan = self._plan(prepared)
        values, sources = _values(prepared, plan)
        key = self._levels.add(values, count_of(values.get("output_tokens")))
        reason = values.get("left_out") or _no_request(prepared, plan)
        if reason is not None:
            return LeftOut(reason)
        prompt = _prompt(prepared, plan, sources)
        found = self._counts(values, sources, prompt)
        if found.rule:
            name = "prompt_tokens" if found.rule == CACHED_BESIDE else "output_tokens"
            sources[name] = f"{found.rule} ({sources.get(name, '')})"
        output, reasoning = found.output, found.reasoning
        answer = None if output is None or reasoning is None else output - reasoning
        if known.is_table and "answer_tokens" in prepared:
            answer = count_of(prepared["answer_tokens"])
        if output is None and reasoning is not None and answer is not None:
            output = reasoning + answer
        counts = dict(zip(COUNTS, (found.prompt, output, reasoning, answer), strict=True))
        time = time_of(values.get("arrival_s"))
        return LoggedRequest(
            known, prepared, values, sources, prompt, counts, time, key, found.doubt
        )

    def _plan(self, row: Mapping[str, Any]) -> _Plan:
        """Return the ways to each field in rows of the shape of this one."""
        shape = shape_of(row, self._inner)
        if (found := self._plans.get(shape)) is None:
            if len(self._plans) >= _MOST_SHAPES:
                self._plans.clear()
            fields = {name: _ways(row, paths) for name, paths in self._fields.items()}
            known, checks = self.known, list[tuple[_Way, tuple[Any, ...], bool]]()
            for values, is_right in ((known.answered, True), (known.no_load, False)):
                for path, words in values.items():
                    checks += [(way, words, is_right) for way in _ways(row, (path,))]
            checks += [(way, (), False) for way in _ways(row, known.paths["failed"])]
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
        if "output_tokens" in self.given and not self.siblings:
            return TokenCounts(size, output, reasoning)
        beside, source = self.known.parts_beside, plain(sources.get("prompt_tokens", ""))
        cached = [count_of(values.get(name)) for name in ("cached_tokens", "cache_written")]
        found = settle(
            size,
            output,
            reasoning,
            count_of(values.get("total_tokens")),
            sum(filter(None, cached)),
            parts_beside=beside,
            cached_beside=beside
            or (not self.known.paths["cache_written"] and source.endswith(WORDS["apart"])),
            details=count_of(values.get("output_parts")),
        )
        return found._replace(prompt=size) if "prompt_tokens" in self.given else found


def _no_request(row: Mapping[str, Any], plan: _Plan) -> LeftOut | None:
    """Return why a row is no request that a model answered; None for an answered row."""
    for way, words, is_right in plan.checks:
        value = _value(row, way)
        word = f"{value:g}" if isinstance(value, float) else str(value).strip().lower()
        if value in (None, {}, []) or (not words and word in ("false", *WORDS["roots"])):
            continue
        is_failure = _FAILED.search(word) is not None if not (words or is_right) else False
        if is_failure or (words and (word in words) is not is_right):
            return LeftOut(f"{_shown(way)} is {str(value)[:40]!r}")
        if is_right and not words:
            return LeftOut(f"it has {_shown(way)}")
    return None


def _shown(way: _Way) -> str:
    return ".".join(way[1]) or way[0]


def _times(
    known: LogFormat, rows: Sequence[Mapping[str, Any]], reading: Reading
) -> tuple[str, ...]:
    """Return the paths to the times: those of the format, or columns that hold such values."""
    paths = known.paths["arrival_s"]
    sure = paths[:1] if known.is_table else paths
    if "arrival_s" in reading.given or any(first_at(row, sure) is not None for row in rows):
        return paths
    names = dict.fromkeys(name for row in rows for name in leaves(row))
    columns = {name: [value_at(row, name) for row in rows] for name in [*names][:_MOST_COLUMNS]}
    found = {name: [x for x in every if x is not None] for name, every in columns.items()}
    return (*time_column(found), *paths)


def _beside(length: str) -> dict[str, tuple[str, ...]]:
    """Return the paths beside a length of a known name, such as X.usage.completion_tokens."""
    for end in sorted(OPENAI.paths["output_tokens"], key=len):
        keys, most = length.split("."), end.count(".") + 1
        if plain("".join(keys[-most:])) == plain(end):
            prefix = ".".join(keys[:-most])
            beside = {name: OPENAI.paths[name] for name in _BESIDE}
            return {n: tuple(f"{prefix}.{p}".lstrip(".") for p in x) for n, x in beside.items()}
    return {}


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
                values[name], paths[name] = value, _shown(way)
                break
    return values, paths


def _prompt(row: Mapping[str, Any], plan: _Plan, sources: dict[str, str]) -> str | None:
    for way in plan.prompt:
        text = prompt_of(_value(row, way))
        if text is not None:
            sources["prompt"] = REDACTED if text == REDACTED else _shown(way)
            return None if text == REDACTED else text
    return None


def no_column(missing: Sequence[str], columns: Iterable[str], advice: str = "") -> str:
    """Return the error of missing columns, with the columns as a shell takes them."""
    there = list(map(quote, columns))
    shown = ", ".join(there[:_SHOWN]) + (", ..." if len(there) > _SHOWN else "")
    return f"no column {', '.join(map(repr, missing))}; the columns are: {shown}{advice}"


def leaves(value: Any, prefix: str = "", depth: int = 4) -> Iterator[str]:
    """Yield the paths to the values of a row."""
    value = unpacked(value)
    if isinstance(value, Mapping) and value and depth:
        for key, inner in value.items():
            yield from leaves(inner, f"{prefix}.{key}".lstrip("."), depth - 1)
    elif prefix:
        yield prefix
