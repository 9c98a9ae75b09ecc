"""A client that floods a real server with short prompts, beside one with long ones: two seats.

With -s -m "vllm and slow" the rows of the table in docs/results/engines.md are printed.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from statistics import median
from typing import Any

import httpx
import pytest

from tests.scheduler_adapters.commands.test_serve_vllm_live import (
    PROMPTS,
    Live,
    ScoringProcess,
    serving,
)

pytestmark = pytest.mark.vllm

ANSWER, LONG_ANSWER = 100, 600
"""Tokens. Requests limited to the first have nearly one rank, whatever their scores."""
KEYS = [f"sk-{number}" for number in range(64)]
CLASSES = {
    "classes": {"one": {}, "other": {}},
    "api_keys": {"sk-honest": "one", "sk-flood": "one", **dict.fromkeys(KEYS, "other")},
}
Sender = tuple[str, str]
"""API key and local address."""
CASES: dict[str, tuple[Sender, list[Sender]]] = {
    "key": (("sk-honest", "127.0.0.1"), [("sk-flood", "127.0.0.1")]),
    "address": (("none", "127.0.0.2"), [("none", "127.0.0.1")]),
    "keys of one class": (("sk-honest", "127.0.0.1"), [(key, "127.0.0.1") for key in KEYS]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("shares")


@pytest.fixture(
    scope="module", params=["{}", pytest.param("none", marks=pytest.mark.slow)], ids=["on", "off"]
)
def live(folder, tiny_bundle, request):
    scoring = ScoringProcess(tiny_bundle.path)
    classes = folder / "classes.json"
    classes.write_text(json.dumps(CLASSES))
    own = ["--deadline-s=3", f"--classes={classes}", f"--shares={request.param}"]
    try:
        with serving(folder, scoring.address, own, ["--max-num-seqs=2"]) as live:
            yield live, request.param != "none"
    finally:
        scoring.kill()


def sender(live: Live, who: Sender) -> Any:
    from openai import AsyncOpenAI

    key, address = who
    transport = httpx.AsyncHTTPTransport(
        local_address=address, limits=httpx.Limits(max_connections=None)
    )
    return AsyncOpenAI(
        base_url=f"{live.url}/v1", api_key=key, max_retries=0, timeout=900,
        http_client=httpx.AsyncClient(transport=transport, timeout=900),
    )  # fmt: skip


async def ask(openai: Any, kind: str, number: int, tokens: int) -> None:
    # Without ignore_eos: else the length would be known, and all would rank alike.
    prompt = f"{PROMPTS[kind]} w{number}"
    await openai.completions.create(model="tiny", prompt=prompt, max_tokens=tokens, temperature=0)


async def run(
    live: Live,
    honest: Sender,
    flooding: Sequence[Sender],
    size: int,
    requests: int,
    tokens: int = ANSWER,
) -> tuple[list[float], list[int]]:
    """Latencies of honest requests, one after another, and the flood's that ended meanwhile."""
    # Many pools: one of 500 connections costs the sender more than the server.
    ended, senders = 0, [sender(live, who) for who in [*flooding] * (1 + size // 16)]

    async def flood(number: int) -> None:
        nonlocal ended
        while True:
            await ask(senders[number % len(senders)], "yes", number, tokens)
            ended += 1

    tasks = [asyncio.create_task(flood(number)) for number in range(size)]
    own = sender(live, honest)
    while ended < 4:
        await asyncio.sleep(0.01)
    latency_s, passed = [], []
    for number in range(requests):
        began_s, before = time.monotonic(), ended
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(ask(own, "essay", number, tokens), 60)
        latency_s.append(time.monotonic() - began_s)
        passed.append(ended - before)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for one in (own, *senders):
        await one.close()
    return latency_s, passed


@pytest.mark.parametrize(
    "size", [12, *(pytest.param(each, marks=pytest.mark.slow) for each in (64, 500))]
)
@pytest.mark.parametrize("case", CASES)
def test_a_flood_leaves_a_client_its_share(live, case, size):
    (server, has_shares), (honest, flooding) = live, CASES[case]
    server.wait_until_idle()
    # Its share alone: the other seat has one other request.
    alone_s, _ = asyncio.run(run(server, honest, flooding[:1], 1, 8))
    count, tokens = (8, ANSWER) if has_shares else (1, LONG_ANSWER)
    latency_s, passed = asyncio.run(run(server, honest, flooding, size, count, tokens))
    cells = [f"{median(alone_s):.2f}", f"{median(latency_s):.2f}", f"{max(latency_s):.2f}"]
    print(f"\n| {size}, {case} | {'on' if has_shares else 'off'} | {' | '.join(cells)} |", passed)
    if has_shares:
        # A turn of the two seats until one is free, and the other seat meanwhile.
        assert median(passed) <= 4
        assert max(passed) <= 12  # the first request opens a connection, too
    else:
        assert median(passed) >= 12
