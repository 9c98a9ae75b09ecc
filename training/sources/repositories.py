"""Files of a public GitHub repository at a commit, checked by the hashes that git keeps of them."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from lengthwise.command_line import Tenths
from lengthwise.errors import DataError

GITHUB: Final = (
    "https://api.github.com/repos/{source}/git/trees/{commit}?recursive=1",
    "https://raw.githubusercontent.com/{source}/{commit}/{path}",
)
"""Addresses of the list of files and of a file."""
_AT_ONCE: Final = 8
"""Files in flight."""
_ATTEMPTS: Final = 3

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteFile:
    """A file of a repository."""

    path: str
    size: int
    sha: str
    """Of git: SHA-1 over a header and the content."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Repository:
    """A repository at a commit."""

    source: str
    """owner/name."""
    commit: str
    mirror: str | None = None
    """Address that has the same under /trees/OWNER/NAME/COMMIT and /raw/OWNER/NAME/COMMIT/PATH."""

    def files(self, pattern: str) -> list[RemoteFile]:
        """Return the files whose whole path matches a regular expression, in order of path.

        Raises:
            DataError: the repository cannot be reached, or has no such files.
        """
        found = [file for file in self._tree(self.commit, "") if re.fullmatch(pattern, file.path)]
        if not found:
            address = self._address(0, "", self.commit)
            raise DataError(f"{address} lists no file {pattern!r}; the source has changed")
        return sorted(found, key=lambda file: file.path)

    def _tree(self, name: str, folder: str) -> list[RemoteFile]:
        """Return the files of a tree; GitHub cuts long lists, and these are read by folders."""
        answer = self._listed(self._address(0, "", name))
        is_cut = answer.get("truncated", False)
        if is_cut:
            answer = self._listed(self._address(0, "", name).partition("?")[0])
        files = []
        for entry in answer["tree"]:
            path = f"{folder}{entry['path']}"
            if entry["type"] == "blob":
                files.append(RemoteFile(path=path, size=entry["size"], sha=entry["sha"]))
            elif entry["type"] == "tree" and is_cut:
                files += self._tree(entry["sha"], f"{path}/")
        return files

    def _listed(self, address: str) -> dict[str, Any]:
        answer = _fetched([address])[address]
        if isinstance(answer, Exception):
            raise DataError(
                f"{address} cannot be read ({_said(answer)}); check the network, or give --mirror"
            ) from answer
        listed: dict[str, Any] = json.loads(answer)
        return listed

    def download(self, files: Sequence[RemoteFile], folder: Path) -> dict[str, Path]:
        """Bring the files into a folder; returns where each is.

        Files that are there already and whole stay, so an interrupted download continues.

        Raises:
            DataError: a file cannot be had, or is not what the commit says.
        """
        from tqdm import tqdm

        places = {file.path: folder / file.path for file in files}
        missing = [file for file in files if not _is_whole(places[file.path], file)]
        total = sum(file.size for file in missing)
        logger.info(
            "%s at %s: %d files, %d of them (%.1f MB) to fetch",
            *(self.source, self.commit[:12], len(files), len(missing), total / 1e6),
        )
        is_hidden, tenths, done = not sys.stderr.isatty(), Tenths(logger.info), 0
        with tqdm(total=total, unit="B", unit_scale=True, disable=is_hidden) as bar:
            for start in range(0, len(missing), _AT_ONCE):
                for file in self._bring(missing[start : start + _AT_ONCE], places):
                    bar.update(file.size)
                    done += file.size
                    if is_hidden:
                        tenths.reach(done / total, f"of {total / 1e6:.1f} MB")
        return places

    def _bring(self, files: Sequence[RemoteFile], places: dict[str, Path]) -> Sequence[RemoteFile]:
        """Fetch a few files, again where that fails; each is written whole or not at all."""
        left = {self._address(1, file.path, self.commit): file for file in files}
        for attempt in range(_ATTEMPTS):
            reasons = {}
            for address, content in _fetched(list(left)).items():
                file = left[address]
                if isinstance(content, Exception):
                    reasons[address] = _said(content)
                elif blob_hash(content) != file.sha:
                    reasons[address] = f"{len(content)} bytes that are not those of the commit"
                else:
                    place = places[file.path]
                    place.parent.mkdir(parents=True, exist_ok=True)
                    part = place.with_name(f".part-{place.name}")
                    part.write_bytes(content)
                    os.replace(part, place)
            left = {address: left[address] for address in reasons}
            if not left:
                return files
            logger.info("attempt %d failed for %d files", attempt + 1, len(left))
        address, reason = next(iter(reasons.items()))
        raise DataError(
            f"{address} cannot be had ({reason}); the same command continues with what is missing"
        )

    def _address(self, kind: int, path: str, commit: str) -> str:
        names = {"source": self.source, "commit": commit, "path": quote(path)}
        if self.mirror is None:
            return GITHUB[kind].format(**names)
        base = self.mirror.rstrip("/")
        folder, tail = (("trees", "?recursive=1"), ("raw", "/{path}"))[kind]
        return f"{base}/{folder}/{{source}}/{{commit}}{tail}".format(**names)


def blob_hash(content: bytes) -> str:
    """Return git's hash of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _is_whole(place: Path, file: RemoteFile) -> bool:
    if not place.is_file() or place.stat().st_size != file.size:
        return False
    return blob_hash(place.read_bytes()) == file.sha


def _fetched(addresses: list[str]) -> dict[str, Any]:
    """Return the content at each address, or why there is none."""
    import fsspec

    system = fsspec.filesystem("http")
    try:
        content = system.cat(addresses, on_error="return")
    except Exception as error:  # of one address fsspec raises it
        return dict.fromkeys(addresses, error)
    return content if isinstance(content, dict) else {addresses[0]: content}


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
