"""Columns of the requests of a log, and what was read of it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lengthwise.errors import DataError
from lengthwise.tables.checks import missing
from lengthwise.tables.files import BadRow
from lengthwise.tables.requests import COUNTS, OPTIONS, LoggedRequest, Reading, RequestReader
from lengthwise.tables.times import INSTANTS, Times, times_of_files
from lengthwise.tables.values import count_of

if TYPE_CHECKING:
    import pandas as pd

NO_ROWS: Final = "the table has no rows; give some"
ORIGINS: Final = ("prompt", "output_tokens", "prompt_tokens", "arrival_s")
_MARKS: Final = ("place", "row", "key", "twin", "level", "json", "time", "clock")
"""Reader of a row, its place there, hashes of its id, content and level, a prompt in JSON, time."""
_CHUNK: Final = 1 << 14
_LEVELS_S, _TWINS_S = 0.1, 0.01
"""Times between rows of one call: at two levels that their format names, and without levels."""


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
        """Return the log in two or three lines: its rows, its sources, its lengths and times."""
        first = self.files[0] + (f" and {len(self.files) - 1} more" if len(self.files) > 1 else "")
        kept = f"{first}: {self.format}, {len(self.frame):,} of {self.num_rows:,} rows"
        out = [f"{count:,} {reason}" for reason, count in list(self.left_out.items())[:5]]
        read = ", ".join(f"{name} from {source}" for name, source in self.sources.items())
        said = [
            f"{name} {quantiles(self.frame[name])}" for name in COUNTS[:2] if name in self.frame
        ]
        if "arrival_s" in self.frame:
            said.append(f"{self.frame.arrival_s.max():,.6g} s from first to last")
        return [
            kept + (f"; left out: {', '.join(out)}" if out else ""),
            f"{first}: {read}",
            *([f"{first}: {'; '.join([*said, *self.warnings])}"] if said or self.warnings else []),
        ]


class Columns:
    """Columns that grow request by request; memory holds the columns only."""

    def __init__(self, reading: Reading) -> None:
        self.reading, self.readers = reading, list[RequestReader]()
        self.has_prompts = "prompt" in (*reading.needs, *reading.wants)
        self.further = (*reading.further, *reading.extras)
        self.rows: list[tuple[Any, ...]] = []
        self.frames: list[pd.DataFrame] = []
        self.origins: dict[str, Counter[str]] = defaultdict(Counter)

    def add(self, request: LoggedRequest, row: int) -> None:
        """Append a request, of this row of the newest reader."""
        values, prompt, counts = request.values, request.prompt, tuple(request.counts.values())
        is_alone = prompt is None or request.known.name == "vLLM"  # whose choices are rows
        twin = 0 if is_alone else hash((prompt, *counts))
        is_json = prompt is not None and prompt.lstrip()[:1] in ("{", "[")
        time = (np.nan, 0) if isinstance(request.time, str) else request.time
        model = str(values.get("model", "")).encode(errors="replace").decode()
        further = map(count_of, map(values.get, self.reading.further))
        extras = map(values.get, self.reading.extras)
        marks = (len(self.readers) - 1, row, request.key, twin, hash(values.get("level")), is_json)
        self.rows.append(
            (prompt if self.has_prompts else None, *counts, model, *further, *extras, *marks, *time)
        )
        if len(self.rows) >= _CHUNK:
            self._pack()
        for name in request.sources.keys() & ORIGINS[prompt is None :]:
            self.origins[name][request.sources[name]] += 1

    def _pack(self) -> None:
        """Move the newest rows to a frame, which is a small part of their memory."""
        import pandas as pd

        names = ["prompt", *COUNTS, "model", *self.further, *_MARKS]
        self.frames.append(pd.DataFrame(self.rows, columns=names))
        self.rows.clear()

    def finish(self, files: Sequence[Path]) -> Log:
        """Return the columns. Raises DataError if no row is left, or the times are in no unit."""
        import pandas as pd

        self._pack()
        frame = pd.concat(self.frames, ignore_index=True)
        self.frames.clear()
        self.marks = {name: frame.pop(name).to_numpy() for name in _MARKS}
        self.times = Times(self.marks["time"].astype(float), self.marks["clock"])
        reading, sources = self.reading, self.origins
        num_rows = len(frame) + reading.left_out.total()
        arrival_s, is_bad = self._arrivals(sources)
        is_bad |= self._repeated(arrival_s, ~is_bad)
        places = np.flatnonzero(~is_bad)
        if not len(places):
            raise self._nothing(files, num_rows)
        if reading.bad is not None:
            raise reading.bad
        self._warn(arrival_s, places)
        self._count(frame)
        frame.index = pd.Index(self.marks["row"] if len(self.readers) == 1 else range(len(frame)))
        if arrival_s is not None:
            start_s = np.nanmin(np.append(arrival_s[places], np.inf))
            if start_s > INSTANTS or not self.readers[-1].known.is_table:
                arrival_s = np.round(arrival_s - start_s, 6)  # instants are held to 0.2 us
            frame["arrival_s"] = arrival_s
            places = places[np.argsort(arrival_s[places], kind="stable")]
        frame = frame.drop(columns=frame.columns[frame.isna().all()]).iloc[places]
        for name in (*reading.needs, *reading.wants):
            if name not in frame and not reading.is_lenient and name != "arrival_s":
                said = "; ".join([missing(name, self.readers[-1].known), *reading.warned])
                raise DataError(f"in every row, {said}", path=files[0])
        return Log(
            frame=frame,
            format=self._formats(),
            files=tuple(map(str, files)),
            num_rows=num_rows,
            left_out=dict((+reading.left_out).most_common()),
            warnings=tuple(
                f"{count:,} {text}" if count else text for text, count in reading.warned.items()
            ),
            sources={name: _shares(sources[name]) for name in ORIGINS if sources.get(name)},
            unread=tuple(dict.fromkeys(name for one in self.readers for name in one.unread)),
        )

    def _formats(self) -> str:
        return ", ".join(dict.fromkeys(reader.known.name for reader in self.readers))

    def _count(self, frame: pd.DataFrame) -> None:
        """Give a frame whole numbers of tokens where all are known, and reasoning and answer."""
        numbers = {name: frame[name].to_numpy(dtype=float, na_value=np.nan) for name in COUNTS}
        _, output, reasoning, answer = numbers.values()
        if np.isfinite(reasoning).any():
            reasoning = numbers["reasoning_tokens"] = np.nan_to_num(reasoning)
            numbers["answer_tokens"] = np.where(np.isnan(answer), output - reasoning, answer)
        for name, column in numbers.items():
            frame[name] = column.astype(np.int64) if np.isfinite(column).all() else column
        if not any(frame["model"]):
            del frame["model"]

    def _repeated(
        self, arrival_s: NDArray[np.float64] | None, is_kept: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Return the mask of rows that are a call which another row logs, too; count both kinds."""
        reading = self.reading
        keys, twins, levels = (self.marks[name] for name in ("key", "twin", "level"))
        above: set[int] = set()
        for key in map(reading.above.get, reading.calls):
            while key is not None and key not in above:
                above.add(key)
                key = reading.above.get(key)
        is_above = (keys != 0) & np.isin(keys, np.array([*above], dtype=np.int64))
        found: NDArray[np.bool_] = is_kept & is_above
        reading.left_out["a call that a row below it logs again"] += int(found.sum())
        at_s = np.full(len(twins), np.nan) if arrival_s is None else arrival_s
        order = np.lexsort((at_s, twins))
        order = order[(is_kept & ~found & (twins != 0))[order]]
        before, after = order[:-1], order[1:]
        gap_s = np.where(twins[before] == twins[after], at_s[after] - at_s[before], np.inf)
        is_level = (gap_s <= _LEVELS_S) & (levels[before] != levels[after])
        found[after[is_level]] = True
        reading.left_out["a call that another kind of row logs again"] += int(is_level.sum())
        text = "requests have the prompt, counts and time of another: one call logged twice?"
        reading.warned.update([text] * int(((gap_s <= _TWINS_S) & ~is_level).sum()))
        return found

    def _warn(self, arrival_s: NDArray[np.float64] | None, places: NDArray[np.int64]) -> None:
        """Count the doubts about the whole log."""
        warned, num_json = self.reading.warned, int(self.marks["json"].sum())
        if num_json * 2 > self.origins["prompt"].total():
            warned["prompts are JSON of something else; give --prompt-column COLUMN"] = num_json
        if arrival_s is not None and len(places) > 1 and not np.ptp(arrival_s[places]):
            warned["all requests arrive at one time; give --arrival-column COLUMN"] = 0

    def _nothing(self, files: Sequence[Path], num_rows: int) -> DataError:
        """Return the error of a log without a request: what its rows share, and what settles it."""
        if not num_rows:
            return DataError(NO_ROWS, path=files[0])
        left_out, known = +self.reading.left_out, self.readers[-1].known
        most = ", ".join(f"{n} {why}" for why, n in left_out.most_common(5))
        words = {name: "time" if name == "arrival_s" else name for name in OPTIONS}
        lacking = [n for n, x in words.items() if re.search(rf"(?:no|its) {x}\b|\b{x} is no", most)]
        is_cut = any(why.startswith("censored") for why in left_out)
        hints = ["keep censored rows with --censored keep"] * is_cut
        hints += [known.advice(n) for n in lacking if n in ORIGINS[:3] and not known.is_table]
        hints += [f"give {OPTIONS[name]} COLUMN" for name in lacking]
        more = "".join(f"; {text}" for text in dict.fromkeys((*hints, *self.reading.warned)))
        text = f"no request is left of {num_rows} rows of this {self._formats()} log: {most}"
        return DataError(f"{text}{more}", path=files[0])

    def _arrivals(
        self, sources: dict[str, Counter[str]]
    ) -> tuple[NDArray[np.float64] | None, NDArray[np.bool_]]:
        """Return the times in seconds, None without, and the mask of bad rows."""
        reading, is_good = self.reading, np.zeros(len(self.times.numbers), dtype=bool)
        if not np.isfinite(self.times.numbers).any():
            if "arrival_s" in reading.needs:
                reading.warned["no times: all requests arrive at 0 s; give --arrival-column"] = 0
            return None, is_good
        name, *others = (source for source, _ in sources["arrival_s"].most_common())
        units = {reader.known.time_unit for reader in self.readers}
        starts = np.searchsorted(self.marks["place"], range(1, len(self.readers))).tolist()
        unit, order = (getattr(reading.options, name, None) for name in ("time_unit", "file_times"))
        try:
            known_unit = units.pop() if len(units) == 1 else None
            seconds, rule = self.times.in_seconds(name, unit, known_unit, others)
            seconds = times_of_files(seconds, starts, order, reading.warned)
        except DataError as error:
            if "arrival_s" in reading.needs and not reading.is_lenient:
                raise DataError(str(error), path=self.readers[-1].path) from error
            if reading.is_lenient:
                reading.warned[str(error)] = 0
            sources.pop("arrival_s")
            return None, is_good
        sources["arrival_s"] = Counter({rule: 1})
        own, every = (self.times.kinds == 2).sum(), np.isfinite(self.times.numbers).sum()
        without_zone = {"times without a zone among others, read as UTC": int(own)}
        reading.warned.update(without_zone if 0 < own < every else {})
        is_bad = np.isnan(seconds)
        if "arrival_s" not in reading.needs:
            return (None if is_bad.any() else seconds), is_good
        for place in np.flatnonzero(is_bad):
            time, path = self.times.numbers[place], self.readers[self.marks["place"][place]].path
            reason = "it has no time" if np.isnan(time) else f"its time is out of range ({time:g})"
            reading.leave_out(BadRow(reason), path, int(self.marks["row"][place]))
        return seconds, is_bad


def quantiles(values: ArrayLike) -> str:
    """Return the p5, p50, p95 and largest of numbers as text."""
    return "p5 {:.6g}, p50 {:.6g}, p95 {:.6g}, most {:.6g}".format(
        *np.nanpercentile(np.asarray(values, dtype=float), (5, 50, 95, 100))
    )


def _shares(found: Counter[str]) -> str:
    """Return the sources of a column, the most frequent first."""
    (first, _), *others = found.most_common(4)
    return "; ".join([first, *(f"{source} ({count:,} rows)" for source, count in others)])
