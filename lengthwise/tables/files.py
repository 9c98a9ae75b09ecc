"""Bytes of files: names, compression, kinds of content, and rows as they stream.

A log may lie in many files. Rows of JSON, CSV and Parquet are dictionaries; a damaged one is a
`BadRow`. Only a part of a file is in memory at any time.
"""

import atexit
import codecs
import glob
import gzip
import hashlib
import io
import logging
import os
import re
import sys
import tempfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from os import PathLike
from pathlib import Path
from shutil import copyfileobj
from typing import IO, Any, Final, Literal

from lengthwise.errors import DataError, raised_as
from lengthwise.strict_json import parsed

Kind = Literal["parquet", "csv", "json", "text"]
Row = dict[str, Any]
Paths = str | PathLike[str] | Sequence[str | PathLike[str]]

SUFFIXES: Final[dict[str, Kind]] = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".log": "text",
    ".txt": "text",
}
STANDARD_INPUT: Final = Path("-")
BLOCK: Final = 1 << 20
_MOST_EXPANDED, _MOST_RATIO = 1 << 26, 500
"""Bytes that a file may hold when it is decompressed, and bytes for each of its own if more."""
_GZIP, _ZSTD, _PARQUET, _ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1", b"PK\x03\x04"
_MARKS: Final = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_COMPRESSION: Final = re.compile(r"\.(?:gz|zst)$", re.IGNORECASE)
_ROTATED: Final = re.compile(r"(?:\.(?P<age>\d{1,4})|-(?P<date>\d{6,14}))$")
_JSON_START: Final = re.compile(r"\s*(?:\{|\[\s*(?:\{|\]))")
_VLLM_LINE: Final = re.compile(
    r"(?:INFO|DEBUG|WARNING)\S* \d\d-\d\d \d\d:\d\d:\d\d"
    r"|(?:^|[\s\"])(?:Received request|Generated response|Request) \S.{0,300}?: "
)
_MESSAGES, _DOCKER = ("message", "msg", "log"), {"log", "stream", "time"}
"""Keys of a line in JSON that hold a line of a server's log, and those of Docker."""


log = logging.getLogger(__name__)


class BadRow(str):
    """Reason in the place of a row that cannot be read."""


def is_file_name(name: str) -> bool:
    """Return whether a name is that of files: by its suffix, a pattern, or an existing place."""
    path = Path(name)
    has_suffix = suffix_of(path) in SUFFIXES or _COMPRESSION.search(name)
    return bool(has_suffix) or glob.has_magic(name) or path == STANDARD_INPUT or path.exists()


def suffix_of(path: Path) -> str:
    """Return the suffix of the content in lower case: of a.csv.gz and of a.csv.1 it is .csv."""
    return Path(_plain_name(path).lower()).suffix


def name_of(path: Path) -> str:
    """Return a file's name without known suffixes: of gpt-4.1.jsonl.zst it is gpt-4.1."""
    name = _COMPRESSION.sub("", path.name)
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name or path.name


def _plain_name(path: Path) -> str:
    """Return a file's name without compression and the mark of a rotated log."""
    name = _COMPRESSION.sub("", path.name)
    shorter = _ROTATED.sub("", name)
    return shorter if Path(shorter).suffix in SUFFIXES else name


def files_of(names: Paths) -> list[Path]:
    """Return the files of names, folders and patterns; pieces of a rotated log oldest first.

    "-" is the standard input. Hidden files of a folder and files of other formats are left out.

    Raises DataError for a name without a file.
    """
    found: list[Path] = []
    for name in [names] if isinstance(names, str | PathLike) else names:
        path, text = Path(name), str(name)
        if path == STANDARD_INPUT or path.is_file():
            inside = [path]
        elif path.is_dir():
            every = [p for p in path.rglob("*") if p.is_file() and p.stat().st_size]
            seen = [p for p in every if not any(x[0] == "." for x in p.relative_to(path).parts)]
            inside = [p for p in seen if suffix_of(p) in ("", *SUFFIXES)]
            if any(p.suffix == ".arrow" for p in seen):
                raise DataError("it is a folder of save_to_disk; save it by to_parquet", path=path)
            if others := len(seen) - len(inside):
                log.warning("%s: %d files of other formats are left out", path, others)
        else:
            inside = [p for p in map(Path, glob.glob(text, recursive=True)) if p.is_file()]
        if not inside:
            state = "is a folder without files" if path.is_dir() else "does not exist"
            raise DataError(f"the file {state}; give a table or a log", path=path)
        parts = {p: re.findall(r"\d+|\D+", p.name) for p in inside}
        natural = {p: [(int(x), "") if x.isdecimal() else (-1, x) for x in parts[p]] for p in parts}
        found += sorted(inside, key=lambda p: (p.parent, natural[p]))
    logs = [path.with_name(_plain_name(path)) for path in found]
    places = {path: (logs.index(log), _age(path)) for path, log in zip(found, logs, strict=True)}
    return sorted(places, key=lambda path: places[path])


