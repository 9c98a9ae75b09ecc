"""The tables of a data card, and a card of their own, from its public source."""

import logging
import shutil
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from lengthwise.bundle import sha256_of
from lengthwise.errors import ConfigError, DataError
from lengthwise.tables.token_counts import token_counter
from training.data.cards import CARD, CARDS, Card, read_card, save_card
from training.sources.layouts import LAYOUTS
from training.sources.repositories import GITHUB, check_out

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
    try:
        tables = layout.tables({path: raw / path for path in hashes}, count_tokens)
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise DataError(
            f"{card.source} does not have the layout it had ({type(error).__name__}: {error}); "
            "delete the folder and fetch again",
            path=raw,
        ) from error
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
