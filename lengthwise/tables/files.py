"""Bytes of a file: compression, the kind of content, and the rows of JSON.

Parquet and CSV are read by a library. JSON is read here, so that a damaged row is one bad row and
no unreadable file. Every kind may be compressed by gzip or zstandard.
"""

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

from lengthwise.errors import DataError

Kind = Literal["parquet", "csv", "json", "text"]
Row = dict[str, Any]

SUFFIXES: Final[dict[str, Kind]] = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".log": "text",
    ".txt": "text",
}
COMPRESSED: Final = (".gz", ".zst")
_SAMPLE: Final = 20
"""Lines that decide between JSON lines and objects of several lines."""
_SPACE: Final = re.compile(r"\s*")
_GZIP, _ZSTD, _PARQUET = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"
_JSON_START: Final = re.compile(rb"\s*(?:\{|\[\s*(?:\{|\]))")
_VLLM_LINE: Final = re.compile(rb"(?:Received request|Generated response) ")
_WRAPPERS: Final = ("data", "logs", "rows", "observations", "items")
"""Keys under which an export holds its list of rows."""


class BadRow(str):
    """Reason in the place of a row that cannot be read."""


def is_file_name(name: str) -> bool:
    """Return whether a name is that of a table or log: by its suffix, or by an existing file."""
    path = Path(name)
    return suffix_of(path) in SUFFIXES or path.suffix in COMPRESSED or path.is_file()


def suffix_of(path: Path) -> str:
    """Return the suffix of the content in lower case: of a.csv.gz it is .csv."""
    name = path.name.lower()
    for compressed in COMPRESSED:
        name = name.removesuffix(compressed)
    return Path(name).suffix


def name_of(path: Path) -> str:
    """Return a file's name without known suffixes: of gpt-4.1.jsonl.zst it is gpt-4.1."""
    name = path.name
    for suffix in (*COMPRESSED, *SUFFIXES):
        name = name.removesuffix(suffix)
    return name or path.name


def kind_of(path: Path) -> Kind:
    """Return the kind of a file by its suffix, or by its content without a clear suffix.

    Raises:
        DataError: an absent, empty or damaged file, or a suffix of another format.
    """
    if not path.is_file() or path.stat().st_size == 0:
        state = "is empty" if path.is_file() else "does not exist"
        raise DataError(f"the file {state}; give a table or a log", path=path)
    suffix = suffix_of(path)
    if suffix and suffix not in SUFFIXES:
        known = ", ".join(SUFFIXES)
        raise DataError(
            f"format {suffix!r} is unknown; use one of {known}, also with .gz or .zst, or no "
            "suffix at all",
            path=path,
        )
    if (named := SUFFIXES.get(suffix, "text")) != "text":
        return named
    content = content_of(path)
    if content.startswith(_PARQUET):
        return "parquet"
    if _JSON_START.match(content):
        return "json"
    return "text" if _VLLM_LINE.search(content) else "csv"


def content_of(path: Path) -> bytes:
    """Return the decompressed content of a file. Raises DataError if it is damaged."""
    content = path.read_bytes()
    try:
        if content.startswith(_GZIP):
            return gzip.decompress(content)
        if content.startswith(_ZSTD):
            import pyarrow as pa

            with pa.CompressedInputStream(pa.BufferReader(content), "zstd") as stream:
                return bytes(stream.read())
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot be decompressed ({error}); copy it again", path=path) from error
    return content


def json_rows(content: bytes, path: Path) -> list[Row | BadRow]:
    """Return the objects of JSON lines, of a JSON array, or of objects one after another.

    One object with a list of rows (under `data` or `logs`, as in a page of an API) stands for that
    list. A line that is no object becomes a `BadRow`.
    """
    text = content.decode("utf-8-sig", errors="replace")
    lines = [line for line in text.split("\n") if line.strip()]
    are_objects = [isinstance(_parsed(line), dict) for line in lines[:_SAMPLE]]
    has_lines = are_objects[:1] == [True] or 2 * sum(are_objects) >= len(are_objects)
    has_lines = has_lines and not text.lstrip().startswith("[")
    rows = [_parsed(line) for line in lines] if has_lines else list(_values(text, path))
    if len(rows) == 1 and isinstance(rows[0], dict):
        inner = [rows[0][key] for key in _WRAPPERS if isinstance(rows[0].get(key), list)]
        if len(inner) == 1 and all(isinstance(row, dict) for row in inner[0]):
            rows = inner[0]
    return [
        row if isinstance(row, dict | BadRow) else BadRow(f"it is {str(row)[:40]}, no JSON object")
        for row in rows
    ]


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        return BadRow(f"it is no JSON ({error})")


def _values(text: str, path: Path) -> Iterator[Any]:
    """Yield the elements of an array, or the values that follow one another in a file."""
    decoder, start = json.JSONDecoder(), _SPACE.match(text, 0)
    while start and start.end() < len(text):
        try:
            value, end = decoder.raw_decode(text, start.end())
        except ValueError as error:
            raise DataError(
                f"cannot be read as JSON: {error}; give a whole file", path=path
            ) from error
        yield from value if isinstance(value, list) else [value]
        start = _SPACE.match(text, end)


def write_whole(path: Path, write: Callable[[Path], object], *, make_folder: bool = False) -> Path:
    """Write a file whole or not at all: `write` fills a file beside `path`, which takes its place.

    Raises DataError if the place cannot be written.
    """
    part = path.with_name(f".part-{path.name}")
    try:
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        write(part)
        part.replace(path)
    except OSError as error:
        if path.parent.is_dir():
            part.unlink(missing_ok=True)
        raise DataError(f"cannot be written ({error}); choose another place", path=path) from error
    return path