def _age(path: Path) -> tuple[int, int]:
    name = _COMPRESSION.sub("", path.name)
    found = _ROTATED.search(name) if _plain_name(path) != name else None
    if found is None:
        return (1, 0)  # the piece that is still written
    return (0, int(found["date"])) if found["date"] else (0, -int(found["age"]))


def kind_of(path: Path) -> Kind:
    """Return the kind of a file by its content, else by its suffix.

    "text" is the log of a vLLM server, in lines of text or of JSON.

    Raises:
        DataError: an empty or damaged file, or an unknown format.
    """
    start = start_of(path, BLOCK)
    if not start.strip():
        raise DataError("the file is empty; give a table or a log", path=path)
    named, suffix = SUFFIXES.get(suffix_of(path), "text"), suffix_of(path)
    if start.startswith(_PARQUET) or named == "parquet":
        return "parquet"
    num_nul = 0 if any(map(start.startswith, _MARKS)) else start[:4096].count(0)
    if start.startswith(_ZIP) or num_nul > (len(start[:4096]) / 10 if suffix in SUFFIXES else 0):
        state = f"format {suffix or 'of binary data'!r} is unknown"
        if suffix in SUFFIXES:
            state = "it is no text, but an archive, binary data or UTF-16 without its mark"
        advice = f"use one of {', '.join(SUFFIXES)}, also with .gz or .zst, or no suffix at all"
        raise DataError(f"{state}; {advice}", path=path)
    text = start.decode(encoding_of(start), errors="replace")
    if _JSON_START.match(text) and named != "csv":
        return "text" if any(map(_is_server_line, text.split("\n")[:20])) else "json"
    return named if named != "text" else "text" if _VLLM_LINE.search(text) else "csv"


def _is_server_line(line: str) -> bool:
    entry = parsed_line(line)
    if not isinstance(entry, dict):
        return False
    is_server = str(entry.get("name", "")).startswith("vllm.") or entry.keys() == _DOCKER
    return is_server or any(
        isinstance(x, str) and _VLLM_LINE.search(x) is not None for x in map(entry.get, _MESSAGES)
    )


def encoding_of(start: bytes) -> str:
    """Return the encoding of a text by its byte order mark; else UTF-8."""
    return next((name for mark, name in _MARKS.items() if start.startswith(mark)), "utf-8-sig")


@cache
def _standard_input() -> Path:
    """Return a file with the standard input, which is read more than once."""
    with tempfile.NamedTemporaryFile(prefix="lengthwise-", delete=False) as kept:
        copyfileobj(sys.stdin.buffer, kept)
    atexit.register(os.unlink, kept.name)
    return Path(kept.name)


def _place(path: Path) -> Path:
    return _standard_input() if path == STANDARD_INPUT else path


def _raw(path: Path) -> IO[bytes]:
    with raised_as(DataError, "the file cannot be read ({})", OSError, path=path):
        return _place(path).open("rb")


def opened(path: Path) -> IO[bytes]:
    """Return the decompressed stream of a file. Raises DataError for an absent file."""
    with _raw(path) as raw:
        start = raw.read(4)
    if start.startswith(_GZIP):
        return io.BufferedReader(_Expanding(gzip.open(_place(path)), path), BLOCK)
    if start.startswith(_ZSTD):
        import pyarrow as pa

        stream = pa.input_stream(str(_place(path)), compression="zstd")
        return io.BufferedReader(_Expanding(stream, path), BLOCK)
    return _raw(path)


class _Expanding(io.RawIOBase):
    """Decompressed bytes, counted."""

    def __init__(self, stream: Any, path: Path) -> None:
        self.stream, self.count = stream, allowance(path)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self.count(self.stream.readinto(buffer) or 0)


def allowance(path: Path) -> Callable[[int], int]:
    """Return a counter of bytes. It raises DataError for more than a file may hold."""
    left = max(_MOST_EXPANDED, _MOST_RATIO * _place(path).stat().st_size)

    def count(size: int) -> int:
        nonlocal left
        if (left := left - size) < 0:
            reason = f"expands to more than {_MOST_RATIO} times its size; give it decompressed"
            raise DataError(reason, path=path)
        return size

    return count


def undamaged(path: Path) -> AbstractContextManager[None]:
    """Turn an error of decompression into a DataError."""
    text, kinds = "cannot be decompressed ({}); copy it again", (OSError, EOFError, zlib.error)
    return raised_as(DataError, text, *kinds, path=path)


def start_of(path: Path, size: int = 4) -> bytes:
    with undamaged(path), opened(path) as stream:
        return stream.read(size)


def parsed_line(line: str | bytes) -> Any:
    try:
        return parsed((line if isinstance(line, str) else line.decode()).removeprefix("\ufeff"))
    except UnicodeDecodeError as error:
        return BadRow(f"it is no UTF-8 ({error})")
    except ValueError as error:
        return BadRow(f"it is no JSON ({error})")


def digest_of(names: Paths) -> str:
    """Return the SHA-256 of the bytes of files, in hex."""
    digest = hashlib.sha256()
    for path in files_of(names):
        with _raw(path) as stream:
            while block := stream.read(BLOCK):
                digest.update(block)
    return digest.hexdigest()


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
