import pytest

from scheduler_adapters.routers.openai_bodies import BadRequest, read_body

LIMITS = ("m", 500, 3)
"""Model, size of the vocabulary, most tokens."""
WRONG = {"n": 2, "logprobs": 5, "tools": [{"type": "function"}], "presence_penalty": 0.5}
WRONG |= {"seed": 3, "model": "other", "prompt": ["a"], "stop": [1], "max_tokens": 0, "guided": {}}
WRONG |= {"stop_token_ids": [9, 500], "logit_bias": {"500": 1}}
LONG = [("prompt", []), ("prompt", [500]), ("prompt", [1] * 4)]


def test_fields_that_mean_the_same_in_every_leg_are_carried():
    given = {"prompt": "a", "temperature": 0, "seed": 3, "stop": "x", "n": 1, "logprobs": None}
    body = read_body(given, *LIMITS, is_chat=False)
    assert (body["seed"], body["stop"], body["max_tokens"]) == (3, ["x"], None)
    assert "logprobs" not in body


@pytest.mark.parametrize(("param", "value"), [*WRONG.items(), *LONG])
def test_what_cannot_be_carried_is_refused_by_name(param, value):
    with pytest.raises(BadRequest, match=param) as refused:
        read_body({"prompt": "a", param: value}, *LIMITS, is_chat=False)
    assert (refused.value.param, len(str(refused.value)) < 200) == (param, True)
