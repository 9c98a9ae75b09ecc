"""Late scores inside the real vLLM: a burst of 200 on 16 seats, scores over a second."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler_adapters.engines.engine_clock import make_clock
from scheduler_adapters.engines.engine_metrics import METRICS_FOLDER
from scheduler_adapters.engines.score_channel import LateScoring
from scheduler_adapters.engines.vllm_v1.in_process import (
    OfflineConfig,
    VllmDriver,
    open_engine,
    scheduler_of,
)
from scheduler_adapters.planner.request_annotations import REQUEST_KEY, SCORE
from tests.scheduler_adapters.late_burst import SEATS, ByRank, late_burst

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(METRICS_FOLDER, str(folder))
        config = OfflineConfig(scheduler="pars", max_num_seqs=SEATS)
        with open_engine(config, max_model_len=512) as engine:
            yield engine
        assert not list(folder.glob("*.sock"))


def test_those_that_start_after_their_score_came_start_by_rank(engine: Any) -> None:
    scheduler = scheduler_of(engine)
    by_rank = ByRank(lambda: (each.lengthwise.rank for each in scheduler.waiting.queue))
    requests = late_burst(over_s=0.5)
    served = VllmDriver(engine).serve(
        requests, clock=make_clock("cpu"), seed=0, observers=[by_rank]
    )
    assert [len(tokens) for tokens in served.token_ids] == requests.output_tokens.tolist()
    counts = scheduler.lengthwise.annotation_counts
    assert (counts.scored, counts.unscored, counts.invalid) == (0, 200, 0)
    assert counts.late == by_rank.num_scored > 50
    assert by_rank.num_scored + by_rank.num_unscored == 200
    assert by_rank.num_unscored >= SEATS  # the first that ran had none yet


def test_a_score_that_another_process_sends_moves_a_request_that_waits(
    engine: Any, folder: Path
) -> None:
    import asyncio

    from vllm import SamplingParams

    scheduler = scheduler_of(engine)
    scheduler.lengthwise_start(scheduler.lengthwise.policy)
    key = "ab" * 16

    def add(name: str, tokens: int, **extra: Any) -> None:
        params = SamplingParams(
            max_tokens=tokens, ignore_eos=True, detokenize=False, extra_args=extra, n=1
        )
        engine.add_request(name, {"prompt_token_ids": [3, 5, 8]}, params)

    for number in range(SEATS):
        add(f"first {number}", 20, **{SCORE: 1.0})
    for number in range(20):
        add(f"middle {number}", 20, **{SCORE: 5.0})
    add("late", 3, **{REQUEST_KEY: key})
    engine.step()
    sender = LateScoring(folder, late_s=60.0, count=print)
    asyncio.run(sender.send({REQUEST_KEY: key, SCORE: 0.5}))
    sender.close()
    inbox = scheduler.lengthwise.late_scores.inbox
    while not inbox:  # the thread of the receiver fills it
        pass
    engine.step()
    assert not inbox
    assert scheduler.waiting.peek_request().request_id.startswith("late")
    done = []
    while engine.has_unfinished_requests():
        done += [output.request_id for output in engine.step() if output.finished]
    assert done.index("late") < min(at for at, name in enumerate(done) if name[:6] == "middle")
    assert scheduler.lengthwise.annotation_counts.late == 1
