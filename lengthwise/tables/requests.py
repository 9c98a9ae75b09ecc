"""Rows of a file to requests: the values at the paths of its format, and their token counts."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any, Final

from lengthwise.errors import DataError
from lengthwise.tables.files import BadRow, Row
from lengthwise.tables.gateways import LAYOUTS, WORDS
from lengthwise.tables.gateways.formats import REDACTED, LogFormat
from lengthwise.tables.options import SKIP, ReadingOptions, RecordOptions
from lengthwise.tables.prompt_text import prompt_of
from lengthwise.tables.times import Time, time_column, time_of
from lengthwise.tables.token_counts import CACHED_BESIDE, TokenCounts, settle, token_counter
from lengthwise.tables.values import count_of, flat, plain, unpacked

OPTIONS: Final = {
    **{name: f"--{name.replace('_', '-')}-column" for name in ("prompt", "prompt_tokens", "model")},
    **{"output_tokens": "--length-column", "arrival_s": "--arrival-column"},
}
COUNTS: Final = ("prompt_tokens", "output_tokens", "reasoning_tokens", "answer_tokens")
_FAILED: Final = re.compile("|".join(WORDS["failed"]))
_MORE: Final = {
    "prompt": " (of fit: --data.prompt-column)",
    "output_tokens": " (of fit: --data.length-column), or count texts by --tokenizer",
    "prompt_tokens": ", or add --scores bundle:PATH, whose tokenizer counts prompt tokens",
}
_SHOWN, _MOST_SHAPES, _MOST_COLUMNS = 30, 4096, 300

_Plan = dict[str, list[tuple[str, str]]]
"""Field -> its paths that rows with the same plain paths have, each beside its plain one."""


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
    above: dict[int, int] = field(default_factory=dict)
    """Row of a trace -> the row above it: of a call at several levels the lowest counts."""
    calls: list[int] = field(default_factory=list)
    """Rows of a trace with output."""
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
        is_bad = not isinstance(reason, LeftOut)
        if is_bad and not (self.bad or self.is_lenient or self.options.on_bad_rows == "skip"):
            self.bad = DataError(f"{reason}; {SKIP}", path=path, row=row)
        self.left_out[reason.partition(" (")[0] if is_bad else str(reason)] += 1


@dataclass(slots=True)
class LoggedRequest:
    """Values and counts of one row about its request."""

    known: LogFormat
    flat: dict[str, Any]
    """The row by plain paths."""
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


class RequestReader:
    """Reader of the rows of one file; ways to the fields are found once per shape of rows."""

    def __init__(
        self, reading: Reading, path: Path, known: LogFormat, sample: Iterable[Row | BadRow]
    ) -> None:
        """Find the columns in the first rows. Raises DataError for a needed one that none has."""
        self.path, self.known, self.given, self._reading = path, known, reading.given, reading
        self._count_tokens, self._tokenizer = reading.count_tokens, str(reading.options.tokenizer)
        rows = [row for row in sample if not isinstance(row, BadRow)]
        prepared = [known.prepared(row) for row in rows]
        every, paths = list(map(flat, prepared)), dict(known.paths)
        paths |= {n: tuple(x) for n, x in reading.extras.items()} if known.is_table else {}
        if "arrival_s" in (*reading.needs, *reading.wants):
            paths["arrival_s"] = _times(known, prepared, every, reading)
        parent, _, own = self.given.get("output_tokens", "").rpartition(".")
        self._is_raw = bool(own) and plain(own) not in WORDS["lengths"]
        """A length of no known name counts as it is; other counts beside a known one decide."""
        beside = LAYOUTS["beside"].items() if own and not self._is_raw else ()
        paths |= {
            n: (*paths[n], *(f"{parent}.{x}".lstrip(".") for x in more)) for n, more in beside
        }
        paths |= {name: (path,) for name, path in self.given.items()}
        paths |= {name: (name,) for name in ("answer_tokens", *reading.further)}
        self._fields, self._plans = paths, dict[tuple[str, ...], _Plan]()
        failed: dict[str, tuple[str, ...]] = dict.fromkeys(known.paths["failed"], ())
        rules = ((known.answered, True), (known.no_load, False), (failed, False))
        self._checks = [
            (p, plain(p), words, is_right) for x, is_right in rules for p, words in x.items()
        ]
        every_path = (*chain(*paths.values()), *known.answered, *known.no_load)
        read = {plain(x) for path in every_path for x in (path, path.partition(".")[0])}
        top = rows[: known.is_table]
        self.unread = tuple(name for row in top for name in row if plain(name) not in read)
        if rows:
            self._require_columns(reading, prepared, every)

    def _require_columns(
        self, reading: Reading, rows: Sequence[Mapping[str, Any]], flats: Sequence[dict[str, Any]]
    ) -> None:
        asked = [n for n in self.given if n in (*reading.needs, "model", "arrival_s")]
        if self.known.is_table:
            every = reading.needs if reading.is_lenient else (*reading.needs, *reading.wants)
            asked += [name for name in every if name != "arrival_s"]
            asked += ["model"] * (reading.model is not None)
        missing = {
            self.given.get(name, name): name
            for name in (*asked, *reading.further)
            if not any(_is_in(one, self._fields[name]) for one in flats)
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
        known, prepared = self.known, self.known.prepared(row)
        every = flat(prepared)
        values, sources = self._values(every)
        key = self._key(values)
        if "left_out" in values or (reason := self._no_request(every)) is not None:
            return LeftOut(values.get("left_out") or reason)
        prompt = values.get("prompt")
        found = self._counts(values, sources, prompt)
        if found.rule:
            name = "prompt_tokens" if found.rule == CACHED_BESIDE else "output_tokens"
            sources[name] = f"{found.rule} ({sources.get(name, '')})"
        output, reasoning = found.output, found.reasoning
        answer = None if output is None or reasoning is None else output - reasoning
        if known.is_table and "answer_tokens" in values:
            answer = count_of(values["answer_tokens"])
        if output is None and reasoning is not None and answer is not None:
            output = reasoning + answer
        counts = dict(zip(COUNTS, (found.prompt, output, reasoning, answer), strict=True))
        time = time_of(values.get("arrival_s"))
        return LoggedRequest(known, every, values, sources, prompt, counts, time, key, found.doubt)

    def _values(self, every: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the values of the fields that a row has, and their paths."""
        if (plan := self._plans.get(shape := tuple(every))) is None:
            if len(self._plans) >= _MOST_SHAPES:
                self._plans.clear()
            pairs = {n: [(path, plain(path)) for path in p] for n, p in self._fields.items()}
            plan = {n: [pair for pair in some if pair[1] in every] for n, some in pairs.items()}
            self._plans[shape] = plan
        values, sources = dict[str, Any](), dict[str, str]()
        for name, ways in plan.items():
            for path, key in ways:
                value = prompt_of(every[key]) if name == "prompt" else every[key]
                if value is not None and value != "":
                    values[name], sources[name] = value, path
                    break
        if values.get("prompt") == REDACTED:
            sources["prompt"] = values.pop("prompt")
        return values, sources

    def _key(self, values: Mapping[str, Any]) -> int:
        """Return the key of a row in its trace, of which the one above is kept; 0 without an id."""
        own, above, trace = (str(values.get(f"{n}_id", "")) for n in ("row", "parent", "trace"))
        key, parent = hash((trace, own)), hash((trace, above))
        if above.lower() not in WORDS["roots"] and parent != key:
            self._reading.above[key] = parent
            self._reading.calls += [key] * bool(count_of(values.get("output_tokens")))
        return key if own else 0

    def _no_request(self, every: dict[str, Any]) -> str | None:
        """Return why a row is no request that a model answered; None for an answered row."""
        for path, key, words, is_right in self._checks:
            value = every.get(key)
            word = f"{value:g}" if isinstance(value, float) else str(value).strip().lower()
            is_none = value in (None, {}, []) or (not words and word in ("false", *WORDS["roots"]))
            is_other = (word in words) is not is_right if words else _FAILED.search(word)
            if not is_none and (is_other or (is_right and not words)):
                return (
                    f"it has {path}" if is_right and not words else f"{path} is {str(value)[:40]!r}"
                )
        return None

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
        if self._is_raw:
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
            cached_beside=beside or (self.known.is_apart and source.endswith(WORDS["apart"])),
        )
        return found._replace(prompt=size) if "prompt_tokens" in self.given else found


