from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from lengthwise.errors import ConfigError, ServiceUnavailable
from scheduler_adapters.engines.vllm_v1.scores import score_params
from scoring_service.client import Score, ScoringClient


@dataclass
class Params:
    max_tokens: int
    extra_args: dict[str, Any] | None = None


class ByLength:
    """Scores a prompt by its length; has none for "bad"."""

    def score_batch(self, prompts: Sequence[str]) -> list[Score | ServiceUnavailable]:
        return [
            ServiceUnavailable("gone") if p == "bad" else Score(float(len(p)), "r", 1, False)
            for p in prompts
        ]


def scores(made: list[Params]) -> list[Any]:
    return [(params.extra_args or {}).get("lengthwise_score") for params in made]


def test_every_kind_of_prompt_gets_its_score() -> None:
    chat = [{"role": "user", "content": "first"}, {"role": "user", "content": "four"}]
    prompts = ["ab", {"prompt": "abc"}, chat, {"prompt_token_ids": [1]}, [1, 2], "", "bad"]
    shared = Params(5)
    made = score_params(shared, prompts, ByLength())
    assert scores(made) == [2.0, 3.0, 4.0, None, None, None, None]
    assert shared.extra_args is None
    assert all(params.max_tokens == 5 for params in made)


def test_what_was_there_is_kept() -> None:
    given = [Params(1, {"lengthwise_score": 9.0}), Params(2, {"other": "x"})]
    made = score_params(given, ["ab", "abc"], ByLength())
    assert scores(made) == [9.0, 3.0]
    assert made[1].extra_args == {"other": "x", "lengthwise_score": 3.0}
    assert given[1].extra_args == {"other": "x"}


def test_without_a_service_nothing_fails(caplog: pytest.LogCaptureFixture) -> None:
    with ScoringClient("127.0.0.1:1", timeout_s=20.0) as client:
        assert scores(score_params(Params(1), ["a", "b"], client)) == [None, None]
    assert "2 of 2 prompts have no score" in caplog.text


def test_params_must_fit_the_prompts() -> None:
    with pytest.raises(ConfigError, match="2 params for 3 prompts"):
        score_params([Params(1), Params(2)], ["a", "b", "c"], ByLength())


def test_quantiles_come_along_and_those_that_were_there_are_kept() -> None:
    class Calibrated:
        def score_batch(self, prompts: Sequence[str]) -> list[Score]:
            return [Score(1.0, "r", 1, False, quantiles={0.9: 64.0, 0.5: 21.0}) for _ in prompts]

    own = [0.5, 7.0]
    given = [Params(1), Params(1, {"lengthwise_quantiles": own})]
    made = score_params(given, ["a", "b"], Calibrated())
    found = [(params.extra_args or {})["lengthwise_quantiles"] for params in made]
    assert found == [[0.5, 21.0, 0.9, 64.0], own]
