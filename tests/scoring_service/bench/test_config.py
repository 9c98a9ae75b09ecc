"""A load test that could send nothing is refused."""

from __future__ import annotations

import pytest

from scoring_service.bench.config import LoadtestConfig
from scoring_service.errors import ConfigError


@pytest.mark.parametrize("name", ["rate", "seconds", "timeout_s"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_rates_and_times_are_above_0(name, value):
    with pytest.raises(ConfigError, match=f"{name} is"):
        LoadtestConfig(**{name: value})
