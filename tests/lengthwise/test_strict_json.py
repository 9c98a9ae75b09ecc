"""What is written is JSON that any reader takes."""

import json
import math

import numpy as np

from lengthwise.strict_json import finite_or_null, to_json


def test_numbers_that_are_not_finite_become_null_at_any_depth():
    value = {"a": [1.5, math.nan, (math.inf, {"b": -math.inf})], "c": np.float64("nan"), "d": 3}
    assert finite_or_null(value) == {"a": [1.5, None, [None, {"b": None}]], "c": None, "d": 3}


def test_text_and_numbers_stay_and_the_given_value_is_unchanged():
    value = {"text": "NaN", "flag": True, "none": None, "list": [math.nan]}
    assert json.loads(to_json(value)) == {"text": "NaN", "flag": True, "none": None, "list": [None]}
    assert math.isnan(value["list"][0])
    assert "\n" not in to_json(value)
    assert "\n" in to_json(value, indent=1)
