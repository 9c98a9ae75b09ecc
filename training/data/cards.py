"""Data cards: source, licence, columns and checksum of a data set, and its records.

A card is `datasets/<id>/card.yaml`, or any path to such a file. Records are searched in --data-dir,
then in $LENGTHWISE_DATA. The seeded synthetic set replaces records that are found nowhere, with a
warning. `fetch` builds a set and its card in a folder of its own. A table or log needs no card.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from lengthwise.bundle import BANNER, sha256_of
from lengthwise.errors import ConfigError, DataError
from lengthwise.tables.files import SUFFIXES, digest_of, is_file_name, name_of
from lengthwise.tables.reading import read_table
from training.config import DataConfig
from training.data import synthetic
from training.data.records import FieldMap, PromptResponse, read_records, to_records

if TYPE_CHECKING:
    import pandas as pd

CARDS: Final = Path(__file__).resolve().parents[1] / "datasets"
CARD: Final = "card.yaml"
ENVIRONMENT: Final = "LENGTHWISE_DATA"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Join:
    """A second table that holds the prompts of the first, joined on one or more columns."""

    path: str
    sha256: str
    keys: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Card:
    """One data set. An unknown or a missing key is an error."""

    id: str
    path: str
    """The table, relative to the data folder (or to the card, for a card of your own)."""
    fields: FieldMap
    tokenizer: str
    """The tokenizer that counted the lengths."""
    source: str = ""
    """Repository of the data, owner/name; "generated" for the synthetic set."""
    commit: str = ""
    licence: str = ""
    sha256: str = ""
    """Of the table; empty accepts any version of the file."""
    records: int | None = None
    """Rows of the table; checked if given."""
    model: str = ""
    """The model that responded, if the table has no column for it."""
    where: Mapping[str, Any] = field(default_factory=dict)
    """Column -> value in the rows that are used."""
    prompts: Join | None = None
    split_seed: int = 0
    notes: str = ""
    digest: str = ""
    """SHA-256 of the card file itself."""


@dataclass(frozen=True, kw_only=True)
class LoadedData:
    """Records of a data set and their origin."""

    card: Card
    records: list[PromptResponse]
    origin: str
    """A path, a hub repository, or "synthetic", for messages."""
    num_empty: int
    """Dropped lengths of 0."""
    attainable_tau_b: float | None = None
    """Best tau_b that any ranker can reach; known for the synthetic set only."""


def read_card(dataset: str) -> Card:
    """Read a card by the id of its data set, or by the path of the card file."""
    path = Path(dataset) if dataset.endswith(".yaml") else CARDS / dataset / CARD
    if not path.is_file():
        known = ", ".join(sorted(folder.parent.name for folder in CARDS.glob(f"*/{CARD}")))
        raise DataError(
            f"no data set {dataset!r}; use one of {known}, a card.yaml, or the path of a table or "
            f"log ({', '.join(SUFFIXES)}, also .gz and .zst, or without suffix)"
        )
    content = _parsed(path)
    try:
        mapping = dict(content.pop("fields"))
        mapping["output_tokens"] = _names(mapping.get("output_tokens", "output_tokens"))
        join = content.pop("prompts", None)
        return Card(
            **content,
            fields=FieldMap(**mapping),
            prompts=Join(**{**join, "keys": _names(join["keys"])}) if join else None,
            digest=sha256_of(path),
        )
    except (TypeError, KeyError, AttributeError) as error:
        valid = ", ".join(f.name for f in fields(Card) if f.name != "digest")
        raise DataError(
            f"the card breaks its schema ({error}); its keys are: {valid}", path=path
        ) from error


def _parsed(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"the card cannot be read: {reason}", path=path) from error


def _names(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def load_data(
    dataset: str, data_dir: str | None = None, columns: DataConfig | None = None
) -> LoadedData:
    """Return the checked records of a card, from the places in the order of the module docstring.

    `columns` names the columns of a table or log without a card.

    Raises:
        DataError: the card or the data is wrong, or an explicit `data_dir` lacks the file.
    """
    if not dataset.endswith(".yaml") and is_file_name(dataset):
        return _own_log(dataset, columns or DataConfig())
    card, is_path = read_card(dataset), dataset.endswith(".yaml")
    if card.source == "generated":
        return _synthetic(card)
    beside = str(Path(dataset).parent) if is_path else None
    for root in map(Path, filter(None, (data_dir, beside, os.environ.get(ENVIRONMENT)))):
        own = root / card.id / CARD  # written by `fetch`
        if own.is_file() and not is_path:
            return _from_folder(read_card(str(own)), own.parent, str(own.parent))
        if (root / card.path).is_file():
            return _from_folder(card, root, str(root / card.path))
        if data_dir or beside:
            raise DataError(
                f"the folder lacks {card.path}, which card {card.id!r} describes", path=root
            )
    logger.warning("data set %r was not found: give --data-dir or $%s", card.id, ENVIRONMENT)
    return _synthetic(read_card("synthetic"))


def _own_log(name: str, options: DataConfig) -> LoadedData:
    records, num_empty = read_records(name, options, has_details=True)
    path, digest = Path(name), digest_of(name)
    card = Card(
        id=name_of(path),
        path=path.name,
        fields=FieldMap(),
        tokenizer=options.tokenizer or "unknown",
        records=len(records),
        sha256=digest,
        digest=digest,
    )
    return LoadedData(card=card, records=records, origin=name, num_empty=num_empty)


def _from_folder(card: Card, root: Path, origin: str) -> LoadedData:
    path = root / card.path
    frame = _verified(path, card.sha256)
    if card.records not in (None, len(frame)):
        raise DataError(
            f"{len(frame)} rows, the card says {card.records}; correct the card", path=path
        )
    if card.prompts is not None:
        prompts, keys = _verified(root / card.prompts.path, card.prompts.sha256), card.prompts.keys
        new = [name for name in prompts.columns if name in keys or name not in frame.columns]
        frame = frame.merge(prompts[new], on=list(keys), how="inner", validate="many_to_one")
    for column, value in card.where.items():
        frame = frame[frame[column] == value]
    records, num_empty = to_records(frame, card.fields, model=card.model, path=path)
    return LoadedData(card=card, records=records, origin=origin, num_empty=num_empty)


def _verified(path: Path, expected: str) -> pd.DataFrame:
    if not path.is_file():
        raise DataError("the file is missing; fetch the data set again", path=path)
    if expected and (actual := sha256_of(path)) != expected:
        raise DataError(
            f"SHA-256 is {actual[:12]}..., the card says {expected[:12]}...; fetch the file again, "
            "or write a card for the new version",
            path=path,
        )
    return read_table(path)


def _synthetic(card: Card) -> LoadedData:
    seed, prompts = card.split_seed, (card.records or 0) // synthetic.SAMPLES
    records, attainable = synthetic.generate(prompts, seed=seed, samples=synthetic.SAMPLES)
    logger.warning("%s; the best attainable tau_b is %.3f by construction", BANNER, attainable)
    return LoadedData(
        card=card,
        records=records,
        origin=f"synthetic (seed {seed})",
        num_empty=0,
        attainable_tau_b=attainable,
    )


def card_path(table: Path) -> Path:
    return table.with_name(CARD)


def refuse_foreign_card(table: Path) -> None:
    """Check that writing the card of this table replaces no card of another table."""
    path = card_path(table)
    try:
        card = _parsed(path) if path.exists() else {"path": table.name}
    except DataError as error:
        raise ConfigError(f"{error}; remove it") from error
    if not isinstance(card, dict) or card.get("path") != table.name:
        raise ConfigError(f"{path} describes another table; give --out a folder of its own")


def write_card(table: Path, *, columns: Sequence[str], rows: int, **about: str) -> None:
    """Write the card of a table in its present state; an older card stays until then.

    `columns` are fields of `PromptResponse` and columns of the table; `about` holds further keys.
    """
    content = {
        "id": re.sub(r"[^\w.-]+", "-", table.stem),
        "commit": "none",
        "licence": "not stated",
        "path": table.name,
        "sha256": sha256_of(table),
        "records": rows,
        "fields": {name: name for name in columns},
    }
    save_card(card_path(table), content | about)


def save_card(path: Path, content: Mapping[str, Any]) -> None:
    work = path.with_name(f".{CARD}")
    work.write_text(yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True))
    os.replace(work, path)
