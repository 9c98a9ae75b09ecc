"""What a file holds, whatever it is called and however it is packed."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest

from lengthwise.errors import DataError
from lengthwise.tables.files import (
    BadRow,
    content_of,
    is_file_name,
    json_rows,
    kind_of,
    name_of,
    write_whole,
)

ROWS = [{"a": 1}, {"a": "\u2028"}]
LINES = "\n".join(json.dumps(row) for row in ROWS)


def packed(path: Path, content: bytes) -> Path:
    if path.suffix == ".zst":
        with pa.CompressedOutputStream(str(path), "zstd") as stream:
            stream.write(content)
    else:
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize(
    "text",
    [
        LINES,
        "\ufeff" + LINES + "\n\n",
        json.dumps(ROWS),
        json.dumps(ROWS, indent=2),
        "\n".join(json.dumps(row, indent=2) for row in ROWS),
        json.dumps({"data": ROWS, "meta": {"page": 1}}),
    ],
)
def test_rows_are_found_in_every_way_to_write_json(text: str) -> None:
    assert json_rows(text.encode(), Path("x")) == ROWS


def test_a_broken_line_is_a_bad_row_and_a_broken_file_an_error() -> None:
    good, broken, number = json_rows(b'{"a": 1}\n{"a"\n7\n', Path("x"))
    assert good == {"a": 1}
    assert isinstance(broken, BadRow)
    assert number == BadRow("it is 7, no JSON object")
    assert isinstance(json_rows(b'{"a"\n{"a": 1}\n{"a": 2}', Path("x"))[0], BadRow)
    with pytest.raises(DataError, match=r"x: cannot be read as JSON: .*whole file"):
        json_rows(b'[{"a": 1}, {"a"', Path("x"))


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("t.csv", b"{", "csv"),
        ("t.ndjson", b"x", "json"),
        ("t", b'\n {"a": 1}', "json"),
        ("t", b'[\n {"a": 1}]', "json"),
        ("t", b"PAR1 and so on", "parquet"),
        ("t.log", b"INFO Received request x: params", "text"),
        ("t.txt", b"a,b\n1,2", "csv"),
    ],
)
def test_a_suffix_says_what_a_file_holds_or_its_content(
    tmp_path: Path, name: str, content: bytes, kind: str, suffix: str
) -> None:
    path = packed(tmp_path / f"{name}{suffix}", content)
    assert kind_of(path) == kind
    assert content_of(path) == content


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    for name, start in (("t.jsonl.gz", b"\x1f\x8b"), ("t.jsonl.zst", b"\x28\xb5\x2f\xfd")):
        (tmp_path / name).write_bytes(start + b"nothing of it")
        with pytest.raises(DataError, match="cannot be decompressed"):
            content_of(tmp_path / name)


def test_names_lose_the_suffixes_of_ours_only(tmp_path: Path) -> None:
    assert name_of(Path("a/gpt-4.1.jsonl.zst")) == "gpt-4.1"
    assert name_of(Path("a/gpt-4.1")) == "gpt-4.1"
    (tmp_path / "log").touch()
    assert is_file_name("t.json.gz")
    assert is_file_name(str(tmp_path / "log"))
    assert not is_file_name("alpaca-vicuna7b")


def test_a_file_whose_writing_fails_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    write_whole(path, lambda part: part.write_text("old"))

    def fail(part: Path) -> None:
        part.write_text("half")
        raise OSError("disk full")

    with pytest.raises(DataError, match="disk full"):
        write_whole(path, fail)
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["t.txt"]
