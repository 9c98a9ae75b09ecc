"""The naive service gives the scores of ours."""

from __future__ import annotations

from scoring_service.bench.peers import naive
from scoring_service.client import ScoringClient


def test_the_naive_service_gives_the_same_scores(tiny_bundle, client):
    with naive(tiny_bundle.path) as running:
        with ScoringClient(running.target, timeout_s=60) as theirs:
            assert abs(theirs.score("essay").value - client.score("essay").value) < 1e-5
        running.client()("essay")
