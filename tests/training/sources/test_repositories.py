"""Files of a commit: only those that are missing come, and only as the commit has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lengthwise.errors import DataError
from tests.training.sources.github import Hub, open_hub
from training.sources.repositories import RemoteFile, Repository, blob_hash

PATTERN = r"results/.*\.json"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with open_hub() as hub:
        yield hub


@pytest.fixture
def repository(hub: Hub) -> Repository:
    return Repository(source="tatsu-lab/alpaca_eval", commit="c0ffee", mirror=hub.address + "/")


def test_the_hash_is_gits() -> None:
    assert blob_hash(b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"


def test_an_interrupted_download_continues(
    hub: Hub, repository: Repository, tmp_path: Path
) -> None:
    files = repository.files(PATTERN)
    assert [file.path.split("/")[1] for file in files] == ["NullModel", "a model", "m"]
    hub.broken = {files[1].path}
    with pytest.raises(DataError, match=r"a%20model/model_outputs.json cannot be had .*continues"):
        repository.download(files, tmp_path)
    assert hub.asked[files[1].path] == 3
    hub.broken, before = set(), hub.asked.copy()
    places = repository.download(files, tmp_path)
    assert [hub.asked[file.path] - before[file.path] for file in files] == [0, 1, 0]
    for file in files:
        assert blob_hash(places[file.path].read_bytes()) == file.sha
    assert not list(tmp_path.rglob(".part-*"))


def test_a_list_that_is_cut_is_read_by_folders(hub: Hub, repository: Repository) -> None:
    whole = repository.files(PATTERN)
    hub.cuts_lists = True
    assert repository.files(PATTERN) == whole


def test_a_damaged_file_is_fetched_again(hub: Hub, repository: Repository, tmp_path: Path) -> None:
    (file, *_) = repository.files(PATTERN)
    place = repository.download([file], tmp_path)[file.path]
    place.write_bytes(b"x" * file.size)
    repository.download([file], tmp_path)
    assert blob_hash(place.read_bytes()) == file.sha


def test_what_is_not_of_the_commit_is_refused(
    hub: Hub, repository: Repository, tmp_path: Path
) -> None:
    (file, *_) = repository.files(PATTERN)
    hub.served = {file.path: b"changed"}
    with pytest.raises(DataError, match="7 bytes that are not those of the commit"):
        repository.download([file], tmp_path)
    assert not (tmp_path / file.path).exists()


def test_a_source_that_is_gone_or_has_changed_is_one_line(repository: Repository) -> None:
    with pytest.raises(DataError, match=r"lists no file 'nothing'; the source has changed"):
        repository.files("nothing")
    away = Repository(source="a/b", commit="c", mirror="http://127.0.0.1:1")
    with pytest.raises(DataError, match=r"trees/a/b/c\?recursive=1 cannot be read .*give --mirror"):
        away.files(".*")
    assert RemoteFile(path="p", size=1, sha="s") == RemoteFile(path="p", size=1, sha="s")
