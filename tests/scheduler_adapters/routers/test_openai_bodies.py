import pytest

from scheduler_adapters.routers.openai_bodies import BadRequest, read_body

WRONG = {"n": 2, "logprobs": 5, "tools": [{"type": "function"}], "presence_penalty": 0.5}
WRONG |= {"seed": 3, "model": "other", "prompt": ["a"], "stop": [1], "max_tokens": 0, "guided": {}}


def test_fields_that_mean_the_same_in_every_leg_are_carried():
    given = {"prompt": "a", "temperature": 0, "seed": 3, "stop": "x", "n": 1, "logprobs": None}
    body = read_body(given, is_chat=False, model="m")
    assert (body["seed"], body["stop"], body["max_tokens"]) == (3, ["x"], None)
    assert "logprobs" not in body


@pytest.mark.parametrize("param", WRONG)
def test_what_cannot_be_carried_is_refused_by_name(param):
    with pytest.raises(BadRequest, match=param) as refused:
        read_body({"prompt": "a", param: WRONG[param]}, is_chat=False, model="m")
    assert refused.value.param == param
