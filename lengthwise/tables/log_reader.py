"""Rows of a log to requests under our names: one rule for every row of every format."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from lengthwise.errors import DataError
from lengthwise.tables.files import BadRow, Row
from lengthwise.tables.formats import CENSORED, REDACTED, TABLE, LogFormat
from lengthwise.tables.options import SKIP, ReadingOptions, RecordOptions
from lengthwise.tables.prompt_text import prompt_of
from lengthwise.tables.times import Times
from lengthwise.tables.token_counts import CACHED_BESIDE, TokenCounts, settle, token_counter
from lengthwise.tables.values import count_of, first_at, shape_of, unpacked, value_at, way_to

if TYPE_CHECKING:
    import pandas as pd

NO_ROWS: Final = "the table has no rows; give some"
NO_ANSWER: Final = "an output of 0 tokens"
OPTIONS: Final = {
    "prompt": "--prompt-column",
    "output_tokens": "--length-column",
    "prompt_tokens": "--prompt-tokens-column",
    "arrival_s": "--arrival-column",
    "model": "--model-column",
}
_GIVEN: Final = {
    **{name: f"{name}_column" for name in ("prompt", "model", "prompt_tokens")},
    "arrival_s": "arrival_column",
}
_COUNTS: Final = ("prompt_tokens", "output_tokens", "reasoning_tokens", "answer_tokens")
ORIGINS: Final = ("prompt", "output_tokens", "prompt_tokens", "arrival_s")
_FIELDS: Final = (
    *("prompt", "output_tokens", "prompt_tokens", "reasoning_tokens", "total_tokens"),
    *("cached_tokens", "output_parts", "model", "arrival_s", "request_id", "finish_reason"),
    *("limit", "choices", "broken", "answer", "censored", "prompt_cut"),
)
_MORE: Final = {
    "prompt": " (of fit: --data.prompt-column)",
    "output_tokens": " (of fit: --data.length-column), or count texts by --tokenizer",
    "prompt_tokens": ", or add --scores bundle:PATH, whose tokenizer counts prompt tokens",
}
_SHOWN: Final = 30
_CHUNK: Final = 1 << 14
_INSTANTS: Final = 1e8
"""Times above are seconds since 1970, which the first request starts anew."""
_MOST_SHAPES: Final = 4096

_Way = tuple[str, tuple[str, ...]]
"""A path, and its keys in rows of one shape; no keys: `value_at` walks."""


class _Plan(NamedTuple):
    """Ways to what is read in rows of one shape."""

    prompt: tuple[_Way, ...]
    fields: dict[str, tuple[_Way, ...]]
    checks: tuple[tuple[_Way, tuple[Any, ...], bool], ...]
    """Ways, values, and whether an answered row has one of them."""


class _LeftOut(str):
    """Reason in the place of a row that is no request to learn from or to replay."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Log:
    """Requests of a log, and what was read of it."""

    frame: pd.DataFrame
    """Known columns of prompt, output_tokens, prompt_tokens, reasoning_tokens, answer_tokens,
    model, arrival_s (seconds; of a log since its first request), extras. The index: row numbers."""
    format: str
    files: tuple[str, ...]
    num_rows: int
    """Rows read, with those left out."""
    left_out: Mapping[str, int]
    """Reason -> rows."""
    warnings: tuple[str, ...]
    sources: Mapping[str, str]
    """Our column -> column or rule that it is from."""
    unread: tuple[str, ...] = ()
    """Columns of a plain table that hold nothing we read."""

    def short_form(self) -> list[str]:
        """Return the log in three lines: its rows, its sources, its lengths and times."""
        first = self.files[0] + (f" and {len(self.files) - 1} more" if len(self.files) > 1 else "")
        kept = f"{first}: {self.format}, {len(self.frame):,} of {self.num_rows:,} rows"
        out = [f"{count:,} {reason}" for reason, count in list(self.left_out.items())[:5]]
        read = ", ".join(f"{name} from {source}" for name, source in self.sources.items())
        said = [
            f"{name} {quantiles(self.frame[name])}" for name in _COUNTS[:2] if name in self.frame
        ]
        if "arrival_s" in self.frame:
            said.append(f"{self.frame.arrival_s.max():,.6g} s from first to last")
        return [
            kept + (f"; left out: {', '.join(out)}" if out else ""),
            f"{first}: {read}",
            f"{first}: {'; '.join([*said, *self.warnings])}",
        ]


