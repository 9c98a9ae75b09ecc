"""Files of a public GitHub repository at a commit, checked by the hashes that git keeps of them."""

import hashlib
import logging
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx

from lengthwise.errors import DataError
from lengthwise.progress import Progress

_GITHUB: Final = {
    "trees": "https://api.github.com/repos/{}/git/trees",
    "raw": "https://raw.githubusercontent.com/{}",
}
_AT_ONCE: Final = 8
"""Files in flight."""
_ATTEMPTS: Final = 3
_TIMEOUT_S: Final = 60.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteFile:
    """A file of a repository."""

    path: str
    size: int
    sha: str
    """Of git: SHA-1 over a header and the content."""


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A repository at a commit."""

    source: str
    """owner/name."""
    commit: str
    mirror: str | None = None
    """Address that serves /trees/OWNER/NAME/COMMIT and /raw/OWNER/NAME/COMMIT/PATH."""

    def files(self, pattern: str) -> list[RemoteFile]:
        """Return the files whose whole path matches a regular expression, in order of path.

        Raises:
            DataError: the repository cannot be reached, or has no such files.
        """
        found = [file for file in self._tree(self.commit, "") if re.fullmatch(pattern, file.path)]
        if not found:
            address = f"{self._base('trees')}/{self.commit}"
            raise DataError(f"{address} lists no file {pattern!r}; the source has changed")
        return sorted(found, key=lambda file: file.path)

    def download(self, files: Sequence[RemoteFile], folder: Path) -> dict[str, Path]:
        """Download the files into a folder; returns the place of each.

        Whole files that are present stay, so an interrupted download continues.

        Raises:
            DataError: a file cannot be downloaded, or differs from that of the commit.
        """
        places = {file.path: folder / file.path for file in files}
        missing = [file for file in files if not _is_whole(places[file.path], file)]
        logger.info(
            "%s at %s: %d files, %d of them (%.1f MB) to fetch",
            *(self.source, self.commit[:12], len(files), len(missing)),
            sum(file.size for file in missing) / 1e6,
        )
        with (
            Progress(len(missing), log=logger.info) as progress,
            ThreadPoolExecutor(_AT_ONCE) as pool,
        ):
            for path in pool.map(lambda file: self._bring(file, places[file.path]), missing):
                progress.step(path)
        return places

    def _bring(self, file: RemoteFile, place: Path) -> str:
        address = f"{self._base('raw')}/{self.commit}/{quote(file.path)}"
        for _ in range(_ATTEMPTS):
            try:
                content = self._get(address).content
            except httpx.HTTPError as error:
                reason = _in_one_line(error)
                continue
            if blob_hash(content) == file.sha:
                place.parent.mkdir(parents=True, exist_ok=True)
                part = place.with_name(f".part-{place.name}")
                part.write_bytes(content)
                os.replace(part, place)
                return file.path
            reason = f"{len(content)} bytes that are not those of the commit"
        raise DataError(
            f"{address} cannot be had ({reason}); the same command continues with what is missing"
        )

    def _tree(self, name: str, folder: str) -> list[RemoteFile]:
        """Return the files of a tree; a long list, which GitHub cuts, is read by folders."""
        address = f"{self._base('trees')}/{name}"
        listing = self._listing(f"{address}?recursive=1")
        if is_cut := listing.get("truncated", False):
            listing = self._listing(address)
        files = []
        for entry in listing["tree"]:
            path = f"{folder}{entry['path']}"
            if entry["type"] == "blob":
                files.append(RemoteFile(path=path, size=entry["size"], sha=entry["sha"]))
            elif entry["type"] == "tree" and is_cut:
                files += self._tree(entry["sha"], f"{path}/")
        return files

    def _listing(self, address: str) -> dict[str, Any]:
        try:
            listing: dict[str, Any] = self._get(address).json()
        except (httpx.HTTPError, ValueError) as error:
            reason = _in_one_line(error)
            raise DataError(
                f"{address} cannot be read ({reason}); check the network, or give --mirror"
            ) from error
        return listing

    def _get(self, address: str) -> httpx.Response:
        return self._client.get(address).raise_for_status()

    @cached_property
    def _client(self) -> httpx.Client:
        return httpx.Client(follow_redirects=True, timeout=_TIMEOUT_S)

    def _base(self, kind: str) -> str:
        if self.mirror is None:
            return _GITHUB[kind].format(self.source)
        return f"{self.mirror.rstrip('/')}/{kind}/{self.source}"


def blob_hash(content: bytes) -> str:
    """Return git's hash of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _is_whole(place: Path, file: RemoteFile) -> bool:
    if not place.is_file() or place.stat().st_size != file.size:
        return False
    return blob_hash(place.read_bytes()) == file.sha


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
