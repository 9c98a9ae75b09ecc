"""Content of a file under any name and any compression."""

from pathlib import Path

import pytest

from lengthwise.errors import DataError
from lengthwise.tables import files
from lengthwise.tables.rows import lines_of
from tests.lengthwise.tables.log_matrix import packed


def test_pieces_of_a_log_are_read_oldest_first(tmp_path):
    names = ["v.log", "v.log.1", "v.log.2.gz", "v.log.10", "v.log-20260301", "part-9", "part-10"]
    for name in names:
        (tmp_path / name).write_bytes(packed(name.encode(), Path(name).suffix))
    (tmp_path / ".hidden").touch()
    (tmp_path / "README.md").touch()
    in_order = ["part-9", "part-10", "v.log.10", "v.log.2.gz", "v.log.1", "v.log-20260301", "v.log"]
    assert [path.name for path in files.files_of(tmp_path)] == in_order
    assert [path.name for path in files.files_of(f"{tmp_path}/v.log*")] == in_order[2:]
    shuffled = [tmp_path / name for name in ("v.log", "v.log.2.gz", "part-10", "v.log.1")]
    found = [path.name for path in files.files_of(shuffled)]
    assert found == ["v.log.2.gz", "v.log.1", "v.log", "part-10"]
    assert files.digest_of(tmp_path / "v.log.1") != files.digest_of(shuffled)
    assert list(lines_of(tmp_path / "v.log.2.gz")) == ["v.log.2.gz"]
    for nothing in (tmp_path / "empty", f"{tmp_path}/*.none", "absent"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(DataError, match=r"is a folder without files|does not exist"):
            files.files_of(nothing)


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
        ("t.csv", b"prompt,output_tokens\na\0b,2", "csv"),
    ],
)
def test_a_suffix_says_what_a_file_holds_or_its_content(tmp_path, name, content, kind, suffix):
    (path := tmp_path / f"{name}{suffix}").write_bytes(packed(content, suffix))
    assert files.kind_of(path) == kind
    with files.opened(path) as stream:
        assert stream.read() == content


def test_a_damaged_archive_is_refused(tmp_path):
    for name, start in (("t.jsonl.gz", b"\x1f\x8b"), ("t.jsonl.zst", b"\x28\xb5\x2f\xfd")):
        (tmp_path / name).write_bytes(start + b"nothing of it")
        with pytest.raises(DataError, match="cannot be decompressed"):
            files.kind_of(tmp_path / name)


def test_names_lose_the_suffixes_of_ours_only(tmp_path):
    assert files.name_of(Path("a/gpt-4.1.jsonl.zst")) == "gpt-4.1"
    assert files.name_of(Path("a/gpt-4.1")) == "gpt-4.1"
    (tmp_path / "log").touch()
    assert files.is_file_name("t.json.gz")
    assert files.is_file_name(str(tmp_path / "log"))
    assert not files.is_file_name("alpaca-vicuna7b")


def test_a_file_whose_writing_fails_leaves_only_the_old_one(tmp_path):
    path = tmp_path / "t.txt"
    files.write_whole(path, lambda part: part.write_text("old"))

    def fail(part: Path) -> None:
        part.write_text("half")
        raise OSError("disk full")

    with pytest.raises(DataError, match="disk full"):
        files.write_whole(path, fail)
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["t.txt"]
