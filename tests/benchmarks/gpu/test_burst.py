"""The plan of the bursts, and one of them through vLLM's CPU build."""

import json

import pandas as pd
import pytest

from benchmarks.gpu import burst


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


def test_requests_are_read_as_one_burst(requests_file):
    read = burst.read_requests(requests_file, 2)
    assert read.output_tokens.tolist() == [6, 3]
    assert read.score.tolist() == [2.0, 1.0]
    assert not read.arrival_s.any()


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
