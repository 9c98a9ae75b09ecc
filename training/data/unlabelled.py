"""Prompts without lengths, for a student that learns a teacher's scores. No torch."""

import logging
from collections.abc import Sequence

from lengthwise.bundle import SYNTHETIC
from lengthwise.errors import DataError
from lengthwise.tables.files import is_file_name
from lengthwise.tables.reading import read_log
from training.config import TrainConfig
from training.data.cards import load_data
from training.data.records import prompt_hash
from training.data.splits import Splits, position

logger = logging.getLogger(__name__)


def unlabelled_prompts(config: TrainConfig, splits: Splits, data_dir: str | None) -> list[str]:
    """Return the distinct prompts of `data.unlabelled` that belong to no part of the splits.

    A prompt whose hash would put it into the validation or test part is left out, and so is one
    that the curves are calibrated on.
    """
    known = {item.key for part in (splits.train, splits.calibration) for item in part}
    found: dict[str, str] = {}
    for name in config.data.unlabelled:
        prompts = {prompt_hash(prompt): prompt for prompt in _prompts_of(name, config, data_dir)}
        kept = {
            key: prompt
            for key, prompt in prompts.items()
            if key not in known and position(prompt, config.split.seed) >= config.split.held_out
        }
        text = "%s: %d prompts without lengths; %d more are in the data set or held out"
        logger.info(text, name, len(kept), len(prompts) - len(kept))
        found |= kept
    return list(found.values())


def _prompts_of(name: str, config: TrainConfig, data_dir: str | None) -> Sequence[str]:
    if is_file_name(name) and not name.endswith(".yaml"):
        return read_log(name, config.data, needs=("prompt",)).frame["prompt"].tolist()
    try:
        data = load_data(name, data_dir)
    except DataError as error:
        logger.warning("unlabelled prompts of %s are left out: %s", name, error)
        return []
    return [] if data.card.id == SYNTHETIC != name else [each.prompt for each in data.records]
