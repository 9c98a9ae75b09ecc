"""Small files that would fill the memory or the time of their reader."""

import gzip
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lengthwise.__main__ import main
from lengthwise.errors import DataError
from lengthwise.tables.options import RecordOptions
from lengthwise.tables.reading import read_log, read_table

MIB: Final = 1 << 20
ROW: Final = b'{"prompt": "x", "output_tokens": 3}\n'
EXPANDS: Final = "expands to more than 500 times its size"


def pack(path: Path, *parts: bytes | Iterator[bytes]) -> None:
    pieces = chain.from_iterable([part] if isinstance(part, bytes) else part for part in parts)
    if path.suffix == ".zst":
        with pa.CompressedOutputStream(str(path), "zstd") as stream:
            for piece in pieces:
                stream.write(piece)
    else:
        with (
            gzip.open(path, "wb", compresslevel=1) if path.suffix == ".gz" else path.open("wb") as s
        ):
            s.writelines(pieces)


def mebibytes(count: int, of: bytes = b"a") -> Iterator[bytes]:
    return repeat(of * (MIB // len(of)), count)


def dictionary(path: Path) -> None:
    indices = pa.array([0] * 20_000, pa.int32())
    column = pa.DictionaryArray.from_arrays(indices, ["a" * (MIB // 2)])
    pq.write_table(pa.table({"prompt": column, "output_tokens": [3] * 20_000}), path)


def page(path: Path) -> None:
    table = pa.table({"prompt": ["a" * (96 * MIB)], "output_tokens": [3]})
    plain = {"use_dictionary": False, "write_statistics": False}
    pq.write_table(table, path, compression="zstd", **plain)


BOMBS: Final[dict[str, tuple[Callable[[Path], None], str]]] = {
    "line.jsonl.zst": (lambda path: pack(path, b'{"prompt": "', mebibytes(1024), b'"}\n'), EXPANDS),
    "spaces.json.zst": (lambda path: pack(path, ROW, mebibytes(128, b" ")), EXPANDS),
    "array.json.zst": (lambda path: pack(path, b'[{"prompt": "', mebibytes(128)), "a value of"),
    "cell.csv.zst": (lambda path: pack(path, b"prompt\nx\n", mebibytes(128)), EXPANDS),
    "server.log.zst": (lambda path: pack(path, b"INFO Request x: ", mebibytes(128)), EXPANDS),
    "packed.parquet.zst": (lambda path: pack(path, b"PAR1", mebibytes(128)), EXPANDS),
    "dictionary.parquet": (dictionary, EXPANDS),
    "page.parquet": (page, EXPANDS),
    "line.jsonl.gz": (lambda path: pack(path, ROW, b'"', mebibytes(300), b'"\n', ROW), "2 rows"),
    "line.jsonl": (lambda path: pack(path, b'{"a": "', mebibytes(100), b'"}\n', ROW), "1 rows"),
    "cell.csv": (
        lambda path: pack(path, b'prompt,output_tokens\nx,3\n"', mebibytes(100), b'"\ny,4\n'),
        "2 rows",
    ),
    "header.csv": (lambda path: pack(path, mebibytes(100), b"\n1\n"), "has no header"),
    "wide.jsonl": (
        lambda path: pack(path, ROW, b'{"a": [', mebibytes(6, b"{},"), b"1]}\n"), "1 rows"
    ),
}  # fmt: skip
READER: Final = """\
import pathlib, re, sys
from lengthwise.errors import DataError
from lengthwise.tables.options import RecordOptions
from lengthwise.tables.reading import read_log
for name in sys.argv[1:]:
    try:
        said = f"{len(read_log(name, RecordOptions(on_bad_rows='skip')).frame)} rows"
    except DataError as error:
        said = str(error)
    print(pathlib.Path(name).name, said, sep="\\t")
print(int(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1]) // 1024)
"""


def test_no_file_takes_much_more_memory_than_its_longest_row(tmp_path):
    for name, (write, _) in BOMBS.items():
        write(tmp_path / name)
    names = [str(tmp_path / name) for name in BOMBS]
    ran = subprocess.run(
        [sys.executable, "-c", READER, *names], capture_output=True, text=True, timeout=600
    )
    *lines, most_mib = ran.stdout.splitlines()
    said = dict(line.split("\t") for line in lines)
    assert not [name for name, (_, right) in BOMBS.items() if right not in said[name]], said
    assert int(most_mib) < 500
    for name in ("dictionary.parquet", "page.parquet"):
        with pytest.raises(DataError, match=EXPANDS):
            read_table(tmp_path / name)


def deep(depth: int) -> list[str]:
    return [
        "[" * depth + "]" * depth,
        '{"prompt": ' + "[" * depth + "]" * depth + ', "output_tokens": 2}',
        '{"prompt": ' + '{"prompt":' * depth + "1" + "}" * depth + "}",
    ]


@pytest.mark.parametrize("depth", [101, 330, 900, 990, 100_000])
def test_a_deep_row_is_a_bad_row_like_another(tmp_path, depth):
    path, good = tmp_path / "log.jsonl", ROW.decode()
    path.write_text(good + "".join(line + "\n" for line in deep(depth)) + good * 9)
    log = read_log(path, RecordOptions(on_bad_rows="skip"))
    assert (len(log.frame), log.left_out) == (10, {"it is no JSON": 3})
    assert main(["inspect", str(path)]) == 0
    with pytest.raises(DataError, match=r"row 1: it is no JSON .it is nested more than 100"):
        read_log(path)


def test_a_deep_element_of_an_array_is_a_bad_row(tmp_path):
    path = tmp_path / "log.json"
    path.write_text(f"[{ROW.decode()}, {deep(150)[1]}, {ROW.decode()}]")
    assert read_log(path, RecordOptions(on_bad_rows="skip")).num_rows == 3


@pytest.mark.parametrize("number", ["1" * 10**6, "-" + "9" * 4000, "1e999999", "1" * 4299])
def test_a_huge_number_is_a_bad_row(tmp_path, number):
    path = tmp_path / "log.jsonl"
    path.write_text(ROW.decode() + f'{{"prompt": "y", "output_tokens": {number}}}\n')
    log = read_log(path, RecordOptions(on_bad_rows="skip"))
    assert (len(log.frame), sum(log.left_out.values())) == (1, 1)


def test_long_lines_and_many_columns_take_time_by_their_length(tmp_path):
    turns = r"<|im_start|>user\n" * 20_000
    request = (
        f"INFO 01-01 00:00:00 logger.py:1] Received request x: prompt: '{turns}', params: S(n=1)"
    )
    (tmp_path / "turns.log").write_text(request + "\n")
    (tmp_path / "id.log").write_text("Received request " + "a" * MIB + "\n")
    (tmp_path / "columns.csv").write_text(",".join(f"c{n}" for n in range(200_000)) + "\n1\n")
    for name in ("turns.log", "id.log", "columns.csv"):  # each took minutes
        with pytest.raises(DataError):
            read_log(tmp_path / name)
