"""What capturing CUDA graphs does to step times; here the engine is a simulator of known ones."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from scheduler_adapters.benchmarks.transformers_report import Report
from scheduler_adapters.engines.transformers_batching.in_process import GRAPHS
from scheduler_adapters.policy import load_policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import LatencyModel
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.steps import Chunk, StepRecord
from scheduler_adapters.validation.errors import METRICS
from scheduler_adapters.validation.graph_fit import GraphFit, _size, fit_graphs
from scheduler_adapters.validation.prediction import Served, predict
from scheduler_adapters.validation.step_fit import EngineLatency
from scheduler_adapters.workload.requests import Requests
from tests.scheduler_adapters.validation.noting_engine import requests_of

CAPTURE_S = 0.08


@dataclass(kw_only=True)
class Engine(LatencyModel):
    """New: it captures a graph where tokens or cache reach a new multiple. Notes its steps."""

    steps: list[StepRecord] = field(default_factory=list)
    graphs: set[tuple[int, int]] = field(default_factory=set)

    def step_s(self, num_decodes: int, decode_context: int, prefills: Sequence[Chunk]) -> float:
        tokens = sum(chunk for _, chunk in prefills)
        cached = decode_context - num_decodes + sum(before for before, _ in prefills)
        seconds = 0.01 + 1e-5 * num_decodes + 1e-6 * decode_context + 2e-5 * tokens
        graph = ((num_decodes + tokens + 63) // 64, max(1, (cached + 2047) // 2048))
        seconds += CAPTURE_S * (graph not in self.graphs)
        self.graphs.add(graph)
        self.steps.append(StepRecord.of(num_decodes, decode_context, prefills, seconds))
        return seconds


def instance_with(latency: LatencyModel) -> Instance:
    return Instance(latency=latency, kv_blocks=4000, max_num_seqs=32, max_tokens=128)


@pytest.fixture
def requests() -> Requests:
    return requests_of(150, 60)


def serve(requests: Requests, policy: str) -> Served:
    engine = Engine()
    timeline = simulate(requests, load_policy(policy), instance_with(engine))
    return Served(
        requests=requests,
        timeline=timeline,
        steps=engine.steps,
        has_graphs=True,
        instance_with=instance_with,
    )


def test_captures_of_one_policy_predict_those_of_another(requests: Requests) -> None:
    run = serve(requests, "fcfs")
    fit = fit_graphs(run.steps, has_graphs=True)
    assert fit.num_captures == sum(step.seconds > CAPTURE_S for step in run.steps)
    assert fit.num_captures > 5
    assert fit.capture_s == pytest.approx(CAPTURE_S, rel=0.1)
    for name in ("fcfs", "pars"):
        row, _ = predict(serve(requests, name), load_policy(name), fit)
        assert max(row[f"{metric}_mape_fraction"] for metric in METRICS) < 0.01


def test_context_has_its_price_only_where_captures_are_left_out(requests: Requests) -> None:
    """They come early, while contexts are short."""
    steps = serve(requests, "fcfs").steps
    left_out, counted = (
        fit_graphs(steps, has_graphs=has_graphs).steps.latency for has_graphs in (True, False)
    )
    assert left_out.per_context_token_s == pytest.approx(1e-6, rel=0.01)
    assert counted.per_context_token_s < 0.7e-6


def test_every_simulation_starts_without_graphs(requests: Requests) -> None:
    fit = fit_graphs(serve(requests, "fcfs").steps, has_graphs=True)
    first, again = fit.latency(), fit.latency()
    step = (3, 300, [(0, 20)])
    assert first.step_s(*step) - fit.steps.latency.step_s(*step) == pytest.approx(fit.capture_s)
    assert first.step_s(*step) == fit.steps.latency.step_s(*step)
    assert again.step_s(*step) > first.step_s(*step)


def test_an_engine_without_graphs_is_fitted_with_all_its_steps(requests: Requests) -> None:
    steps = serve(requests, "fcfs").steps
    fit = fit_graphs(steps, has_graphs=False)
    assert fit.steps.num_steps == len(steps)
    assert isinstance(fit.latency(), EngineLatency)


def test_the_table_tells_of_captures(requests: Requests) -> None:
    report = Report({}, None)
    report.add("fcfs", serve(requests, "fcfs"))
    assert isinstance(report.fit, GraphFit)
    assert f"and {report.fit.num_captures} captures of CUDA graphs (0.0" in report.text()


@pytest.mark.slow  # importing the engine takes seconds
@pytest.mark.filterwarnings("ignore")
def test_sizes_are_told_apart_where_the_engine_pads_them_to_others() -> None:
    padding = pytest.importorskip("transformers.generation.continuous_batching.utils")
    random = np.random.default_rng(2)
    for _ in range(200):
        decodes, chunk, before = random.integers(0, [65, 448, 3000]).tolist()
        cached = decodes * int(random.integers(1, 300))
        pairs = chunk * (before + chunk / 2)
        has_chunk = chunk > 0
        step = StepRecord(decodes, cached + decodes, has_chunk, chunk, pairs, 0.01)
        padded = (
            padding.pad_to_interval(decodes + chunk, GRAPHS["q_padding_interval_size"], 10**6),
            padding.pad_to_interval(
                cached + before * has_chunk, GRAPHS["kv_padding_interval_size"], 10**6
            ),
        )
        tokens, past = _size(step)
        if decodes + chunk:
            assert (64 * tokens, 2048 * past) == padded
