"""The naive peer gives the scores of the service."""

from __future__ import annotations

from pathlib import Path

import pytest

from scoring_service.bench.peers import naive, ours
from scoring_service.client import ScoringClient


@pytest.mark.parametrize("peer", [naive, lambda bundle: ours(bundle, "fp32")])
def test_a_peer_scores_as_the_service_does(tiny_bundle, client, peer):
    with peer(Path(tiny_bundle.path)) as running:
        with ScoringClient(running.target, timeout_s=60) as theirs:
            assert abs(theirs.score("essay").value - client.score("essay").value) < 1e-5
        running.client()("essay")
        assert running.pid > 0
