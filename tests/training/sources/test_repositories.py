"""Files of a commit: only those that match, as the commit has them; a download continues."""

from pathlib import Path

import pytest

from lengthwise.errors import DataError
from tests.training.sources.github import commit
from training.sources import repositories
from training.sources.repositories import check_out

FILES = {f"results/{name}/out.json": b"a\r\n" + name.encode() for name in ("m", "[a] b", "z")}
PATTERN = r"results/.*\.json"


@pytest.fixture
def source(tmp_path: Path) -> tuple[str, str]:
    """The address of a git server, and the commit of its repository o/n."""
    host = tmp_path / "host"
    return f"file://{host}/", commit(host / "o/n", FILES | {"README.md": b"not fetched"})


def test_downloads_continue_and_damaged_files_are_mended(
    source: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (host, head), folder, git = source, tmp_path / "raw", repositories._git
    monkeypatch.setattr(repositories, "_AT_ONCE", 1)

    def fail_at_last(folder: Path, *words: str) -> str:
        if words[-1].startswith("results/z"):
            raise DataError("lost")
        return git(folder, *words)

    with monkeypatch.context() as patch:
        patch.setattr(repositories, "_git", fail_at_last)
        with pytest.raises(DataError, match="lost"):
            check_out("o/n", head, PATTERN, folder, host)
    assert len(list(folder.rglob("*.json"))) == 2
    (folder / "results/m/out.json").write_bytes(b"torn")
    hashes = check_out("o/n", head, PATTERN, folder, host)
    assert {path: (folder / path).read_bytes() for path in hashes} == FILES
    assert list(hashes) == sorted(FILES)
    assert git(folder, "hash-object", "results/m/out.json").strip() == hashes["results/m/out.json"]
    assert not (folder / "README.md").exists()


def test_a_source_that_is_gone_or_has_changed_is_one_line(
    source: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, head = source
    with pytest.raises(DataError, match=r"o/n has no file 'nothing' .*the source has changed"):
        check_out("o/n", head, "nothing", tmp_path / "raw", host)
    for where, what in (("a/b", head), ("o/n", "0" * 40)):
        with pytest.raises(DataError, match=r"cannot be had \(.*give --mirror"):
            check_out(where, what, PATTERN, tmp_path / "raw", host)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="git is not installed"):
        check_out("o/n", head, PATTERN, tmp_path / "raw", host)
