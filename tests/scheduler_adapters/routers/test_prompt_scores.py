import asyncio
from math import nan

import pytest

from scheduler_adapters.routers.prompt_scores import RoutingScores


async def hung(prompt):
    await asyncio.Event().wait()


async def broken(prompt):
    return {}[prompt]


async def not_a_number(prompt):
    return nan, ()


@pytest.mark.parametrize("score", [hung, broken, not_a_number])
def test_without_a_score_in_time_the_request_continues(score):
    scores = RoutingScores("service:127.0.0.1:1", 0.01)
    scores._score = score
    assert asyncio.run(scores.of("a prompt")) is None
    assert sum(scores.counts.values()) == 1
    assert "scored" not in scores.counts
