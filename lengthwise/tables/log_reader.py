"""Rows of a log to requests under our names: one rule for every row of every format."""

from __future__ import annotations

import logging
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike

from lengthwise.errors import DataError
from lengthwise.tables.files import BadRow, Row
from lengthwise.tables.formats import CENSORED as CENSORED_ENDS
from lengthwise.tables.formats import REDACTED, TABLE, LogFormat
from lengthwise.tables.options import (
    ARRIVAL,
    CENSORED,
    LENGTH,
    MODEL,
    PROMPT,
    PROMPT_TOKENS,
    SKIP,
    ReadingOptions,
    TraceOptions,
)
from lengthwise.tables.prompt_text import prompt_of
from lengthwise.tables.times import Times
from lengthwise.tables.token_counts import CACHED_BESIDE, settle
from lengthwise.tables.tokenizer import token_counter
from lengthwise.tables.values import count_of, first_at, unpacked, value_at

if TYPE_CHECKING:
    import pandas as pd

NO_ANSWER: Final = "an output of 0 tokens"
_OPTIONS: Final = {
    "prompt": PROMPT,
    "output_tokens": LENGTH,
    "prompt_tokens": PROMPT_TOKENS,
    "arrival_s": ARRIVAL,
    "model": MODEL,
}
_COUNTS: Final = ("prompt_tokens", "output_tokens", "reasoning_tokens", "answer_tokens")
_FIELDS: Final = (
    *("prompt", "output_tokens", "prompt_tokens", "reasoning_tokens", "total_tokens"),
    *("cached_tokens", "output_parts", "model", "arrival_s", "request_id", "finish_reason"),
    *("limit", "choices", "broken", "answer", "censored"),
)
_MORE: Final = {
    "prompt": " (of fit: --data.prompt-column)",
    "output_tokens": " (of fit: --data.length-column), or count texts by --tokenizer",
    "prompt_tokens": ", or add --scores bundle:PATH, whose tokenizer counts prompt tokens",
}
_SHOWN: Final = 30
_INSTANTS: Final = 1e8
"""Times above are seconds since 1970, which the first request starts anew."""
_MOST_SHAPES: Final = 4096
_CUT: Final = "litellm_truncated"

log = logging.getLogger(__name__)


