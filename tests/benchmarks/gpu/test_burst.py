"""The plan of the bursts, and one of them through vLLM's CPU build."""

import json
from types import SimpleNamespace

import pandas as pd
import pytest

from benchmarks.gpu import burst
from benchmarks.gpu.burst import COLUMNS, StepTimes, summary


@pytest.fixture
def requests_file(tmp_path):
    rows = {"prompt_tokens": [5, 9, 4], "output_tokens": [6, 3, 8], "score": [2.0, 1.0, 3.0]}
    pd.DataFrame(rows).to_csv(tmp_path / "requests.csv", index=False)
    return tmp_path / "requests.csv"


def test_the_plan_has_each_order_once_per_seed_and_shuffled():
    bursts = burst.plan(3)
    assert [seed for seed, _ in bursts] == [*4 * [0], *4 * [1], *4 * [2]]
    by_seed = [[name for of, name in bursts if of == seed] for seed in range(3)]
    assert all(sorted(names) == sorted(burst.ORDERS) for names in by_seed)
    assert by_seed[0] != by_seed[1]


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
def test_vllm_serves_every_burst_with_its_steps(requests_file, capsys):
    pytest.importorskip("vllm")
    steps = requests_file.with_name("steps.csv")
    options = ["--shape=tiny", "--seeds=1", "--kv-cache-mib=64", f"--steps={steps}"]
    burst.main(["serve", str(requests_file), "--max-num-seqs=2", *options])
    lines = capsys.readouterr().out.splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    assert {one["order"] for one in found} == set(burst.ORDERS)
    written = pd.read_csv(steps)
    for one in found:
        rows = written[written.order == one["order"]]
        assert len(rows) == one["all"]["steps"]
        prompts = rows.tokens.sum() - 17 + 3  # the last token of a prefill makes the first answer
        assert prompts == 18


class Scheduler:
    """Two requests, a prefill of 9 tokens and then one token each per step."""

    def __init__(self):
        self.requests = {name: SimpleNamespace(num_computed_tokens=0) for name in "ab"}
        self.waiting = ["c"]

    def schedule(self):
        tokens = 1 if self.requests["a"].num_computed_tokens else 9
        for request in self.requests.values():
            request.num_computed_tokens += tokens
        return SimpleNamespace(num_scheduled_tokens=dict.fromkeys(self.requests, tokens))

    def update_from_output(self, plan):
        return plan


class Engine:
    def __init__(self):
        self.engine_core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=Scheduler()))

    def step(self):
        scheduler = self.engine_core.engine_core.scheduler
        return scheduler.update_from_output(scheduler.schedule())


@pytest.fixture
def steps():
    engine, times = Engine(), StepTimes()
    with times.watching(engine):
        for _ in range(3):
            engine.step()
    engine.step()
    assert (
        not {"schedule", "update_from_output"}
        & vars(engine.engine_core.engine_core.scheduler).keys()
    )
    return times.table()


def test_each_step_has_its_batch_and_its_times(steps):
    assert tuple(steps.columns) == COLUMNS
    sizes = steps[["batch", "tokens", "context", "longest", "waiting"]]
    assert sizes.to_numpy().tolist() == [[2, 18, 18, 9, 1], [2, 2, 20, 10, 1], [2, 2, 22, 11, 1]]
    assert (steps.schedule_s > 0).all()
    assert (steps.schedule_s + steps.update_s <= steps.step_s).all()


def test_the_summary_divides_steps_by_kind(steps):
    found = summary(steps)
    counts = {name: part["steps"] for name, part in found.items() if isinstance(part, dict)}
    assert counts == {"all": 3, "decode": 2, "prefill": 1}
    assert found["mean_context"] == 20.0
