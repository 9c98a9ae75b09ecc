"""Files of a public repository at a commit; git fetches them, and checks them by their hashes."""

import logging
import os
import re
import subprocess
from pathlib import Path
from typing import Final

from lengthwise.errors import DataError
from lengthwise.progress import Progress

GITHUB: Final = "https://github.com"
_AT_ONCE: Final = 50
"""Files that one connection brings; an interrupted download keeps the earlier ones."""
_SETTINGS: Final = ("core.autocrlf=false", "http.lowSpeedLimit=1", "http.lowSpeedTime=60")
"""Of git: files as they are; a connection without data for 60 seconds is lost."""
_FETCH: Final = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--filter=blob:none")

logger = logging.getLogger(__name__)


def check_out(source: str, commit: str, pattern: str, folder: Path, host: str) -> dict[str, str]:
    """Check out the files of owner/name whose whole path matches a regular expression.

    Returns git's hash of each file by its path, sorted. A repeated call continues an interrupted
    one. `host` is the address of a git server.

    Raises:
        DataError: git is missing, or the repository cannot be reached or has no such files.
    """
    address = f"{host.rstrip('/')}/{source}"
    folder.mkdir(parents=True, exist_ok=True)
    _git(folder, "init", "--quiet")
    _git(folder, "config", "remote.origin.url", address)
    # A promisor remote lets git keep a tree without the content of its files.
    _git(folder, "config", "remote.origin.promisor", "true")
    _git(folder, *_FETCH, "--depth=1", "origin", commit)
    listed = _git(folder, "ls-tree", "-r", "-z", commit).split("\0")[:-1]
    entries = sorted(entry.partition("\t")[::-1] for entry in listed)
    hashes = {path: about.split()[2] for path, _, about in entries if re.fullmatch(pattern, path)}
    if not hashes:
        raise DataError(f"{address} has no file {pattern!r} at {commit}; the source has changed")
    logger.info("%s at %s: %d files", source, commit[:12], len(hashes))
    paths = list(hashes)
    batches = [paths[start : start + _AT_ONCE] for start in range(0, len(paths), _AT_ONCE)]
    with Progress(len(batches), log=logger.info) as progress:
        for batch in batches:
            _git(folder, *_FETCH, "origin", *(hashes[path] for path in batch))
            _git(folder, "--literal-pathspecs", "checkout", "--quiet", commit, "--", *batch)
            progress.step(batch[-1])
    return hashes


def _git(folder: Path, *words: str) -> str:
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    command = ["git", "--git-dir=.git", *settings, *words]
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    try:
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=True
        ).stdout
    except FileNotFoundError as error:
        raise DataError("git is not installed; install it and fetch again") from error
    except subprocess.CalledProcessError as error:
        reason = " ".join(error.stderr.split()) or f"git ended with {error.returncode}"
        raise DataError(
            f"the source cannot be had ({reason}); check the network, or give --mirror; the same "
            "command continues with what is missing",
            path=folder,
        ) from error