def _is_in(every: Mapping[str, Any], paths: Iterable[str]) -> bool:
    return any(every.get(plain(path)) is not None for path in paths)


def _times(
    known: LogFormat,
    rows: Sequence[Mapping[str, Any]],
    every: Sequence[dict[str, Any]],
    reading: Reading,
) -> tuple[str, ...]:
    """Return the paths to the times: those of the format, or columns that hold such values."""
    paths = known.paths["arrival_s"]
    sure = paths[:1] if known.is_table else paths
    if "arrival_s" in reading.given or any(_is_in(one, sure) for one in every):
        return paths
    names = dict.fromkeys(name for row in rows for name in leaves(row))
    found = {name: [one.get(plain(name)) for one in every] for name in [*names][:_MOST_COLUMNS]}
    return (*time_column({n: [x for x in v if x is not None] for n, v in found.items()}), *paths)


def no_column(missing: Sequence[str], columns: Iterable[str], advice: str = "") -> str:
    """Return the error of missing columns, with the columns as a shell takes them."""
    there = list(map(quote, columns))
    shown = ", ".join(there[:_SHOWN]) + (", ..." if len(there) > _SHOWN else "")
    return f"no column {', '.join(map(repr, missing))}; the columns are: {shown}{advice}"


def leaves(value: Any, prefix: str = "", depth: int = 4) -> Iterator[str]:
    """Yield the paths to the values of a row."""
    value = unpacked(value)
    inners = value.items() if isinstance(value, Mapping) and depth else ()
    for key, inner in inners:
        yield from leaves(inner, f"{prefix}.{key}".lstrip("."), depth - 1)
    if prefix and not inners:
        yield prefix
