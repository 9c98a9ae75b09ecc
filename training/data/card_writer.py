"""Writes a data card beside a table that was collected."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import yaml

from scoring_service.bundle import sha256_of
from scoring_service.errors import ConfigError

CARD: Final = "card.yaml"


def card_path(table: Path) -> Path:
    """Return the path of a table's card."""
    return table.with_name(CARD)


def refuse_foreign_card(table: Path) -> None:
    """Check that a card beside this table would replace no other table's card."""
    path = card_path(table)
    try:
        card = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        return
    except (OSError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path} cannot be read ({reason}); remove it") from error
    if not isinstance(card, dict) or card.get("path") != table.name:
        raise ConfigError(f"{path} describes another table; give --out a folder of its own")


def write_card(
    table: Path, *, columns: Sequence[str], rows: int, source: str, tokenizer: str, notes: str
) -> None:
    """Write the card of the table as it is now; an old card stays until the new one is whole.

    `columns` are fields of `PromptResponse`, which have the same names in the table.
    """
    card = {
        "id": re.sub(r"[^\w.-]+", "-", table.stem),
        "source": source,
        "commit": "none",
        "licence": "not stated",
        "path": table.name,
        "sha256": sha256_of(table),
        "records": rows,
        "fields": {name: name for name in columns},
        "tokenizer": tokenizer,
        "notes": notes,
    }
    work = table.with_name(f".{CARD}")
    work.write_text(yaml.safe_dump(card, sort_keys=False, allow_unicode=True))
    os.replace(work, card_path(table))
