from math import inf, nan

import pytest
from pydantic import ValidationError

from scheduler_adapters.engines.body_fields import FIELDS

NUMBERS = {"temperature": 2, "top_p": 0.9, "min_p": 0, "repetition_penalty": 1.1, "top_k": -1}
NUMBERS |= {"min_tokens": 0, "seed": -3, "max_tokens": 1, "max_completion_tokens": 9, "n": 1}
NEUTRAL = {"best_of": 1, "echo": False, "suffix": "", "logprobs": False, "top_logprobs": 0}
NEUTRAL |= {"presence_penalty": 0, "frequency_penalty": 0.0, "tools": [], "tool_choice": "none"}
OBJECTS = {key: {"a": 1} for key in ("chat_template_kwargs", "stream_options", "metadata")}
RIGHT = {**NUMBERS, **NEUTRAL, **OBJECTS, "ignore_eos": True, "stream": False, "model": "m"}
RIGHT |= {"response_format": {"type": "text"}, "user": "a", "stop": ["a"], "stop_token_ids": [0]}
RIGHT |= {"logit_bias": {"4": -100}, "messages": [{"role": "u", "content": ""}], "prompt": [0]}
BAD_IDS = [[-1], [1.0], [True], ["1"], [[1]], [nan], {"1": 1}]
OTHERS = [nan, inf, -inf, 2**64, -(2**64), -1.5, "1", [1], {}, {"a": nan}]
BAD_BIASES = [{"-1": 1}, {"1": nan}, {"1": 101}, {"1": "1"}, {"1": True}, {"a": 1}]
BAD_BIASES += [[1], {"9" * 5000: 1}, {"\u0661": 1}, {"1": None}]
BAD_CHATS = [[{"content": "a"}], [{"role": "user", "content": ["a"]}], [{"role": 1, "content": ""}]]
WRONG = {
    "response_format": [{"type": "json_object"}, "text"],
    "stop": [1, [1], [""], "", ["a"] * 17, "a" * 257, {"a": 1}],
    "stop_token_ids": [*BAD_IDS, 1, "1", [1] * 1025],
    "logit_bias": BAD_BIASES,
    "messages": [*BAD_CHATS, "a", [1], {"a": 1}],
    "prompt": [*BAD_IDS, 1, ["a"]],
}
OF_MANY = [
    (NUMBERS, [*OTHERS, True]),
    (NEUTRAL, ["x", 2, nan, [1]]),
    (OBJECTS, ["x", 1, []]),
    (("ignore_eos", "stream"), [0, 1, "true"]),
    (("model", "user"), [1, ["m"], {}]),
]
WRONG |= {name: values for names, values in OF_MANY for name in names}


@pytest.mark.parametrize("name", FIELDS)
def test_each_field_holds_in_its_type_and_range_only(name):
    for value in WRONG[name]:
        with pytest.raises(ValidationError):
            FIELDS[name].validate_python(value)
    FIELDS[name].validate_python(RIGHT[name])
