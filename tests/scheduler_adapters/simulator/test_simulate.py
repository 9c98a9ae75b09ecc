"""Runs: the same results under observers, by every engine, and up to Ctrl-C."""

from dataclasses import replace

import numpy as np
import pytest

from lengthwise.progress import Progress
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policy import load_policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.observers import LoadRecorder, ProgressLine
from scheduler_adapters.simulator.simulate import Interrupted, simulate
from scheduler_adapters.views import Rank
from scheduler_adapters.workload.requests import make_requests

INSTANCE = Instance(latency=AffineLatency(base_s=0.01, per_token_s=1e-4), kv_blocks=60)
ALL_ENGINES = ["plain", "vllm"]


def requests_of(count: int):
    random = np.random.default_rng(0)
    return make_requests(
        prompt_tokens=random.integers(1, 100, count),
        output_tokens=random.integers(1, 50, count),
        arrival_s=np.cumsum(random.exponential(0.03, count)),
    )


@pytest.mark.parametrize("engine", ALL_ENGINES)
def test_every_engine_serves_all_and_its_load_fits_the_memory(engine):
    requests = requests_of(80)
    recorder = LoadRecorder()
    timeline = simulate(requests, FCFS(), INSTANCE, kind=engine, observers=[recorder])
    load = recorder.curve()
    assert np.isfinite(timeline.finished_s).all()
    assert len(load.end_s) == len(load.duration_s) == len(load.num_waiting)
    assert 0 < load.used_blocks.max() <= INSTANCE.kv_blocks
    assert (load.num_resident + load.num_waiting).max() <= 80


class _PressesCtrlC(FCFS):
    """Interrupts the run at the rank of the request with this number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def rank(self, request, load):
        if request.number == self.number:
            raise KeyboardInterrupt
        return Rank()


@pytest.mark.parametrize("engine", ALL_ENGINES)
def test_an_interrupted_run_keeps_what_had_finished(engine):
    requests = requests_of(80)
    with pytest.raises(Interrupted) as caught:
        simulate(requests, _PressesCtrlC(60), INSTANCE, kind=engine)
    whole = simulate(requests, FCFS(), INSTANCE, kind=engine)
    timeline = caught.value.timeline
    finished = ~np.isnan(timeline.finished_s)
    assert 0 < finished.sum() < 80
    np.testing.assert_array_equal(timeline.finished_s[finished], whole.finished_s[finished])
    for row in np.flatnonzero(finished):
        np.testing.assert_array_equal(timeline.token_s(row), whole.token_s(row))


def test_progress_of_short_runs_is_shown_on_terminals_only(capsys, monkeypatch):
    def run():
        with Progress(1) as progress:
            progress.begin("fcfs")
            requests = requests_of(20)
            simulate(requests, FCFS(), INSTANCE, observers=[ProgressLine(progress, len(requests))])
            progress.step("fcfs")
        return capsys.readouterr().err

    assert run() == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    line = run()
    assert "fcfs: virtual time 0 s, 0/20 requests" in line
    assert "####################" in line
    assert "0 s  1/1  fcfs" in line


@pytest.mark.parametrize("loop", ["python", "auto"])
def test_a_request_waits_by_limits_and_not_by_scores_beyond_them(loop, monkeypatch):
    monkeypatch.setattr("scheduler_adapters.simulator.simulate._WORTH_COMPILING", 1)
    tokens = np.array([30] * 40 + [2, 30, 30])
    scores = np.array([*np.linspace(10, 20, 40), 99.0, 1.0, 1.0])
    columns = dict(prompt_tokens=np.full(43, 9), output_tokens=tokens, scores=scores)
    instance = replace(INSTANCE, max_num_seqs=1)
    policy = load_policy("pars-paper")

    def places(**limits) -> list[int]:
        timeline = simulate(make_requests(**columns, **limits), policy, instance, loop=loop)
        return np.argsort(np.argsort(timeline.scheduled_s))[40:].tolist()

    believed = places()
    assert (believed[0], max(believed[1:])) == (42, 1)
    none, limit = [np.nan] * 40, [2.0, np.nan, np.nan]
    # Two of 43 that were to be long, and one that cannot be.
    short, *long = places(max_tokens=[*none, *limit], min_tokens=[*none, np.nan, 30, 2000])
    assert short <= 2
    assert long[0] >= 5
    # More than its output is no limit.
    assert long[1] <= 1
