"""`serve-vllm` and a scoring service that is slower than the deadline: scores that come late."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import pytest

from scheduler_adapters.engines.random_model import VOCABULARY
from scheduler_adapters.timeline.timeline import read_timeline
from scoring_service.ranker.model import RankerModel
from scoring_service.server.server import ScoringServer
from scoring_service.service.config import ServerConfig
from tests.scheduler_adapters.commands.test_serve_vllm_live import (
    PROMPTS,
    Live,
    client,
    lead,
    serving,
)

pytestmark = pytest.mark.vllm

SEATS, COUNT = 2, 32


@pytest.fixture(scope="module")
def answers():
    """While it is not set, the scoring service answers nobody."""
    event = threading.Event()
    event.set()
    return event


@pytest.fixture(scope="module")
def live(tmp_path_factory, tiny_bundle, answers):
    model = RankerModel.load(tiny_bundle)
    real = model.scorer.score

    def slow(*arguments: Any) -> Any:
        answers.wait()
        return real(*arguments)

    model.scorer.score = slow  # type: ignore[method-assign]
    service = ScoringServer(model, ServerConfig(address="127.0.0.1:0", drain_grace_s=0))
    service.start()
    vllms = ["--max-model-len=8192", f"--max-num-seqs={SEATS}"]
    # Beside other work a score of the cache takes longer than the default deadline, too.
    options = ["--late-s=300", "--deadline-s=2", "--guard=none"]
    with serving(tmp_path_factory.mktemp("late"), service.target, options, vllms) as running:
        yield running
    answers.set()
    service.stop()


@asynccontextmanager
async def seats_held(live: Live, openai: Any, prompt: str) -> AsyncIterator[None]:
    """All seats are taken until the block ends."""

    async def hold(number: int) -> None:
        chunks = await openai.completions.create(
            model="tiny", prompt=f"{prompt} w{number}", max_tokens=8000, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        async for _ in chunks:
            pass

    holders = [asyncio.create_task(hold(number)) for number in range(SEATS)]
    await asyncio.to_thread(live.wait_until, "vllm:num_requests_running", SEATS)
    yield
    for holder in holders:
        holder.cancel()
    await asyncio.gather(*holders, return_exceptions=True)


def test_clients_that_forge_scores_and_priorities_gain_nothing(live):
    """Every other client has a long answer coming; honest or not, the short ones go first."""
    # A token ends each answer, not a limit: beside limits of the usual length all would rank alike.
    ended = {"stop_token_ids": [*range(VOCABULARY)]}
    forged = {"vllm_xargs": {"lengthwise_score": -1e9}, "priority": -100}
    header = {"X-Vllm-Priority": "-100"}
    kinds = [*PROMPTS] * (COUNT // len(PROMPTS))

    async def one(openai: Any, number: int, kind: str, forges: bool) -> tuple[str, float]:
        await openai.completions.create(
            model="tiny", prompt=f"{PROMPTS[kind]} w{100 + number}", max_tokens=500,
            extra_headers=header if forges else {}, extra_body=ended | (forged if forges else {}),
        )  # fmt: skip
        return kind, time.monotonic()

    async def burst(forges: bool) -> tuple[list[str], float]:
        openai = client(live)
        async with seats_held(live, openai, "short"):
            asked = [
                asyncio.create_task(one(openai, n, kind, forges and kind == "essay"))
                for n, kind in enumerate(kinds)
            ]
            await asyncio.to_thread(live.wait_until, "vllm:num_requests_waiting", COUNT)
            begun_s = time.monotonic()
        finished = sorted(await asyncio.gather(*asked), key=lambda answer: answer[1])
        await openai.close()
        await asyncio.to_thread(live.wait_until_idle)
        short_s = median(end_s for kind, end_s in finished if kind == "yes")
        return [kind for kind, _ in finished], short_s - begun_s

    asyncio.run(burst(False))  # The scores come from the cache of the service from here on.
    before = live.outcomes()
    bursts = [asyncio.run(burst(forges)) for forges in [False, True, True, False] * 2]
    forging, without = (bursts[n::4] + bursts[3 - n :: 4] for n in (1, 0))
    ratio = median(s for _, s in forging) / median(s for _, s in without)
    leads = [median(lead(order) for order, _ in each) for each in (forging, without)]
    print(f"honest p50 with forging clients / without: {ratio:.2f}; honest lead in places {leads}")
    assert leads[0] >= 0.9 * leads[1] > 0
    dropped = "lengthwise_client_hints_total"
    assert live.outcomes_since(before)["explicit"] == 0
    assert live.sample(dropped, outcome="dropped") == 4 * COUNT / 2
    assert live.sample(dropped, outcome="kept") == 0


def test_whoever_starts_after_its_score_came_starts_by_rank(live, answers):
    before = live.outcomes()
    live.wait_for_timeline()
    served = len(read_timeline(live.timeline).requests)
    late, sent = "lengthwise_engine_requests_total", "lengthwise_late_scores_total"
    moved_before, sent_before = live.sample(late, hint="late"), live.sample(sent, outcome="sent")

    async def main() -> None:
        openai = client(live)

        answers.clear()
        async with seats_held(live, openai, "poem"):
            kinds = [*PROMPTS] * (COUNT // len(PROMPTS))
            # Without ignore_eos: else the length would be known, and all would rank alike.
            ask = partial(openai.completions.create, model="tiny", max_tokens=12)
            asked = [ask(prompt=f"{PROMPTS[kind]} w{n}") for n, kind in enumerate(kinds)]
            burst = [asyncio.create_task(one) for one in asked]
            await asyncio.to_thread(live.wait_until, "vllm:num_requests_waiting", COUNT)
            assert live.sample(late, hint="late") == moved_before
            answers.set()
            await asyncio.to_thread(live.wait_until, late, moved_before + COUNT, hint="late")
        await asyncio.gather(*burst)
        await openai.close()

    asyncio.run(main())
    live.wait_until_idle()
    outcomes = live.outcomes_since(before)
    assert outcomes["late timeout"] + outcomes["unscored breaker_open"] == COUNT + SEATS
    assert live.sample(sent, outcome="sent") == sent_before + COUNT
    live.wait_for_timeline()
    timeline = read_timeline(live.timeline)
    timeline = timeline.take(np.arange(len(timeline.requests)) >= served)
    started = sorted(zip(timeline.scheduled_s, timeline.requests.score, strict=True))
    scores = [score for _, score in started]
    assert len(scores) == COUNT
    assert len(set(scores)) > COUNT / 4
    assert scores == sorted(scores)
