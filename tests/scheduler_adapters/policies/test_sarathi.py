"""Sarathi-Serve: stall-free steps within the token budget."""

import numpy as np

from scheduler_adapters.policies.sarathi import Sarathi
from tests.scheduler_adapters.policies.small_runs import mixed_requests, run


def test_sarathi_keeps_its_budget_and_never_stalls_a_decode():
    timeline, steps = run(Sarathi(max_tokens=128), mixed_requests())
    assert max(step.tokens for step in steps) <= 128
    # Every decode runs in every step: nobody's tokens have a gap of more than one step.
    assert len(np.unique(timeline.runs[:, 0])) == len(timeline.runs)