class _LeftOut(str):
    """Reason in the place of a row that is no request to learn from or to replay."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Log:
    """Requests of a log, and what was read of it."""

    frame: pd.DataFrame
    """Known columns of prompt, output_tokens, prompt_tokens, reasoning_tokens, answer_tokens,
    model, arrival_s (seconds since the first request) and the extras. The index is the number of
    the row."""
    format: str
    files: tuple[str, ...]
    num_rows: int
    """Rows read, with those left out."""
    left_out: Mapping[str, int]
    """Reason -> rows."""
    warnings: tuple[str, ...]
    sources: Mapping[str, str]
    """Our column -> column or rule that it is from."""

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
        self.models: list[str] = []
        self.further: dict[str, list[Any]] = defaultdict(list)
        self.counts = {name: array("d") for name in _COUNTS}
        self.places, self.numbers = array("q"), array("q")
        self.paths: list[Path] = []
        self.times = Times()
        self.left_out: Counter[str] = Counter()
        self.warned: Counter[str] = Counter()
        self.sources: dict[str, Counter[str]] = defaultdict(Counter)
        self.seen: set[int] = set()
        self.ids: set[int] = set()
        self.count_tokens = token_counter(options.tokenizer) if options.tokenizer else None
        given = {
            "prompt": options.prompt_column,
            "output_tokens": next(iter(options.length_column), None),
            "model": options.model_column,
        }
        if isinstance(options, TraceOptions):
            given |= {
                "prompt_tokens": options.prompt_tokens_column,
                "arrival_s": options.arrival_column,
            }
        self.given = {name: path for name, path in given.items() if path}

    def start(self, path: Path, known: LogFormat, sample: Sequence[Row | BadRow]) -> None:
        """Begin a file of a format; `sample` holds its first rows.

        Raises DataError for a needed column that no row has.
        """
        self.path, self.known, self.row = path, known, 0
        self.paths.append(path)
        if known.name not in self.formats:
            self.formats.append(known.name)
        paths = {name: getattr(known, name) for name in _FIELDS}
        paths |= {name: (path,) for name, path in self.given.items()}
        if known is TABLE:
            paths |= {name: tuple(names) for name, names in self.extras.items()}
        self.fields = paths
        self.plans: dict[tuple[str, ...], dict[str, tuple[tuple[str, bool], ...]]] = {}
        rows = [row for row in sample if not isinstance(row, BadRow)]
        asked = [name for name in self.given if name in (*self.needs, "model", "arrival_s")]
        if known is TABLE:
            every = self.needs if self.is_lenient else (*self.needs, *self.wants)
            asked += [name for name in every if name != "arrival_s"]
        if self.options.model is not None and known is TABLE:
            asked.append("model")
        paths |= {name: (name,) for name in ("answer_tokens", *self.options.length_column[1:])}
        asked += self.options.length_column[1:]
        missing = {
            self.given.get(name, name): name
            for name in asked
            if rows and not any(first_at(row, paths[name]) is not None for row in rows)
        }
        if missing:
            given = [f"{_OPTIONS.get(name, LENGTH)} COLUMN" for name in missing.values()]
            more = "".join(_MORE.get(name, "") for name in missing.values())
            advice = f"; give {' '.join(dict.fromkeys(given))}{more}"
            text = no_column(list(missing), _leaves(rows[0]), advice)
            raise DataError(text, path=path)

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

    def _plan(self, row: Mapping[str, Any]) -> dict[str, tuple[tuple[str, bool], ...]]:
        """Return the paths of each field that may lead into rows with these keys."""
        shape = tuple(row)
        found = self.plans.get(shape)
        if found is None:
            if len(self.plans) >= _MOST_SHAPES:
                self.plans.clear()
            found = self.plans[shape] = {
                name: tuple((path, path in row) for path in paths if _starts(path, row))
                for name, paths in self.fields.items()
            }
        return found

    def _add(self, row: Mapping[str, Any]) -> str | None:
        known = self.known
        if known.prepare is not None:
            row = known.prepare(row)
        if (reason := _no_request(row, known)) is not None:
            return reason
        plan = self._plan(row)

        def first(name: str) -> tuple[Any, str]:
            for path, is_key in plan[name]:
                value = row[path] if is_key else value_at(row, path)
                if value is not None and value != "":
                    return value, path
            return None, ""

        model, _ = first("model")
        if self.options.model is not None and model != self.options.model:
            return _LeftOut(f"a model other than {self.options.model}")
        prompt, prompt_from = self._prompt(row, plan["prompt"])
        raw, length_from = first("output_tokens")
        output, reasoning = count_of(raw), count_of(first("reasoning_tokens")[0])
        size, size_from = first("prompt_tokens")
        size, rule = count_of(size), ""
        if output is None and self.count_tokens is not None:
            text = raw if isinstance(raw, str) else first("answer")[0]
            if isinstance(text, str) and text.strip():
                output, length_from = self.count_tokens(text), str(self.options.tokenizer)
                if size is None and prompt is not None:
                    size, size_from = self.count_tokens(prompt), length_from
        if "output_tokens" not in self.given:
            found = settle(
                size,
                output,
                reasoning,
                count_of(first("total_tokens")[0]),
                count_of(first("cached_tokens")[0]),
                parts_beside=known.parts_beside,
                cached_beside=known.parts_beside or size_from.endswith("input_tokens"),
                details=count_of(first("output_parts")[0]),
            )
            if found.doubt:
                return found.doubt
            output, reasoning, rule = found.output, found.reasoning, found.rule
            size = size if "prompt_tokens" in self.given else found.prompt
        counts = {"prompt_tokens": size, "output_tokens": output, "reasoning_tokens": reasoning}
        counts["answer_tokens"] = self._answer(row, output, reasoning)
        if output is None and reasoning is not None and counts["answer_tokens"] is not None:
            counts["output_tokens"] = output = reasoning + counts["answer_tokens"]
        if (reason := self._unfit(row, first, prompt, raw, counts)) is not None:
            return reason
        identity, _ = first("request_id")
        arrival, arrival_from = first("arrival_s")
        if identity is not None and (reason := self._repeated(identity, prompt, arrival, counts)):
            return reason
        if (reason := self.times.add(arrival)) is not None:
            if arrival is not None and "arrival_s" in self.needs:
                return reason
            self.times.skip()
        self._append(row, prompt, counts, model)
        is_of_prompt = rule == CACHED_BESIDE
        self._count_sources(
            prompt=prompt_from if prompt is not None else "",
            output_tokens=f"{rule} ({length_from})" if rule and not is_of_prompt else length_from,
            prompt_tokens=f"{rule} ({size_from})" if is_of_prompt else size_from,
            arrival_s=arrival_from,
        )
        return None

    def _prompt(
        self, row: Mapping[str, Any], paths: Iterable[tuple[str, bool]]
    ) -> tuple[str | None, str]:
        for path, is_key in paths:
            text = prompt_of(row[path] if is_key else value_at(row, path))
            if text == REDACTED:
                self.warned["prompts redacted by LiteLLM (turn_off_message_logging)"] += 1
                return None, REDACTED
            if text is not None:
                return text, path
        return None, ""

    def _answer(
        self, row: Mapping[str, Any], output: int | None, reasoning: int | None
    ) -> int | None:
        if self.known is TABLE and "answer_tokens" in row:
            return count_of(row["answer_tokens"])
        return None if output is None or reasoning is None else output - reasoning

    def _unfit(
        self,
        row: Mapping[str, Any],
        first: Callable[[str], tuple[Any, str]],
        prompt: str | None,
        raw: Any,
        counts: Mapping[str, int | None],
    ) -> str | None:
        """Return why a row is bad or left out; None for a good row."""
        if prompt is not None and not prompt.isascii() and not _is_text(prompt):
            return "its prompt holds half a surrogate pair, which is no text"
        if (choices := _num_choices(first("choices")[0])) > 1:
            return _LeftOut(f"several answers in one count (n = {choices})".partition(" (")[0])
        if (why := self._cut(row, first, prompt, counts["output_tokens"])) is not None:
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
                least = "a whole number of tokens"
                given = (
                    raw if name == "output_tokens" else first(name)[0] if name in _FIELDS else None
                )
                return (
                    f"{name} is no whole number of tokens ({str(given)[:40]!r} is no {least})"
                    if given is not None
                    else self._missing(name)
                )
        if "prompt" in self.needs and prompt is None:
            is_redacted = self._prompt(row, ((p, p in row) for p in self.fields["prompt"]))[1]
            if is_redacted == REDACTED:
                return "LiteLLM redacted the prompt (turn_off_message_logging is set)"
            return self._missing("prompt")
        for name in self.options.length_column[1:]:
            if count_of(value_at(row, name)) is None:
                return f"{name} is no whole number of tokens"
        return None

    def _missing(self, name: str) -> str:
        advice = {"prompt": self.known.without_prompt, "output_tokens": self.known.without_length}
        hint = advice.get(name) if self.known is not TABLE else None
        return f"it has no {name}" + (f" ({hint})" if hint else "")

    def _cut(
        self,
        row: Mapping[str, Any],
        first: Callable[[str], tuple[Any, str]],
        prompt: str | None,
        output: int | None,
    ) -> str | None:
        """Return why the length of a row is a lower bound only; None if it is not."""
        if (said := first("censored")[0]) is not None:
            return str(said)
        reason, _ = first("finish_reason")
        if isinstance(reason, list):
            reason = next((end for end in reason if end in CENSORED_ENDS), None)
        if isinstance(reason, str) and reason in CENSORED_ENDS:
            return f"finish_reason is {reason}"
        if first("broken")[0]:
            return "its stream broke off"
        if prompt is not None and _CUT in prompt:
            return "LiteLLM cut the prompt"
        limit = count_of(first("limit")[0])
        is_reached = reason is None and limit is not None and output is not None and output >= limit
        return "max_tokens reached" if is_reached and output else None

    def _repeated(
        self, identity: Any, prompt: str | None, arrival: Any, counts: Mapping[str, int | None]
    ) -> str | None:
        whole = hash((str(identity), prompt, str(arrival), *counts.values()))
        if whole in self.seen and (prompt is not None or arrival is not None):
            return _LeftOut("a copy of an earlier row")
        self.seen.add(whole)
        if self.known is TABLE:
            own = hash(str(identity))
            if own in self.ids:
                return f"request_id is repeated ({str(identity)[:40]!r}; each request has its own)"
            self.ids.add(own)
        return None

    def _append(
        self, row: Mapping[str, Any], prompt: str | None, counts: Mapping[str, Any], model: Any
    ) -> None:
        if self.kept:
            self.prompts.append(prompt)
        self.models.append("" if model is None else str(model))
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

    def _count_sources(self, **sources: str) -> None:
        for name, source in sources.items():
            if source:
                self.sources[name][source] += 1

    def finish(self, files: Sequence[Path]) -> Log:
        """Return the columns. Raises DataError if no row is left, or the times are in no unit."""
        import pandas as pd

        if not self.numbers:
            raise self._nothing(files)
        columns: dict[str, Any] = {"prompt": self.prompts} if self.kept else {}
        for name in ("output_tokens", "prompt_tokens", "reasoning_tokens", "answer_tokens"):
            numbers = np.array(self.counts[name])
            if name == "reasoning_tokens" and np.isfinite(numbers).any():
                numbers = np.nan_to_num(numbers)
            columns[name] = numbers if np.isnan(numbers).any() else numbers.astype(np.int64)
        has_reasoning = np.isfinite(np.array(self.counts["reasoning_tokens"])).any()
        if has_reasoning and np.isnan(columns["answer_tokens"]).any():
            rest = columns["output_tokens"] - columns["reasoning_tokens"]
            columns["answer_tokens"] = np.where(
                np.isnan(columns["answer_tokens"]), rest, columns["answer_tokens"]
            ).astype(np.int64)
        if any(self.models):
            columns["model"] = self.models
        columns |= self.further
        arrival_s, is_bad = self._arrivals()
        if arrival_s is not None:
            columns["arrival_s"] = arrival_s
        index = np.array(self.numbers) if len(self.paths) == 1 else np.arange(len(self.numbers))
        frame = pd.DataFrame(columns, index=index)
        frame = frame[~is_bad].dropna(axis="columns", how="all")
        if "arrival_s" in frame:
            frame = frame.sort_values("arrival_s", kind="stable")
        if frame.empty:
            raise self._nothing(files)
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
        )

    def _nothing(self, files: Sequence[Path]) -> DataError:
        if not self.num_rows:
            return DataError("the table has no rows; give some", path=files[0])
        most = ", ".join(f"{n} {why}" for why, n in self.left_out.most_common(5))
        is_cut = any(why.startswith("censored") for why in self.left_out)
        option = f"; keep censored rows with {CENSORED} keep" * is_cut
        name = ", ".join(self.formats)
        missing = {"prompt": self.known.without_prompt, "output_tokens": self.known.without_length}
        hints = [hint for field, hint in missing.items() if self.left_out[f"it has no {field}"]]
        more = "".join(f"; {text}" for text in (*hints, *self.warned))
        text = f"no request is left of {self.num_rows} rows of this {name} log: {most}"
        return DataError(f"{text}{option}{more}", path=files[0])

    def _arrivals(self) -> tuple[np.ndarray[Any, Any] | None, np.ndarray[Any, Any]]:
        """Return the times in seconds, None without, and the mask of bad rows."""
        is_good = np.zeros(len(self.numbers), dtype=bool)
        if not np.isfinite(np.array(self.times.numbers)).any():
            return None, is_good
        name = self.sources["arrival_s"].most_common(1)[0][0]
        unit = getattr(self.options, "time_unit", None)
        try:
            seconds, rule = self.times.in_seconds(name, unit, self.known.time_unit)
        except DataError as error:
            self.sources.pop("arrival_s")
            if self.is_lenient:
                self.warned[str(error)] = 0
            elif "arrival_s" in self.needs:
                raise DataError(str(error), path=self.path) from error
            return None, is_good
        self.sources["arrival_s"] = Counter({rule: 1})
        is_bad = np.isnan(seconds)
        start_s = np.nanmin(seconds)
        if start_s > _INSTANTS or self.known is not TABLE:
            seconds = np.round(seconds - start_s, 6)  # doubles hold instants of today to 0.2 us
        if "arrival_s" not in self.needs:
            return (None if is_bad.any() else seconds), is_good
        for place in np.flatnonzero(is_bad):
            self._bad("it has no time", self.paths[self.places[place]], self.numbers[place])
        return seconds, is_bad


def quantiles(values: ArrayLike) -> str:
    """Return the p5, p50, p95 and largest of numbers as text."""
    found = np.nanpercentile(np.asarray(values, dtype=float), (5, 50, 95, 100))
    return "p5 {:.6g}, p50 {:.6g}, p95 {:.6g}, most {:.6g}".format(*found)


def _no_request(row: Mapping[str, Any], known: LogFormat) -> str | None:
    """Return why a row is no request that a model answered; None for an answered row."""
    if (said := first_at(row, known.left_out)) is not None:
        return _LeftOut(said)
    for path, right in known.answered.items():
        value = value_at(row, path)
        if value is not None and value not in right:
            return _LeftOut(f"{path} is {str(value)[:40]!r}" if right else f"it has {path}")
    for path, wrong in known.no_load.items():
        value = value_at(row, path)
        if value is not None and value in wrong:
            return _LeftOut(f"{path} is {str(value)[:40]!r}")
    return None


def _starts(path: str, row: Mapping[str, Any]) -> bool:
    keys = path.split(".")
    return any(".".join(keys[:end]) in row for end in range(1, len(keys) + 1))


def _num_choices(value: Any) -> int:
    value = unpacked(value)
    return len(value) if isinstance(value, list) else count_of(value) or 0


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
