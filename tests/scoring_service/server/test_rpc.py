"""Messages hold what the service answered."""

from lengthwise.bundle import LengthEstimate
from scoring_service.server.rpc import _score_response
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
