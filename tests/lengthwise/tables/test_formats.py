"""Each format of a gateway is recognised, and its rows come out under our names."""

from typing import Any

import pytest

from lengthwise.tables.formats import LANGFUSE, LITELLM, OPENAI, recognise, standard_row
from lengthwise.tables.formats import unanswered as why
from tests.lengthwise.tables import logs


def ours(row: dict[str, Any]) -> dict[str, Any]:
    known = recognise(row)
    assert known is not None
    return standard_row(row, known)


def test_chat_completion_and_responses_are_read_alike() -> None:
    rows = [ours(row) for row in logs.OPENAI[:4]]
    assert [row["prompt"] for row in rows] == ["one", "two", "three", "four"]
    assert [row["output_tokens"] for row in rows] == [10, 20, 30, 40]
    assert [row["prompt_tokens"] for row in rows] == [9, 9, 4, 5]
    assert [row["reasoning_tokens"] for row in rows] == [None, None, None, 25]
    assert rows[1]["arrival_s"] - rows[0]["arrival_s"] == 2.5
    assert {row["model"] for row in rows} == {"m"}


@pytest.mark.parametrize(
    "parts", [("request_body", "response_body"), ("reqPayload", "respPayload")]
)
def test_the_parts_of_a_pair_may_have_other_names_and_be_text(parts: tuple[str, str]) -> None:
    import json

    pair = logs.chat("one", 10)
    request, response = pair.values()
    row = {parts[0]: json.dumps(request), parts[1]: json.dumps(response)}
    assert (ours(row)["prompt"], ours(row)["output_tokens"]) == ("one", 10)


def test_one_object_may_hold_request_and_response() -> None:
    request, response = logs.chat("one", 10).values()
    assert ours(request | response)["output_tokens"] == 10
    assert [ours(row)["output_tokens"] for row in logs.BATCH] == [1, 2, 3]


def test_litellm_keeps_the_prompt_in_one_of_two_places() -> None:
    first, second, failed = logs.LITELLM
    assert recognise(first) is LITELLM
    assert ours(first) | {"arrival_s": 0} == {
        "prompt": "one",
        "output_tokens": 12,
        "prompt_tokens": 7,
        "reasoning_tokens": None,
        "model": "m",
        "arrival_s": 0,
    }
    assert (ours(second)["prompt"], ours(second)["reasoning_tokens"]) == ("two", 20)
    assert ours(second)["arrival_s"] - ours(first)["arrival_s"] == 1.0
    assert why(failed, LITELLM) == "status is 'failure'"
    assert why(first, LITELLM) is None


def test_langfuse_takes_details_off_the_output_and_they_are_added_again() -> None:
    span, second, first = logs.LANGFUSE
    assert recognise(second) is recognise(first) is LANGFUSE
    assert (ours(second)["output_tokens"], ours(second)["reasoning_tokens"]) == (30, 24)
    assert (ours(first)["prompt"], ours(first)["output_tokens"]) == ("one", 11)
    assert ours(second)["arrival_s"] - ours(first)["arrival_s"] == 1.75
    assert why(span, LANGFUSE) == "type is 'SPAN'"


def test_an_error_is_no_answer() -> None:
    assert recognise(logs.OPENAI[-1]) is OPENAI
    assert why(logs.OPENAI[-1], OPENAI) == "it has response.error"
    assert why(logs.BATCH[0], OPENAI) is None
    refused = {**logs.BATCH[0], "response": {"status_code": 429, "body": {}}}
    assert why(refused, OPENAI) == "response.status_code is '429'"


@pytest.mark.parametrize(
    "row", [{"prompt": "a", "output_tokens": 3}, {"messages": [], "tokens": 3}, {"type": "x"}]
)
def test_a_plain_table_is_no_log(row: dict[str, Any]) -> None:
    assert recognise(row) is None
