"""`python -m training fetch`: build the tables of data cards from their public sources."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lengthwise.command_line.options import POSITIONAL
from lengthwise.errors import ConfigError
from training.commands.options import OutputOptions, print_result
from training.data.cards import load_data
from training.data.hub import push_to_hub
from training.sources.fetching import GITHUB, check_id, fetch


@dataclass(frozen=True, kw_only=True)
class FetchOptions:
    """The data sets, their source and their folder."""

    ids: tuple[str, ...] = field(metadata=POSITIONAL)
    """Ids of data cards."""
    out: Path = Path("mlruns/data")
    """Folder of the data sets; each gets a folder of its own."""
    mirror: str = GITHUB
    """Address of the git server that has the repositories as OWNER/NAME."""
    push_to_hub: str | None = None
    """Repository of the Hugging Face hub that gets the set, a row per response, and its card."""


def main(options: FetchOptions, output: OutputOptions) -> None:
    """Build the table of a data card from its public repository at the pinned commit.

    git fetches the files that are needed and checks their hashes; the same command continues an
    interrupted one. Lengths are counted with BERT's WordPiece, the tokenizer on the card. OUT/ID
    gets the tables and a card of their own. The licence of each set is shown.

    example:
      python -m training fetch gpteacher-gpt4 --out data
      python -m training fit demo --data-dir data --data.dataset gpteacher-gpt4 --out run
      python -m training fetch gpteacher-gpt4 --out data --push-to-hub ORG/gpteacher-lengths
    """
    if options.push_to_hub and len(options.ids) > 1:
        raise ConfigError(f"push_to_hub is {options.push_to_hub!r} for several sets; give one id")
    sets = [fetch(card, options.out, options.mirror) for card in map(check_id, options.ids)]
    result: dict[str, Any] = {"out": str(options.out), "sets": sets}
    fit = f"--data-dir {options.out} --data.dataset {sets[0]['id']} --out run"
    if options.push_to_hub:
        data = load_data(options.ids[0], str(options.out))
        result["hub"] = push_to_hub(data.records, data.card.about, options.push_to_hub)
        fit = f"--data.dataset {result['hub']} --out run"
    print_result(result, output, lambda: _print(sets), f"python -m training fit demo {fit}")


def _print(sets: Sequence[Mapping[str, Any]]) -> None:
    for each in sets:
        state = "was there" if each["was_there"] else "built"
        print(f"{each['id']:20} {state}, {each['records']:,} rows, licence {each['licence']}")
        print(f"{'':20} SHA-256 of the table {each['sha256']}")
