"""Data cards: source, licence, columns and checksum of a data set, and its records.

A card is `datasets/<id>/card.yaml`, or any path to such a file. Records are searched in --data-dir,
then in $LENGTHWISE_DATA. The set smollm2-instruct stands beside its card. It replaces records that
are found nowhere, with a warning. `fetch` builds a set and its card in a folder of its own. A table
or log needs no card.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import yaml

from lengthwise.bundle import sha256_of
from lengthwise.errors import ConfigError, DataError, raised_as
from lengthwise.tables.files import SUFFIXES, digest_of, is_file_name, kind_of, name_of
from lengthwise.tables.rows import good_rows
from training.config import DataConfig
from training.data.hub import PREFIX, is_hub_name, load_hub
from training.data.records import Dataset, FieldMap, Row, checked, num_empty, read_records, stored

CARDS: Final = Path(__file__).resolve().parents[1] / "datasets"
CARD: Final = "card.yaml"
BUNDLED: Final = "smollm2-instruct"
"""Set whose table is part of the package."""
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
    """Repository of the data, owner/name."""
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

    @property
    def about(self) -> str:
        """Text of the card on a hub."""
        source = f"Source: {self.source} at {self.commit}. Licence: {self.licence}."
        notes = f"# {self.id}\n\n{self.notes.strip()}"
        return f"{notes}\n\n{source} Lengths are tokens of {self.tokenizer}."


@dataclass(frozen=True, kw_only=True)
class LoadedData:
    """Records of a data set and their origin."""

    card: Card
    records: Dataset
    origin: str
    """A path or a hub repository, for messages."""
    num_empty: int
    """Dropped lengths of 0."""


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
    valid = ", ".join(f.name for f in fields(Card) if f.name != "digest")
    text = f"the card breaks its schema ({{}}); its keys are: {valid}"
    with raised_as(DataError, text, TypeError, KeyError, AttributeError, path=path):
        mapping = dict(content.pop("fields"))
        mapping["output_tokens"] = _names(mapping.get("output_tokens", "output_tokens"))
        join = content.pop("prompts", None)
        return Card(
            **content,
            fields=FieldMap(**mapping),
            prompts=Join(**{**join, "keys": _names(join["keys"])}) if join else None,
            digest=sha256_of(path),
        )


def _parsed(path: Path) -> Any:
    kinds = OSError, ValueError, yaml.YAMLError
    with raised_as(DataError, "the card cannot be read: {}", *kinds, path=path):
        return yaml.safe_load(path.read_text())


def _names(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def load_data(
    dataset: str, data_dir: str | None = None, columns: DataConfig | None = None
) -> LoadedData:
    """Return the checked records of a card, from the places in the order of the module docstring.

    `columns` names the columns of data without a card.

    Raises:
        DataError: the card or the data is wrong, or an explicit `data_dir` lacks the file.
    """
    if is_hub_name(dataset):
        hub = load_hub(dataset)
        return _without_card(dataset, hub, hub._fingerprint, columns)
    if not dataset.endswith(".yaml") and is_file_name(dataset):
        return _without_card(dataset, dataset, digest_of(dataset), columns)
    card, is_path = read_card(dataset), dataset.endswith(".yaml")
    beside = str(Path(dataset).parent) if is_path else None
    places = (data_dir, beside, os.environ.get(ENVIRONMENT)) if card.id != BUNDLED else ()
    for root in map(Path, filter(None, places)):
        own = root / card.id / CARD  # written by `fetch`
        if own.is_file() and not is_path:
            return _from_folder(read_card(str(own)), own.parent, str(own.parent))
        if (root / card.path).is_file():
            return _from_folder(card, root, str(root / card.path))
        if data_dir or beside:
            raise DataError(
                f"the folder lacks {card.path}, which card {card.id!r} describes", path=root
            )
    if card.id != BUNDLED:
        about = "data set %r was not found: give --data-dir or $%s; %s takes its place"
        logger.warning(about, card.id, ENVIRONMENT, BUNDLED)
    own = CARDS / BUNDLED
    return _from_folder(read_card(BUNDLED), own, str(own))


def _without_card(
    name: str, table: str | Dataset, digest: str, columns: DataConfig | None
) -> LoadedData:
    options = columns or DataConfig()
    records, num_empty = read_records(
        table, options, has_details=True, description=options.description
    )
    path = Path(name.removeprefix(PREFIX).replace(":", "-"))
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
    tables = (card, *((card.prompts,) if card.prompts else ()))
    digests = [_verified(root / table.path, table.sha256) for table in tables]
    about = (card.fields, card.records, card.model, sorted(card.where.items()), card.prompts)
    records, _ = stored(lambda _: _card_rows(card, root), *digests, *about)
    return LoadedData(card=card, records=records, origin=origin, num_empty=num_empty(records))


def _verified(path: Path, expected: str) -> str:
    if not path.is_file():
        raise DataError("the file is missing; fetch the data set again", path=path)
    actual = sha256_of(path)
    if expected and actual != expected:
        raise DataError(
            f"SHA-256 is {actual[:12]}..., the card says {expected[:12]}...; fetch the file again, "
            "or write a card for the new version",
            path=path,
        )
    return actual


def _card_rows(card: Card, root: Path) -> Iterator[Row]:
    """Yield the records of a card: rows of its table, with joined prompts, filtered, checked."""
    path, num_rows = root / card.path, 0

    def chosen() -> Iterator[tuple[int, Row]]:
        nonlocal num_rows
        for num_rows, row in enumerate(good_rows(path, kind_of(path)), 1):
            joined = [row] if card.prompts is None else prompts.get(_key(row, card.prompts), ())
            for more in joined:
                whole = {**more, **row}
                if all(_is(whole.get(name), value) for name, value in card.where.items()):
                    yield num_rows - 1, whole

    prompts = {} if card.prompts is None else _prompts_by_key(card.prompts, root)
    yield from checked(chosen(), card.fields, card.model, path)
    if card.records not in (None, num_rows):
        raise DataError(
            f"{num_rows} rows, the card says {card.records}; correct the card", path=path
        )


def _prompts_by_key(join: Join, root: Path) -> dict[tuple[str, ...], tuple[Row]]:
    found: dict[tuple[str, ...], tuple[Row]] = {}
    path = root / join.path
    for number, row in enumerate(good_rows(path, kind_of(path))):
        if found.setdefault(_key(row, join), (row,))[0] is not row:
            raise DataError("its keys are those of an earlier row", path=join.path, row=number)
    return found


def _key(row: Row, join: Join) -> tuple[str, ...]:
    return tuple(str(row.get(name)) for name in join.keys)


def _is(value: object, wanted: object) -> bool:
    """Return whether a cell has a value; the cells of a CSV are texts."""
    return value == wanted or str(value).lower() == str(wanted).lower()


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

    `columns` are fields of `FieldMap` and columns of the table; `about` holds further keys.
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
