"""Data sets that Hugging Face Datasets loads: of the hub by name, and folders of its formats.

hf:ORG/NAME    hf:ORG/NAME:SPLIT    hf:ORG/NAME/CONFIG:SPLIT    hf:FOLDER:SPLIT    FOLDER
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lengthwise.errors import DataError, raised_as
from training.data.records import Dataset

PREFIX: Final = "hf:"
_SAVED: Final = ("dataset_dict.json", "state.json")
"""Files of a folder that `save_to_disk` wrote."""
_CARD: Final = b"---"
"""Start of the README.md of a data set of the hub; that of a folder of logs is prose."""
_CONNECT_S: Final = 5.0

logger = logging.getLogger(__name__)


def is_hub_name(name: str) -> bool:
    """Return whether a name is of the hub, or a folder that the library wrote or that has its card.

    Any other folder is one of logs.
    """
    if name.startswith(PREFIX) or any(Path(name, mark).is_file() for mark in _SAVED):
        return True
    card = Path(name, "README.md")
    return card.is_file() and card.read_bytes().startswith(_CARD)


def load_hub(name: str) -> Dataset:
    """Return one split of a data set, `train` unless the name has another.

    Raises:
        DataError: no such data set, configuration or split, or no way to the hub.
    """
    from datasets import DatasetDict, load_dataset, load_from_disk
    from datasets.exceptions import DatasetGenerationError

    place, _, split = name.removeprefix(PREFIX).partition(":")
    split = split or "train"
    config, is_folder = None, Path(place).is_dir()
    if not is_folder and place.count("/") == 2:
        place, _, config = place.rpartition("/")
    try:
        if is_folder and any(Path(place, mark).is_file() for mark in _SAVED):
            saved = load_from_disk(place)
            return saved[split] if isinstance(saved, DatasetDict) else saved
        with _known_to_be_offline(needs_hub=not is_folder):
            return load_dataset(place, config, split=split)
    except (OSError, ValueError, KeyError, DatasetGenerationError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        advice = "check the name, configuration and split (hf:ORG/NAME/CONFIG:SPLIT)"
        if isinstance(error, ConnectionError):
            advice = "check the network, or give a folder that it was saved to (hf:FOLDER:SPLIT)"
        raise DataError(f"data set {name!r} cannot be loaded ({reason}); {advice}") from error


@contextmanager
def _known_to_be_offline(*, needs_hub: bool) -> Iterator[None]:
    """Set the library's offline mode where the hub cannot be reached, which it retries for long.

    A data set in the library's cache is loaded all the same.
    """
    import datasets
    import httpx
    from huggingface_hub import constants

    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    if needs_hub and not any(before):
        try:
            httpx.head(constants.ENDPOINT, timeout=_CONNECT_S)
        except httpx.HTTPError as error:
            logger.warning("%s cannot be reached (%s)", constants.ENDPOINT, error)
            datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def push_to_hub(records: Dataset, about: str, repository: str) -> str:
    """Write records, a row per response, and their card with a text; returns their name.

    `--data.dataset` takes that name as it is.

    Raises:
        DataError: the hub refuses it, or cannot be reached.
    """
    from huggingface_hub import DatasetCard
    from huggingface_hub.errors import HfHubHTTPError

    advice = "check the name, the network, and the token of `hf auth login`"
    text = f"{repository} cannot be written ({{}}); {advice}"
    with raised_as(DataError, text, OSError, ValueError, HfHubHTTPError):
        responses_of(records).push_to_hub(repository)
        written = DatasetCard.load(repository)
        written.text = about
        written.push_to_hub(repository)
    return f"{PREFIX}{repository}:train"


def responses_of(records: Dataset) -> Dataset:
    """Return records with a row per response, as a table without a card has them."""
    from datasets import Dataset

    rows = records.remove_columns("key").to_pandas().explode("output_tokens")
    rows["sample"] = rows["sample"].where(rows["sample"] > 0, rows.groupby(level=0).cumcount())
    rows["output_tokens"] = rows["output_tokens"].astype("int64")
    rows = rows[rows["output_tokens"] > 0].dropna(axis="columns", how="all")
    return Dataset.from_pandas(rows, preserve_index=False)
