"""Messages hold what the service answered."""

import json
import shutil

import pytest

from lengthwise.bundle import MANIFEST, LengthEstimate, ModelBundle
from lengthwise.conversation import described
from lengthwise.tables.prompt_text import of_chat
from scoring_service.client import ScoringClient
from scoring_service.ranker.model import RankerModel
from scoring_service.server.rpc import _score_response
from scoring_service.server.server import ScoringServer
from scoring_service.service.call_results import Scored
from scoring_service.service.config import ServerConfig
from scoring_service.service.scoring import CallAnswer, Timings

LENGTH = LengthEstimate(12.0, {0.5: 10.0, 0.75: 30.0})


def test_a_score_travels_with_its_length_and_times():
    timings = Timings(tokenize_s=1e-6, queue_s=2e-6, infer_s=3e-6, total_s=6e-6)
    message = _score_response(CallAnswer("r", [Scored(0.5, 7, True, LENGTH)], timings))
    assert (message.scored.score, message.scored.prompt_tokens) == (0.5, 7)
    assert message.scored.truncated
    assert message.revision == "r"
    assert {q.fraction: q.tokens for q in message.scored.length.quantiles} == LENGTH.quantiles
    stages = message.timings
    assert [stages.tokenize_us, stages.queue_us, stages.infer_us, stages.total_us] == [1, 2, 3, 6]


def test_a_ranker_of_descriptions_reads_the_requests_own(tiny_bundle, tmp_path):
    place = tmp_path / "described"
    shutil.copytree(tiny_bundle.path, place)
    content = json.loads((place / MANIFEST).read_text())
    content |= {"training": {"data": {"description": 1}}, "golden": {}}
    (place / MANIFEST).write_text(json.dumps(content))
    body = {"messages": [{"role": "user", "content": "Sort it."}], "tools": [{"name": "ls"}]}
    texts = [of_chat(body), "Sort it."]
    model = RankerModel.load(ModelBundle.load(place))
    expected = RankerModel.load(tiny_bundle).score_texts([described(body), described("Sort it.")])
    server = ScoringServer(model, ServerConfig(address="127.0.0.1:0"))
    server.start()
    try:
        with ScoringClient(server.target, timeout_s=60) as client:
            scores = [client.score(text).value for text in texts]
            batch = [score.value for score in client.score_batch(texts)]
    finally:
        server.stop()
    assert scores == batch == pytest.approx(expected, abs=1e-5)
