"""Arrivals in order, and async scheduling on timelines that can be drawn on paper."""

from math import inf

import numpy as np
from hypothesis import given, strategies as st

from scheduler_adapters.policy import load_policy
from scheduler_adapters.simulator.engine.arrivals import Arrivals
from scheduler_adapters.simulator.engine.request_state import RequestState
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.views import RequestView
from scheduler_adapters.workload.requests import make_requests

ONE_SECOND_STEPS = AffineLatency(base_s=1.0)


def run(kind, requests, **limits):
    limits = {"kv_blocks": 1000, "watermark_fraction": 0.0, "max_tokens": None} | limits
    instance = Instance(latency=limits.pop("latency", ONE_SECOND_STEPS), **limits)
    return simulate(requests, load_policy("fcfs"), instance, loop="python", kind=kind)


def test_an_arrival_in_a_step_waits_for_the_next_step_but_one():
    requests = make_requests(
        prompt_tokens=[10, 10, 10], output_tokens=[10, 1, 1], arrival_s=[0.0, 1.5, 2.0]
    )
    # Steps end at 1, 2, 3, ...; what arrives in the one from 1 to 2 runs from 3 to 4.
    assert run("plain", requests).first_token_s.tolist() == [1, 3, 3]
    assert run("vllm", requests).first_token_s.tolist() == [1, 4, 4]


def test_an_idle_engine_starts_at_once():
    requests = make_requests(prompt_tokens=[10, 10], output_tokens=[2, 2], arrival_s=[0.5, 100.25])
    assert run("vllm", requests).first_token_s.tolist() == [1.5, 101.25]


@given(
    lengths=st.lists(
        st.tuples(st.integers(1, 80), st.integers(1, 40), st.floats(0, 30)), min_size=1, max_size=12
    ),
    kv_blocks=st.integers(8, 30),
    max_tokens=st.sampled_from([None, 16, 20, 50]),
)
def test_every_request_is_served_whole_and_in_order(lengths, kv_blocks, max_tokens):
    prompt, output, arrival_s = zip(*sorted(lengths, key=lambda row: row[2]), strict=True)
    requests = make_requests(prompt_tokens=prompt, output_tokens=output, arrival_s=arrival_s)
    timeline = run("vllm", requests, kv_blocks=kv_blocks, max_tokens=max_tokens)
    served = ~timeline.rejected
    assert np.isfinite(timeline.finished_s[served]).all()
    counts = np.zeros(len(requests), dtype=np.int64)
    np.add.at(counts, timeline.runs[:, 0], timeline.runs[:, 2] - timeline.runs[:, 1] + 1)
    np.testing.assert_array_equal(counts[served], requests.output_tokens[served])
    assert (timeline.scheduled_s >= requests.arrival_s - 1e-12)[served].all()
    assert (timeline.first_token_s > timeline.scheduled_s)[served].all()


@given(st.lists(st.tuples(st.integers(1, 80), st.integers(1, 40)), min_size=1, max_size=12))
def test_a_burst_without_shortage_is_served_as_by_a_plain_engine(lengths):
    prompt, output = zip(*lengths, strict=True)
    requests = make_requests(prompt_tokens=prompt, output_tokens=output)
    plain, ahead = run("plain", requests), run("vllm", requests)
    np.testing.assert_array_equal(plain.finished_s, ahead.finished_s)


def test_requests_are_taken_in_order_of_time_then_row():
    arrivals = Arrivals(async_scheduling=False)
    states = [
        RequestState(RequestView(str(row), row, at_s, 8), 1, 0)
        for row, at_s in enumerate([5.0, 1.0, 5.0, 3.0])
    ]
    arrivals.add(states)
    assert arrivals.next_s == 1.0
    arrivals.remove(states[1])
    assert [state.row for state in arrivals.take(5.0)] == [3, 0, 2]
    assert (arrivals.next_s, arrivals.take(9.0)) == (inf, [])
