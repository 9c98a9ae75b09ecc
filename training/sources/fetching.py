"""The tables of a data card, and a card of their own, from its public source.

git fetches the files of the source, and checks them by their hashes.
"""

import logging
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import yaml

from lengthwise.bundle import sha256_of
from lengthwise.errors import ConfigError, DataError, raised_as
from lengthwise.progress import Progress
from lengthwise.tables.token_counts import token_counter
from training.data.cards import CARD, CARDS, Card, read_card, save_card
from training.sources.layouts import LAYOUTS

GITHUB: Final = "https://github.com"
_AT_ONCE: Final = 50
"""Files that one connection brings; an interrupted download keeps the earlier ones."""
_SETTINGS: Final = ("core.autocrlf=false", "http.lowSpeedLimit=1", "http.lowSpeedTime=60")
"""Of git: files as they are; a connection without data for 60 seconds is lost."""
_FETCH: Final = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--filter=blob:none")
logger = logging.getLogger(__name__)


def check_id(name: str) -> Card:
    """Return the card of a data set. Raises ConfigError if this version cannot build the set."""
    card = read_card(name)
    if name not in LAYOUTS:
        raise ConfigError(
            f"the source of {name!r} cannot be read by this version; "
            f"use one of {', '.join(LAYOUTS)}, or put the table that its card describes in place"
        )
    return card


def fetch(card: Card, out: Path, host: str = GITHUB) -> dict[str, Any]:
    """Download the files of a card's source, build its tables and write their card.

    A whole set in its folder stays. Returns what the new card holds, and its path.

    Raises:
        DataError: the source cannot be reached, or has changed.
    """
    layout, folder = LAYOUTS[card.id], out / card.id
    logger.info("%s: licence %s", card.id, card.licence)
    if (there := _there(folder)) is not None:
        return there | {"was_there": True}
    raw = folder / "source"
    hashes = check_out(card.source, card.commit, layout.files, raw, host)
    kinds = KeyError, ValueError, TypeError, IndexError
    text = (
        f"{card.source} does not have the layout it had ({{}}); delete the folder and fetch again"
    )
    with raised_as(DataError, text, *kinds, path=raw):
        tables = layout.tables({path: raw / path for path in hashes}, count_tokens)
    for name, table in tables.items():
        table.to_parquet(folder / f"{name}.parquet", index=False)
    _write_card(card, folder, len(tables["lengths"]), hashes)
    shutil.rmtree(raw)
    return (_there(folder) or {}) | {"was_there": False}


def count_tokens(texts: Sequence[str]) -> list[int]:
    """Return the BERT WordPiece tokens of each text, without special tokens."""
    from training.ranker.encoder import find_backbone  # imports torch

    return list(map(token_counter(find_backbone("auto").source), texts))


def _there(folder: Path) -> dict[str, Any] | None:
    if not (path := folder / CARD).is_file():
        return None
    card = read_card(str(path))
    for table in (card, card.prompts):
        file = folder / table.path if table else folder
        if table and not (file.is_file() and sha256_of(file) == table.sha256):
            return None
    about = {name: getattr(card, name) for name in ("id", "records", "licence", "sha256")}
    return about | {"card": str(path)}


def _write_card(card: Card, folder: Path, records: int, hashes: Mapping[str, str]) -> None:
    content = yaml.safe_load((CARDS / card.id / CARD).read_text())
    lengths, prompts = folder / "lengths.parquet", folder / "prompts.parquet"
    notes = content["notes"].strip()
    digest = sha256("".join(f"{path} {sha}\n" for path, sha in hashes.items()).encode()).hexdigest()
    content |= {
        "path": lengths.name,
        "sha256": sha256_of(lengths),
        "records": records,
        "notes": f"{notes} Built from {len(hashes)} files of the source; SHA-256 over their paths "
        f"and git hashes: {digest}",
    }
    if card.prompts is not None:
        content["prompts"] |= {"path": prompts.name, "sha256": sha256_of(prompts)}
    save_card(folder / CARD, content)


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
