"""Messages hold what the service answered."""

import pytest

from lengthwise.bundle import LengthEstimate
from lengthwise.errors import InvalidPrompt, ServiceOverloaded
from scoring_service.server.rpc import _batch_response, _score_response
from scoring_service.service.call_results import Scored
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


def test_a_single_prompt_without_a_score_is_an_error():
    error = InvalidPrompt("empty")
    with pytest.raises(InvalidPrompt) as caught:
        _score_response(CallAnswer("r", [error], Timings()))
    assert caught.value is error


def test_an_item_is_a_score_or_a_status():
    items = [Scored(0.5, 7, False, None), ServiceOverloaded("full")]
    scored, refused = _batch_response(CallAnswer("r", items, Timings())).items
    assert not scored.scored.HasField("length")
    assert refused.HasField("error")
    assert refused.error.message == "full"
