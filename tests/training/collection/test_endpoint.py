"""The endpoint: lengths read from a response, retries with growing waits, clear refusals."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from lengthwise.errors import ConfigError, ServiceUnavailable
from tests.training.collection.responses import answer
from training.collection.endpoint import Endpoint, PromptRefused, measure


@pytest.mark.parametrize(
    ("usage", "message", "expected"),
    [
        ({}, {"content": "yes"}, (100, 0, "none")),
        ({"reasoning_tokens": 70}, {"content": "yes"}, (100, 70, "usage")),
        ({"reasoning_tokens": 0}, {"content": "x" * 10}, (100, 0, "none")),
        ({"reasoning_tokens": None}, {"content": "ab", "reasoning": "c" * 6}, (100, 75, "text")),
        ({}, {"content": "ab", "reasoning_content": "c" * 6}, (100, 75, "text")),
        ({}, {"content": None, "reasoning_content": "cut here"}, (100, 100, "text")),
        ({}, {"content": "<think>12345</think>" + "y" * 20}, (100, 50, "text")),
        ({}, {"content": "<think>no end"}, (100, 100, "text")),
    ],
)
def test_reasoning_is_counted_wherever_the_endpoint_puts_it(usage, message, expected):
    length = measure(
        {
            "choices": [{"message": message, "finish_reason": "stop"}],
            "usage": {"completion_tokens": 100, "completion_tokens_details": usage},
        }
    )
    assert (length.output_tokens, length.reasoning_tokens, length.reasoning_from) == expected
    assert length.answer_tokens == 100 - length.reasoning_tokens


def test_the_endpoint_says_when_to_come_back(no_waiting):
    answers = [
        httpx.Response(429, headers={"retry-after": "17"}),
        httpx.Response(200, json=answer(3)),
    ]
    assert ask(lambda _: answers.pop(0)).output_tokens == 3
    assert no_waiting == [17.0]


def test_lost_connections_are_retried_once_an_endpoint_answered(no_waiting):
    def lose(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("too slow", request=request)

    with pytest.raises(ServiceUnavailable, match="ReadTimeout: too slow"):
        ask(lose)
    assert len(no_waiting) == 9


def ask(handler: Callable[[httpx.Request], httpx.Response]) -> Any:
    async def run() -> Any:
        async with httpx.AsyncClient(transport=httpx.MockTransport(handler)) as client:
            return await Endpoint(client, "http://llm", {"model": "m"}).complete("hello")

    return asyncio.run(run())


def test_a_refusal_blames_a_prompt_and_a_wrong_key_the_settings():
    with pytest.raises(ConfigError, match="refuses to answer"):
        ask(lambda _: httpx.Response(403))
    with pytest.raises(PromptRefused, match="HTTP 413"):
        ask(lambda _: httpx.Response(413))
