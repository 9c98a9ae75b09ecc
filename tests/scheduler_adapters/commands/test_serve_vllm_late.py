"""`serve-vllm` and a scoring service that is slower than the deadline: scores that come late."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler_adapters.timeline.timeline import read_timeline
from scoring_service.bundle import ModelBundle
from scoring_service.ranker.model import RankerModel
from scoring_service.server.server import ScoringServer
from scoring_service.service.config import ServerConfig
from tests.scheduler_adapters.commands.test_serve_vllm_live import (
    PROMPTS,
    Live,
    client,
    serving,
    stream,
)

pytestmark = pytest.mark.vllm

SEATS, COUNT = 2, 32


@pytest.fixture(scope="module")
def answers() -> threading.Event:
    """While it is not set, the scoring service answers nobody."""
    event = threading.Event()
    event.set()
    return event


@pytest.fixture(scope="module")
def live(
    tmp_path_factory: pytest.TempPathFactory, tiny_bundle: ModelBundle, answers: threading.Event
) -> Iterator[Live]:
    model = RankerModel.load(tiny_bundle)
    real = model.scorer.score

    def slow(*arguments: Any) -> Any:
        answers.wait()
        return real(*arguments)

    model.scorer.score = slow  # type: ignore[method-assign]
    service = ScoringServer(model, ServerConfig(address="127.0.0.1:0", drain_grace_s=0))
    service.start()
    vllms = ["--max-model-len=8192", f"--max-num-seqs={SEATS}"]
    with serving(
        tmp_path_factory.mktemp("late"), service.target, ["--late-s=300"], vllms
    ) as running:
        yield running
    answers.set()
    service.stop()


def test_whoever_starts_after_its_score_came_starts_by_rank(
    live: Live, answers: threading.Event
) -> None:
    async def main() -> None:
        openai = client(live)

        async def hold_a_seat(number: int) -> None:
            chunks = await openai.completions.create(
                model="tiny", prompt=f"poem w{number}", max_tokens=8000, stream=True,
                extra_body={"ignore_eos": True},
            )  # fmt: skip
            async for _ in chunks:
                pass

        answers.clear()
        holders = [asyncio.create_task(hold_a_seat(number)) for number in range(SEATS)]
        await asyncio.to_thread(live.wait_until, "vllm:num_requests_running", SEATS)
        kinds = [*PROMPTS] * (COUNT // len(PROMPTS))
        burst = [asyncio.create_task(stream(openai, n, kind)) for n, kind in enumerate(kinds)]
        await asyncio.to_thread(live.wait_until, "vllm:num_requests_waiting", COUNT)
        late = "lengthwise_engine_requests_total"
        assert live.sample(late, hint="late") == 0
        answers.set()
        await asyncio.to_thread(live.wait_until, late, COUNT, hint="late")
        for holder in holders:
            holder.cancel()
        await asyncio.gather(*holders, return_exceptions=True)
        await asyncio.gather(*burst)
        await openai.close()

    asyncio.run(main())
    live.wait_until_idle()
    outcomes = live.outcomes()
    assert outcomes["late timeout"] + outcomes["unscored breaker_open"] == COUNT + SEATS
    assert live.sample("lengthwise_late_scores_total", outcome="sent") == COUNT
    timeline = read_timeline(live.timeline)
    started = sorted(zip(timeline.scheduled_s, timeline.requests.score, strict=True))
    scores = [score for _, score in started]
    assert len(scores) == COUNT
    assert len(set(scores)) > COUNT / 4
    assert scores == sorted(scores)
