"""Verdicts: yes where it pays, no where nothing waits or nothing is known, unclear in between."""

from math import nan

import pytest

from scheduler_adapters.commands.advise.replay import Spread
from scheduler_adapters.commands.advise.verdict import LEAST_PROMPTS, decide

GOOD = Spread(0.3, 0.2, 0.4)
ORDER = Spread(0.5, 0.45, 0.55)


@pytest.mark.parametrize(
    ("gain", "best", "queueing", "tau_b", "prompts", "answer", "said"),
    [
        (GOOD, 0.5, 0.6, ORDER, 2000, "yes", "+30.0% of the mean E2E latency saved"),
        (GOOD, 0.5, 0.6, ORDER, 0, "yes", "true lengths would save +50.0%"),
        (Spread(0, -0.01, 0.01), 0.0, 0.001, ORDER, 2000, "no", "no queue to reorder"),
        (GOOD, 0.5, 0.6, Spread(0.02, -0.03, 0.07), 2000, "no", "do not predict the lengths"),
        (GOOD, 0.5, 0.6, Spread(nan, nan, nan), 2000, "no", "do not predict the lengths"),
        (GOOD, 0.5, 0.6, ORDER, LEAST_PROMPTS - 1, "unclear", "too few"),
        (Spread(-0.1, -0.2, 0.0), 0.3, 0.6, ORDER, 2000, "no", "too little: -10.0%"),
        (Spread(0.05, -0.02, 0.12), 0.3, 0.6, ORDER, 2000, "unclear", "errors decide"),
    ],
)
def test_the_answer_and_its_reason(gain, best, queueing, tau_b, prompts, answer, said):
    found, reason = decide(gain, best, queueing, tau_b, prompts)
    assert found == answer
    assert said in reason
