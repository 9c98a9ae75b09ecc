"""The peers of the bench are servers that score as the service does."""

import shlex
import struct
import sys
from pathlib import Path

import pytest

from benchmarks.speed.service_peers import OpenInferencePeer, other, ours

NAIVE = Path(__file__).resolve().parents[3] / "benchmarks/peers/naive.py"


def test_our_service_scores_every_prompt_anew(tiny_bundle, client):
    with ours(tiny_bundle.path, "fp32") as running:
        ask = running.client()
        assert ask("essay").value == ask("essay").value == client.score("essay").value


def test_the_naive_service_gives_the_same_scores(tiny_bundle, client):
    with other(shlex.join([sys.executable, str(NAIVE), str(tiny_bundle.path)])) as running:
        (raw,) = running.client()("essay").raw_output_contents
    assert struct.unpack("<f", raw)[0] == pytest.approx(client.score("essay").value, abs=1e-5)


def test_an_open_inference_peer_names_the_model_by_the_protocol(server, monkeypatch):
    asked = []
    real = server.service.begin
    monkeypatch.setattr(
        server.service, "begin", lambda *call: (asked.append(call[0]), real(*call))[1]
    )
    name = server.service.model.manifest.name
    monkeypatch.setattr("benchmarks.speed.service_peers.MODEL_NAME", name)
    OpenInferencePeer("peer", 1, server.target).client()("essay")
    assert asked == [["essay"]]
