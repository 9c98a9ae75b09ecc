"""A fetched set is found by its id, equals its card, and is not fetched twice."""

from dataclasses import replace
from pathlib import Path

import pytest

from lengthwise.bundle import sha256_of
from lengthwise.errors import ConfigError, DataError
from tests.training.sources.github import commit
from training.data.cards import load_data, read_card
from training.sources import fetching
from training.sources.fetching import check_id, check_out, fetch
from training.sources.layouts import LAYOUTS


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_set_is_built_and_loaded_by_its_id(name: str, git_host: str, tmp_path: Path) -> None:
    fetched = fetch(check_id(name), tmp_path, git_host)
    assert not fetched["was_there"]
    assert sorted(path.name for path in (tmp_path / name).iterdir()) in (
        ["card.yaml", "lengths.parquet"],
        ["card.yaml", "lengths.parquet", "prompts.parquet"],
    )
    assert fetched["sha256"] == sha256_of(tmp_path / name / "lengths.parquet")
    data = load_data(name, str(tmp_path))
    assert data.origin == str(tmp_path / name)
    assert data.card.licence == read_card(name).licence
    assert "Built from" in data.card.notes
    assert all(record["prompt"] and max(record["output_tokens"]) > 0 for record in data.records)
    assert len(data.records) > 0


def test_what_is_there_stays_and_what_is_damaged_is_built_again(git_host, tmp_path):
    card = check_id("gpteacher-gpt4")
    first = fetch(card, tmp_path, git_host)
    assert fetch(card, tmp_path, "file:///nowhere") == first | {"was_there": True}
    (tmp_path / card.id / "lengths.parquet").write_bytes(b"")
    assert fetch(card, tmp_path, git_host) == first


def test_another_layout_is_one_line(tmp_path: Path) -> None:
    card = read_card("gpteacher-gpt4")
    files = {"Codegen/codegen-instruct.json": b'[{"question": "?"}]'}
    card = replace(card, commit=commit(tmp_path / "host" / card.source, files))
    with pytest.raises(DataError, match=r"GPTeacher does not have the layout it had \(KeyError"):
        fetch(card, tmp_path, f"file://{tmp_path}/host")


def test_a_set_that_cannot_be_built_says_which_can() -> None:
    with pytest.raises(ConfigError, match=r"'smollm2-instruct' cannot be read .*gpteacher-gpt4"):
        check_id("smollm2-instruct")
    with pytest.raises(DataError, match="no data set 'nothing'"):
        check_id("nothing")


FILES = {f"results/{name}/out.json": b"a\r\n" + name.encode() for name in ("m", "[a] b", "z")}
PATTERN = r"results/.*\.json"


@pytest.fixture
def source(tmp_path: Path) -> tuple[str, str]:
    """The address of a git server, and the commit of its repository o/n."""
    host = tmp_path / "host"
    return f"file://{host}/", commit(host / "o/n", FILES | {"README.md": b"not fetched"})


def test_downloads_continue_and_damaged_files_are_mended(source, tmp_path, monkeypatch):
    (host, head), folder, git = source, tmp_path / "raw", fetching._git
    monkeypatch.setattr(fetching, "_AT_ONCE", 1)

    def fail_at_last(folder: Path, *words: str) -> str:
        if words[-1].startswith("results/z"):
            raise DataError("lost")
        return git(folder, *words)

    with monkeypatch.context() as patch:
        patch.setattr(fetching, "_git", fail_at_last)
        with pytest.raises(DataError, match="lost"):
            check_out("o/n", head, PATTERN, folder, host)
    assert len(list(folder.rglob("*.json"))) == 2
    (folder / "results/m/out.json").write_bytes(b"torn")
    hashes = check_out("o/n", head, PATTERN, folder, host)
    assert {path: (folder / path).read_bytes() for path in hashes} == FILES
    assert list(hashes) == sorted(FILES)
    assert git(folder, "hash-object", "results/m/out.json").strip() == hashes["results/m/out.json"]
    assert not (folder / "README.md").exists()


def test_a_source_that_is_gone_or_has_changed_is_one_line(source, tmp_path, monkeypatch):
    host, head = source
    with pytest.raises(DataError, match=r"o/n has no file 'nothing' .*the source has changed"):
        check_out("o/n", head, "nothing", tmp_path / "raw", host)
    for where, what in (("a/b", head), ("o/n", "0" * 40)):
        with pytest.raises(DataError, match=r"cannot be had \(.*give --mirror"):
            check_out(where, what, PATTERN, tmp_path / "raw", host)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="git is not installed"):
        check_out("o/n", head, PATTERN, tmp_path / "raw", host)