class LogReader:
    """Columns of requests that grow row by row; memory holds the columns only."""

    def __init__(
        self,
        options: ReadingOptions,
        needs: Sequence[str],
        wants: Sequence[str],
        extras: Mapping[str, Sequence[str]],
        is_lenient: bool,
    ) -> None:
        self.options, self.needs, self.wants, self.extras = options, needs, wants, extras
        self.is_lenient, self.num_rows = is_lenient, 0
        self.num_lengths = len(options.length_column)
        self.formats: list[str] = []
        self.path, self.known, self.row = Path(), TABLE, 0
        self.kept = "prompt" in (*needs, *wants)
        self.prompts: list[str | None] = []
        self.texts: list[pa.Array] = []
        self.models: list[str] = []
        self.names: dict[str, str] = {}
        self.further: dict[str, list[Any]] = defaultdict(list)
        self.counts = {name: array("d") for name in _COUNTS}
        self.places, self.numbers = array("q"), array("q")
        self.paths: list[Path] = []
        self.times = Times()
        self.time_units: set[str | None] = set()
        self.left_out: Counter[str] = Counter()
        self.warned: Counter[str] = Counter()
        self.origins: Counter[tuple[str, ...]] = Counter()
        self.unread: dict[str, None] = {}
        self.seen: set[int] = set()
        self.ids: set[int] = set()
        self.tokenizer = str(options.tokenizer)
        self.count_tokens = token_counter(options.tokenizer) if options.tokenizer else None
        self.model = options.model if isinstance(options, RecordOptions) else None
        given = {name: getattr(options, field, None) for name, field in _GIVEN.items()}
        given["output_tokens"] = next(iter(options.length_column), None)
        self.given = {name: path for name, path in given.items() if path}

    def start(self, path: Path, known: LogFormat, sample: Sequence[Row | BadRow]) -> None:
        """Begin a file with its first rows. Raises DataError for a needed column that none has."""
        self.path, self.known, self.row = path, known, 0
        self.paths.append(path)
        if known.name not in self.formats:
            self.formats.append(known.name)
        paths = {name: getattr(known, name) for name in _FIELDS}
        paths |= {name: (path,) for name, path in self.given.items()}
        if known is TABLE:
            paths |= {name: tuple(names) for name, names in self.extras.items()}
        self.fields = paths
        self.plans: dict[tuple[Any, ...], _Plan] = {}
        self.time_units.add(known.time_unit)
        rows = [row for row in sample if not isinstance(row, BadRow)]
        asked = [name for name in self.given if name in (*self.needs, "model", "arrival_s")]
        if known is TABLE:
            every = self.needs if self.is_lenient else (*self.needs, *self.wants)
            asked += [name for name in every if name != "arrival_s"]
        if self.model is not None and known is TABLE:
            asked.append("model")
        paths |= {name: (name,) for name in ("answer_tokens", *self.options.length_column[1:])}
        asked += self.options.length_column[1:]
        missing = {
            self.given.get(name, name): name
            for name in asked
            if rows and not any(first_at(row, paths[name]) is not None for row in rows)
        }
        if missing:
            length = OPTIONS["output_tokens"]
            given = [f"{OPTIONS.get(name, length)} COLUMN" for name in missing.values()]
            more = "".join(_MORE.get(name, "") for name in missing.values())
            advice = f"; give {' '.join(dict.fromkeys(given))}{more}"
            raise DataError(no_column(list(missing), _leaves(rows[0]), advice), path=path)
        every_path = (*chain(*paths.values()), *known.answered, *known.no_load)
        if known is TABLE and rows:
            read = {path.partition(".")[0] for path in every_path} | set(every_path)
            self.unread |= dict.fromkeys(name for name in rows[0] if name not in read)
        self.inner = frozenset(
            ".".join(keys[start:end])
            for keys in (path.split(".") for path in every_path)
            for end in range(1, len(keys))
            for start in range(end)
        )

    def take(self, rows: Iterable[Row | BadRow]) -> None:
        """Read rows. Raises DataError for a bad one unless bad rows are skipped."""
        for row in rows:
            reason = row if isinstance(row, BadRow) else self._add(row)
            if isinstance(reason, _LeftOut):
                self.left_out[str(reason)] += 1
            elif reason is not None:
                self._bad(reason, self.path, self.row)
            self.row += 1
            self.num_rows += 1

    def _bad(self, reason: str, path: Path, row: int) -> None:
        if self.options.on_bad_rows == "error" and not self.is_lenient:
            raise DataError(f"{reason}; {SKIP}", path=path, row=row)
        self.left_out[reason.partition(" (")[0]] += 1

    def _plan(self, row: Mapping[str, Any]) -> _Plan:
        """Return the ways to each field in rows of the shape of this one."""
        shape = shape_of(row, self.inner)
        if (found := self.plans.get(shape)) is None:
            if len(self.plans) >= _MOST_SHAPES:
                self.plans.clear()
            fields = {name: _ways(row, paths) for name, paths in self.fields.items()}
            known, checks = self.known, list[tuple[_Way, tuple[Any, ...], bool]]()
            for values, is_right in ((known.answered, True), (known.no_load, False)):
                for path, wanted in values.items():
                    checks += [(way, wanted, is_right) for way in _ways(row, (path,))]
            prompt = fields.pop("prompt")
            filled = {name: ways for name, ways in fields.items() if ways}
            found = self.plans[shape] = _Plan(prompt, filled, tuple(checks))
        return found

    def _add(self, row: Mapping[str, Any]) -> str | None:
        known = self.known
        if known.prepare is not None:
            row = known.prepare(row)
        plan = self._plan(row)
        if (reason := _no_request(row, known, plan)) is not None:
            return reason
        values, paths = _values(row, plan)
        if self.model is not None and values.get("model") != self.model:
            return _LeftOut(f"a model other than {self.model}")
        prompt, prompt_from = self._prompt(row, plan)
        found = self._counts(values, paths, prompt)
        if found.doubt:
            return found.doubt
        output, reasoning = found.output, found.reasoning
        answer = None if output is None or reasoning is None else output - reasoning
        if known is TABLE and "answer_tokens" in row:
            answer = count_of(row["answer_tokens"])
        if output is None and reasoning is not None and answer is not None:
            output = reasoning + answer
        counts = dict(zip(_COUNTS, (found.prompt, output, reasoning, answer), strict=True))
        if (reason := self._unfit(row, values, prompt, prompt_from, counts)) is not None:
            return reason
        arrival = values.get("arrival_s")
        if "request_id" in values:
            reason = self._repeated(values["request_id"], prompt, arrival, counts)
            if reason is not None:
                return reason
        if (reason := self.times.add(arrival)) is not None:
            if arrival is not None and "arrival_s" in self.needs:
                return reason
            self.times.skip()
        self._append(row, values, prompt, counts)
        output_from, size_from = paths.get("output_tokens", ""), paths.get("prompt_tokens", "")
        if found.rule == CACHED_BESIDE:
            size_from = f"{found.rule} ({size_from})"
        elif found.rule:
            output_from = f"{found.rule} ({output_from})"
        self.origins[
            prompt_from if prompt is not None else "",
            output_from,
            size_from,
            paths.get("arrival_s", ""),
        ] += 1
        return None

    def _counts(
        self, values: Mapping[str, Any], paths: dict[str, str], prompt: str | None
    ) -> TokenCounts:
        """Return the token counts of a row; adds the tokenizer to the paths if it counts."""
        raw = values.get("output_tokens")
        output, reasoning = count_of(raw), count_of(values.get("reasoning_tokens"))
        size = count_of(values.get("prompt_tokens"))
        if output is None and self.count_tokens is not None:
            text = raw if isinstance(raw, str) else values.get("answer")
            if isinstance(text, str) and text.strip():
                output, paths["output_tokens"] = self.count_tokens(text), self.tokenizer
                if size is None and prompt is not None:
                    size, paths["prompt_tokens"] = self.count_tokens(prompt), self.tokenizer
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
            cached_beside=beside or paths.get("prompt_tokens", "").endswith("input_tokens"),
            details=count_of(values.get("output_parts")),
        )
        return found._replace(prompt=size) if "prompt_tokens" in self.given else found

    def _prompt(self, row: Mapping[str, Any], plan: _Plan) -> tuple[str | None, str]:
        for way in plan.prompt:
            text = prompt_of(_value(row, way))
            if text == REDACTED:
                self.warned["prompts redacted by LiteLLM (turn_off_message_logging)"] += 1
                return None, REDACTED
            if text is not None:
                return text, way[0]
        return None, ""

    def _unfit(
        self,
        row: Mapping[str, Any],
        values: Mapping[str, Any],
        prompt: str | None,
        prompt_from: str,
        counts: Mapping[str, int | None],
    ) -> str | None:
        """Return why a row is bad or left out; None for a good row."""
        if prompt is not None and not prompt.isascii() and not _is_text(prompt):
            return "its prompt holds half a surrogate pair, or bytes that are no UTF-8"
        if "prompt_cut" in values:
            self.warned["prompts and their token counts cut by the logger"] += 1
        choices = unpacked(values.get("choices"))
        if (len(choices) if isinstance(choices, list) else count_of(choices) or 0) > 1:
            return _LeftOut("several answers in one count")
        if (why := _cut(values, prompt, counts["output_tokens"])) is not None:
            if self.options.censored == "leave-out":
                return _LeftOut(f"censored: {why}")
            self.warned[f"rows kept though censored: {why}"] += 1
        if counts["output_tokens"] == 0 and self.num_lengths < 2 and "output_tokens" in self.needs:
            return _LeftOut(NO_ANSWER)
        details = ("reasoning_tokens", "answer_tokens") if self.known is not TABLE else ()
        for name in self.needs:
            if (
                name in counts
                and name not in details
                and (counts[name] is None or (name == "prompt_tokens" and not counts[name]))
            ):
                given = values.get(name)
                return (
                    f"{name} is no whole number of tokens ({str(given)[:40]!r})"
                    if given is not None
                    else self._missing(name)
                )
        if "prompt" in self.needs and prompt is None:
            if prompt_from == REDACTED:
                return "LiteLLM redacted the prompt (turn_off_message_logging is set)"
            return self._missing("prompt")
        for name in self.options.length_column[1:]:
            if count_of(value_at(row, name)) is None:
                return f"{name} is no whole number of tokens"
        return None

    def _missing(self, name: str) -> str:
        hint = f" ({self.known.advice(name)})" if self.known is not TABLE else ""
        return f"it has no {name}{hint}"

    def _repeated(
        self, identity: Any, prompt: str | None, arrival: Any, counts: Mapping[str, int | None]
    ) -> str | None:
        whole = hash((str(identity), prompt, str(arrival), *counts.values()))
        if whole in self.seen and (prompt is not None or arrival is not None):
            return _LeftOut("a copy of an earlier row")
        self.seen.add(whole)
        if self.known is TABLE:
            if (own := hash(str(identity))) in self.ids:
                return f"request_id is repeated ({str(identity)[:40]!r}; each request has its own)"
            self.ids.add(own)
        return None

    def _append(
        self,
        row: Mapping[str, Any],
        values: Mapping[str, Any],
        prompt: str | None,
        counts: Mapping[str, int | None],
    ) -> None:
        if self.kept:
            self.prompts.append(prompt)
            if len(self.prompts) >= _CHUNK:
                self._pack_prompts()
        model = str(values.get("model", ""))
        self.models.append(self.names.setdefault(model, model))
        for name, numbers in self.counts.items():
            count = counts[name]
            numbers.append(np.nan if count is None else count)
        self.places.append(len(self.paths) - 1)
        self.numbers.append(self.row)
        for name in self.options.length_column[1:]:
            self.further[name].append(count_of(value_at(row, name)))
        if self.known is TABLE:
            for name, names in self.extras.items():
                self.further[name].append(first_at(row, tuple(names)))

    def _pack_prompts(self) -> None:
        """Move the newest prompts to Arrow's memory, which is half of Python's."""
        self.texts.append(pa.array(self.prompts, pa.large_string()))
        self.prompts.clear()

    def finish(self, files: Sequence[Path]) -> Log:
        """Return the columns. Raises DataError if no row is left, or the times are in no unit."""
        import pandas as pd

        self.sources = self._sources()
        arrival_s, is_bad = self._arrivals()
        places = np.flatnonzero(~is_bad)
        if not len(places):
            raise self._nothing(files)
        columns = self._columns()
        if arrival_s is not None:
            columns["arrival_s"] = arrival_s
            places = places[np.argsort(arrival_s[places], kind="stable")]
        index = np.array(self.numbers) if len(self.paths) == 1 else np.arange(len(self.numbers))
        frame = pd.DataFrame(columns, index=index, copy=False)
        frame = frame.drop(columns=frame.columns[frame.isna().all()])
        if not np.array_equal(places, np.arange(len(index))):
            frame = frame.iloc[places]
        for name in (*self.needs, *self.wants):
            if name not in frame and not self.is_lenient and name != "arrival_s":
                said = "; ".join([self._missing(name), *self.warned])
                raise DataError(f"in every row, {said}", path=files[0])
        return Log(
            frame=frame,
            format=", ".join(self.formats),
            files=tuple(map(str, files)),
            num_rows=self.num_rows,
            left_out=dict(self.left_out.most_common()),
            warnings=tuple(
                f"{count:,} {text}" if count else text for text, count in self.warned.items()
            ),
            sources={name: _shares(found) for name, found in self.sources.items()},
            unread=tuple(self.unread),
        )

    def _columns(self) -> dict[str, Any]:
        """Return the columns but arrival_s; releases the buffers of their rows."""
        columns: dict[str, Any] = {}
        if self.kept:
            self._pack_prompts()
            columns["prompt"] = pa.chunked_array(self.texts).to_pandas().array
            self.texts.clear()
        for name in ("output_tokens", "prompt_tokens", "reasoning_tokens", "answer_tokens"):
            numbers = np.array(self.counts.pop(name))
            is_known = np.isfinite(numbers)
            if name == "reasoning_tokens" and (has_reasoning := bool(is_known.any())):
                numbers, is_known = np.nan_to_num(numbers), np.array([True])
            columns[name] = numbers.astype(np.int64) if is_known.all() else numbers
        if has_reasoning and np.isnan(columns["answer_tokens"]).any():
            rest = columns["output_tokens"] - columns["reasoning_tokens"]
            columns["answer_tokens"] = np.where(
                np.isnan(columns["answer_tokens"]), rest, columns["answer_tokens"]
            ).astype(np.int64)
        if any(self.models):
            columns["model"] = self.models
        return columns | self.further

    def _sources(self) -> dict[str, Counter[str]]:
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for origins, rows in self.origins.items():
            for name, source in zip(ORIGINS, origins, strict=True):
                if source:
                    found[name][source] += rows
        return found

    def _nothing(self, files: Sequence[Path]) -> DataError:
        if not self.num_rows:
            return DataError(NO_ROWS, path=files[0])
        most = ", ".join(f"{n} {why}" for why, n in self.left_out.most_common(5))
        is_cut = any(why.startswith("censored") for why in self.left_out)
        option = "; keep censored rows with --censored keep" * is_cut
        name = ", ".join(self.formats)
        missing = [field for field in ORIGINS[:3] if self.left_out[f"it has no {field}"]]
        hints = dict.fromkeys(map(self.known.advice, missing))
        more = "".join(f"; {text}" for text in (*hints, *self.warned))
        text = f"no request is left of {self.num_rows} rows of this {name} log: {most}"
        return DataError(f"{text}{option}{more}", path=files[0])

    def _arrivals(self) -> tuple[np.ndarray[Any, Any] | None, np.ndarray[Any, Any]]:
        """Return the times in seconds, None without, and the mask of bad rows."""
        is_good = np.zeros(len(self.numbers), dtype=bool)
        if not np.isfinite(np.array(self.times.numbers)).any():
            return None, is_good
        name, *others = (source for source, _ in self.sources["arrival_s"].most_common())
        unit = getattr(self.options, "time_unit", None)
        try:
            known = next(iter(self.time_units)) if len(self.time_units) == 1 else None
            seconds, rule = self.times.in_seconds(name, unit, known, others)
            seconds = self._of_files(seconds)
        except DataError as error:
            if self.is_lenient:
                self.warned[str(error)] = 0
            elif "arrival_s" in self.needs:
                raise DataError(str(error), path=self.path) from error
            else:
                self.sources.pop("arrival_s")
            return None, is_good
        self.sources["arrival_s"] = Counter({rule: 1})
        if without_zone := self.times.num_without_zone():
            self.warned["times without a zone among others, read as UTC"] = without_zone
        is_bad = np.isnan(seconds)
        start_s = np.nanmin(np.append(seconds, np.inf))
        if start_s > _INSTANTS or self.known is not TABLE:
            seconds = np.round(seconds - start_s, 6)  # doubles hold instants of today to 0.2 us
        if "arrival_s" not in self.needs:
            return (None if is_bad.any() else seconds), is_good
        for place in np.flatnonzero(is_bad):
            time = self.times.numbers[place]
            reason = "it has no time" if np.isnan(time) else f"its time is out of range ({time:g})"
            self._bad(reason, self.paths[self.places[place]], self.numbers[place])
        return seconds, is_bad

    def _of_files(self, seconds: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return times since a start in the order of files that --file-times states."""
        pieces = np.split(seconds, np.searchsorted(self.places, range(1, len(self.paths))))
        pieces = [piece for piece in pieces if np.isfinite(piece).any()]
        spans = sorted((float(np.nanmin(piece)), float(np.nanmax(piece))) for piece in pieces)
        order = getattr(self.options, "file_times", None)
        if len(spans) < 2 or spans[0][0] > _INSTANTS or order == "together":
            return seconds
        if order == "in-turn":
            for before, piece in pairwise(pieces):
                piece += np.nanmax(before)
        elif spans[0][0] == spans[1][0] < spans[-1][1]:
            raise DataError(
                f"several files start at {spans[0][0]:g} s; give --file-times together for "
                "pieces of one log, or in-turn for logs that follow each other"
            )
        elif any(after[0] < before[1] for before, after in pairwise(spans)):
            text = "files overlap in time and are read as pieces of one log; or give --file-times"
            self.warned[f"{text} in-turn"] = 0
        return seconds


def quantiles(values: ArrayLike) -> str:
    """Return the p5, p50, p95 and largest of numbers as text."""
    found = np.nanpercentile(np.asarray(values, dtype=float), (5, 50, 95, 100))
    return "p5 {:.6g}, p50 {:.6g}, p95 {:.6g}, most {:.6g}".format(*found)


def _no_request(row: Mapping[str, Any], known: LogFormat, plan: _Plan) -> str | None:
    """Return why a row is no request that a model answered; None for an answered row."""
    if known.left_out and (said := first_at(row, known.left_out)) is not None:
        return _LeftOut(said)
    for way, wanted, is_right in plan.checks:
        value = _value(row, way)
        if value is not None and (value in wanted) is not is_right:
            return _LeftOut(f"{way[0]} is {str(value)[:40]!r}" if wanted else f"it has {way[0]}")
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


def _cut(values: Mapping[str, Any], prompt: str | None, output: int | None) -> str | None:
    """Return why the length of a row is a lower bound only; None if it is not."""
    if "censored" in values:
        return str(values["censored"])
    reason = values.get("finish_reason")
    if isinstance(reason, list):
        reason = next((end for end in reason if end in CENSORED), None)
    if isinstance(reason, str) and reason in CENSORED:
        return f"finish_reason is {reason}"
    if values.get("broken"):
        return "its stream broke off"
    if prompt is not None and "litellm_truncated" in prompt:
        return "LiteLLM cut the prompt"
    limit = count_of(values.get("limit"))
    is_reached = reason is None and limit is not None and output is not None and output >= limit
    return "max_tokens reached" if is_reached and output else None


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shares(found: Counter[str]) -> str:
    """Return the sources of a column, the most frequent first."""
    (first, _), *others = found.most_common(4)
    return "; ".join([first, *(f"{source} ({count:,} rows)" for source, count in others)])


def no_column(missing: Sequence[str], columns: Iterable[str], advice: str) -> str:
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
