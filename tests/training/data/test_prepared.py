"""Prepared data: further sets only in training, labels side by side, counts that add up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scoring_service.errors import ConfigError
from training.config import DataConfig, SplitConfig, TrainConfig
from training.data.prepared import prepare


def write_matrix(path: Path, num_prompts: int = 80) -> Path:
    rng = np.random.default_rng(0)
    common = rng.normal(4, 1, num_prompts)
    rows = [
        {"prompt": f"prompt {n}", "model": f"m{m}", "output_tokens": int(np.exp(value)) + 1}
        for m in range(4)
        for n, value in enumerate(common + rng.normal(m / 5, 0.3, num_prompts))
    ]
    pd.DataFrame(rows).to_parquet(path)
    return path


def test_further_sets_are_learnt_from_and_never_tested_on(
    make_card: Callable[..., Path], tmp_path: Path
) -> None:
    card = make_card(
        table=write_matrix(tmp_path / "many.parquet", 200),
        rows=800,
        fields={"prompt": "prompt", "output_tokens": "output_tokens", "model": "model"},
    )
    data = DataConfig(dataset=str(card), also=(f"{card}*3",), consensus=True)
    config = TrainConfig(data=data, split=SplitConfig(test_fraction=0.2))
    prepared = prepare(config, None)
    alone = prepare(replace(config, data=replace(data, also=())), None)
    assert prepared.splits.test == alone.splits.test
    assert len(prepared.splits.train) == 4 * len(alone.splits.train)
    held = {item.prompt for item in prepared.splits.test}
    assert not held & {item.prompt for item in prepared.splits.train}
    with pytest.raises(ConfigError, match="NAME\\*COUNT"):
        prepare(replace(config, data=replace(data, also=(f"{card}*x",))), None)
