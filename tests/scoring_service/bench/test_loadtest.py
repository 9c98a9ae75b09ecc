"""A load test accounts for every request; one that could send nothing is refused."""

import json

import pytest

from lengthwise.errors import ConfigError
from scoring_service.__main__ import main
from scoring_service.bench.loadtest import LoadtestConfig


def test_a_load_test_accounts_for_every_request(server, capsys):
    options = ["--rate", "200", "--seconds", "0.5", "--timeout-s", "60"]
    assert main(["loadtest", "--target", server.target, "--json", *options]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["sent"] == 100
    accounted = result["answered"] + result["refused"] + sum(result["failed"].values())
    assert accounted == 100
    assert result["answered_ms"]["p50"] <= result["answered_ms"]["p99"]


@pytest.mark.parametrize("name", ["rate", "seconds", "timeout_s"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_rates_and_times_are_above_0(name, value):
    with pytest.raises(ConfigError, match=f"{name} is"):
        LoadtestConfig(**{name: value})
