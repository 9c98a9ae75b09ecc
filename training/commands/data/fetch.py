"""`python -m training fetch`: build the tables of data cards from their public sources."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lengthwise.command_line.options import POSITIONAL
from lengthwise.errors import ConfigError
from training.commands.options import OutputOptions, print_result
from training.data.cards import Card
from training.sources.fetching import check_id, fetch, is_free
from training.sources.layouts import LAYOUTS
from training.sources.repositories import GITHUB

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FetchOptions:
    """The data sets, their source and their folder."""

    ids: tuple[str, ...] = field(default=(), metadata=POSITIONAL)
    """Ids of data cards."""
    all: bool = False
    """Every set whose licence allows commercial use; the others must be named."""
    out: Path = Path("mlruns/data")
    """Folder of the data sets; each gets a folder of its own."""
    mirror: str = GITHUB
    """Address of the git server that has the repositories as OWNER/NAME."""

    def __post_init__(self) -> None:
        if bool(self.ids) == self.all:
            raise ConfigError(f"name data sets of {', '.join(LAYOUTS)}, or give --all")


def main(options: FetchOptions, output: OutputOptions) -> None:
    """Build the table of a data card from its public repository at the pinned commit.

    git fetches the files that are needed and checks their hashes; the same command continues an
    interrupted one. Lengths are counted with BERT's WordPiece, the tokenizer on the card. OUT/ID
    gets the tables and a card of their own. The licence is shown; sets for non-commercial use must
    be named.

    example:
      python -m training fetch gpteacher-gpt4 --out data
      python -m training fit demo --data-dir data --data.dataset gpteacher-gpt4 --out run
    """
    sets = [fetch(card, options.out, options.mirror) for card in _chosen(options)]
    result = {"out": str(options.out), "sets": sets}
    fit = f"--data-dir {options.out} --data.dataset {sets[0]['id']} --out run"
    print_result(result, output, lambda: _print(sets), f"python -m training fit demo {fit}")


def _chosen(options: FetchOptions) -> list[Card]:
    cards = [check_id(name) for name in options.ids or LAYOUTS]
    restricted = [card for card in cards if options.all and not is_free(card)]
    for card in restricted:
        logger.info("%s is left out: licence %s; name it to fetch it", card.id, card.licence)
    return [card for card in cards if card not in restricted]


def _print(sets: Sequence[Mapping[str, Any]]) -> None:
    for each in sets:
        state = "was there" if each["was_there"] else "built"
        print(f"{each['id']:20} {state}, {each['records']:,} rows, licence {each['licence']}")
        print(f"{'':20} SHA-256 of the table {each['sha256']}")
