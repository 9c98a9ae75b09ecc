"""Observers of a run: the load over time, by hand and against the run, and the progress."""

from lengthwise.progress import Progress
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.observers import LoadRecorder, ProgressLine
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.workload.requests import make_requests


def test_the_load_of_each_step_is_that_while_it_ran():
    """One seat: the second request waits for the three steps of the first."""
    requests = make_requests(prompt_tokens=[16, 40], output_tokens=[3, 1])
    latency = AffineLatency(base_s=1.0)
    instance = Instance(latency=latency, kv_blocks=9, max_num_seqs=1, watermark_fraction=0.0)
    load = LoadRecorder()
    simulate(requests, FCFS(), instance, observers=[load])
    curve = load.curve()
    assert curve.end_s.tolist() == [1, 2, 3, 4]
    assert curve.duration_s.tolist() == [1, 1, 1, 1]
    assert curve.used_blocks.tolist() == [1, 2, 2, 3]
    assert curve.num_waiting.tolist() == [1, 1, 1, 0]
    assert curve.num_resident.tolist() == [1, 1, 1, 1]


def test_progress_counts_the_finished_and_looks_at_every_step(monkeypatch):
    looks: list[tuple[float, int, int]] = []
    progress = Progress(1)
    monkeypatch.setattr(progress, "look", lambda *what: looks.append(what))
    requests = make_requests(prompt_tokens=[16, 16], output_tokens=[1, 3])
    instance = Instance(latency=AffineLatency(base_s=1.0), kv_blocks=9)
    simulate(requests, FCFS(), instance, observers=[ProgressLine(progress, 2)])
    assert looks == [(1.0, 0, 2), (2.0, 1, 2), (3.0, 1, 2)]
