"""Messages: what is written can be read, and what cannot be written is refused."""

from hypothesis import given, strategies as st

from scoring_service.client import codec
from scoring_service.proto import scoring_pb2 as pb


def limits(count, num_bytes):
    return codec.ServiceInfo("n", "r", "l", "t", "fp32", (), 32, 100, count, num_bytes)


@given(st.lists(st.text(max_size=20), max_size=12), st.integers(1, 6), st.integers(20, 100))
def test_chunks_keep_order_and_limits(prompts, count, num_bytes):
    parts = list(codec.chunks(prompts, limits(count, num_bytes)))
    assert [prompt for part in parts for prompt in part] == prompts
    for part in parts:
        assert 1 <= len(part) <= count
        assert len(codec.write_batch(part, "").SerializeToString()) <= num_bytes or len(part) == 1


def test_a_chunk_is_as_large_as_it_may_be():
    assert [len(part) for part in codec.chunks(["x"] * 7, limits(3, 10_000))] == [3, 3, 1]
    # Four bytes and sixteen of framing each.
    assert [len(part) for part in codec.chunks(["xxxx"] * 4, limits(9, 40))] == [2, 2]


def scored(**length):
    message = pb.ScoredPrompt(score=0.5, prompt_tokens=3, truncated=True)
    if length:
        message.length.expected_tokens = length["expected"]
        message.length.quantiles.add(fraction=0.9, tokens=20)
    return message


def test_a_score_is_read_with_its_length_where_there_is_one():
    plain = codec.read_score(pb.ScoreResponse(scored=scored(), revision="r"))
    assert plain == codec.Score(0.5, "r", 3, True)
    whole = codec.read_score(pb.ScoreResponse(scored=scored(expected=9), revision="r"))
    assert whole == codec.Score(0.5, "r", 3, True, 9, {0.9: 20})
