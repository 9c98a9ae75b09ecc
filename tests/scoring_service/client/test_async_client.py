"""The asyncio client is the plain one, awaited."""

from __future__ import annotations

import asyncio

import pytest

from lengthwise.errors import InvalidPrompt, ServiceUnavailable
from scoring_service.client.async_client import AsyncScoringClient


def test_the_asyncio_client_equals_the_plain_one(server, client):
    prompts = ["yes", "", "long essay"] * 5

    async def main():
        async with AsyncScoringClient(server.target, timeout_s=60) as asynchronous:
            with pytest.raises(InvalidPrompt):
                await asynchronous.score("")
            return await asynchronous.score_batch(prompts), await asynchronous.score("yes")

    batch, one = asyncio.run(main())
    assert one == client.score("yes")
    for ours, theirs in zip(batch, client.score_batch(prompts), strict=True):
        assert type(ours) is type(theirs)
        assert isinstance(ours, InvalidPrompt) or ours == theirs


def test_the_asyncio_client_says_unavailable():
    async def main():
        async with AsyncScoringClient("127.0.0.1:1", timeout_s=60) as client:
            assert {type(e) for e in await client.score_batch(["a", "b"])} == {ServiceUnavailable}

    asyncio.run(main())
