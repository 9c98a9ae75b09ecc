"""Formats of logged requests: `layouts.toml` as objects, and which of them a row is of."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Final

from lengthwise.tables.gateways import LAYOUTS
from lengthwise.tables.gateways.rewrites import merged_stream, with_attributes, with_turns
from lengthwise.tables.values import flat, plain, unpacked

Paths = tuple[str, ...]
Rewrite = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class LogFormat:
    """Paths of our columns in a row, and rules of a row, as `layouts.toml` explains them."""

    name: str = "table"
    is_table: bool = True
    marks: tuple[Paths, ...] = ()
    paths: Mapping[str, Paths] = field(default_factory=dict)
    answered: Mapping[str, Paths] = field(default_factory=dict)
    no_load: Mapping[str, Paths] = field(default_factory=dict)
    parts_beside: bool = False
    is_apart: bool = True
    time_unit: str | None = None
    prepare: Rewrite | None = None
    lift: Paths = ()
    """Keys that lead to the request in the wrappers of this file; found in its first rows."""
    without_prompt: str = "a trace of lengths has none; give a log with prompts"
    without_length: str = "log the usage of each response"

    def advice(self, field: str) -> str:
        """Return what gives the rows of this format a field."""
        return self.without_prompt if field == "prompt" else self.without_length

    def prepared(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a row without wrappers and rewritten, as the paths expect it."""
        return (self.prepare or dict)(reduce(lifted, self.lift, row))


_REWRITES: Final = {each.__name__: each for each in (merged_stream, with_attributes, with_turns)}
_DEPTH, _WIDTH = 4, 24
"""Wrappers around a request, and the objects at one depth that are tried."""
REDACTED: Final = "redacted-by-litellm"


def _formats(given: dict[str, Any]) -> dict[str, LogFormat]:
    """Return the formats of `layouts.toml`; the first is that of a plain table."""
    names, made = given["names"], dict[str, LogFormat]()

    def all_of(paths: Any, inherited: Paths = ()) -> Paths:
        every: list[str] = []
        for path in paths:
            if (found := re.search(r"\{(\w+)\}", path)) is not None:
                each = (path.replace(found[0], name, 1).lstrip(".") for name in names[found[1]])
                every += all_of(each)
            else:
                every += inherited if path == "+" else (path,)
        return tuple(every)

    def build(name: str) -> LogFormat:
        layout = dict(given[name])
        like, marks = layout.pop("like", "table"), layout.pop("marks", ())
        base = LogFormat() if name == "table" else made.get(like) or build(like)
        changes: dict[str, Any] = {
            **{key: _REWRITES.get(x, x) for key, x in layout.items() if isinstance(x, str)},
            **{key: x for key, x in layout.items() if isinstance(x, bool)},
            **{"name": name, "is_table": name == "table", "marks": tuple(map(all_of, marks))},
        }
        for kind in ("answered", "no_load"):
            pairs = [(p, x) for keys, x in layout.get(kind, {}).items() for p in all_of([keys])]
            every = {**getattr(base, kind), **{path: all_of(words) for path, words in pairs}}
            changes[kind] = {path: words for path, words in every.items() if words != ("*",)}
        lists = ((key, x) for key, x in layout.items() if isinstance(x, list))
        own = {key: all_of(x, base.paths.get(key, ())) for key, x in lists}
        made[name] = replace(base, **changes, paths={**base.paths, **own})
        return made[name]

    return {name: build(name) for name in given if name not in ("names", "beside")}


_LAYOUTS: Final = _formats(LAYOUTS)
TABLE: Final = _LAYOUTS.pop("table")
VLLM: Final = _LAYOUTS.pop("vLLM")
FORMATS: Final = tuple(_LAYOUTS.values())


def recognise(row: Mapping[str, Any]) -> LogFormat | None:
    """Return the format of a row, also inside wrappers; None for the row of an unknown table."""
    found: list[tuple[Paths, Mapping[str, Any]]] = [((), row)]
    for _ in range(_DEPTH):
        for known in FORMATS:
            for lift, own in found:
                made = flat(own if known.prepare is None else known.prepare(own))
                # A mark is a value at one of its paths, or none at !path.
                marks = [
                    [(made.get(plain(x)) is None) is (x[0] == "!") for x in m] for m in known.marks
                ]
                if all(map(any, marks)):
                    return replace(known, lift=lift) if lift else known
        wanted = set(map(plain, TABLE.paths["output_tokens"]))
        tables = [lift for lift, own in found if wanted & set(map(plain, own))]
        if tables:
            return replace(TABLE, lift=tables[0]) if len(tables) == 1 else None
        inner = [
            ((*lift, key), lifted(own, key))
            for lift, own in found
            for key, value in own.items()
            if key not in lift and isinstance(unpacked(value), Mapping)
        ]
        found = inner[:_WIDTH]
    return None


def lifted(row: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a row with the values inside one of its own as its own keys."""
    parts = inner.items() if isinstance(inner := unpacked(row.get(key)), Mapping) else ()
    return {**row, **{name: value for name, value in parts if value not in (None, "", {}, [])}}
