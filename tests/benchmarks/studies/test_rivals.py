"""The study of rivals: its data, its verdicts, and its files from small invented workloads."""

import json

import numpy as np
import pandas as pd
import pytest

from benchmarks.__main__ import main
from benchmarks.studies import rivals


def test_hits_are_the_first_blocks_that_an_earlier_prompt_had():
    prompts = [["a", "b"], ["a", "b", "c"], ["b", "a"], ["d", "a"], ["a", "b", "c"]]
    assert rivals.hits_of(prompts) == [0, 1024, 1024, 0, 1536]


def runs_of(**mean_s: list[float]) -> pd.DataFrame:
    names = {name: [10.0, 10.0] for name in rivals.SYSTEMS} | mean_s
    return pd.DataFrame(
        [
            {"policy": name, "load": "burst", "seed": seed, "mean": value}
            for name, values in names.items()
            for seed, value in enumerate(values)
        ]
    )


@pytest.mark.parametrize(
    ("mean_s", "said"),
    [
        ({}, "nothing pays"),
        ({"pars": [9.9, 9.9]}, "nothing pays"),
        ({"srpt": [1.0, 18.0]}, "nothing pays"),  # one seed decides
        ({"uniboost": [8.0, 8.1], "pars": [7.9, 8.0]}, "a rule without learning does as well"),
        ({"uniboost": [8.0, 8.1], "srpt": [7.0, 7.2]}, "learning pays"),
        ({"uniboost": [6.0, 6.1], "srpt": [7.0, 7.2]}, "a rule without learning does as well"),
    ],
)
def test_the_verdict_is_that_of_the_protocol(mean_s, said):
    assert rivals.verdict(runs_of(**mean_s)).startswith(f"{said} (")


def test_the_study_writes_a_table_a_figure_and_every_run(tmp_path, monkeypatch, capsys):
    def invented(workload: str) -> pd.DataFrame:
        random = np.random.default_rng(len(workload))
        prompt = random.integers(10, 3000, 200)
        cached = prompt // 2 * (workload == "agents")
        columns = {"prompt_tokens": prompt, "output_tokens": random.integers(1, 400, 200)}
        return pd.DataFrame(columns | {"cached_tokens": cached})

    monkeypatch.setattr(rivals, "lengths_of", invented)
    monkeypatch.setattr(
        rivals, "WORKLOADS", {name: ("", "", "", 0.5) for name in ("chats", "agents")}
    )
    size = ["--out", str(tmp_path), "--seeds", "2", "--num-requests", "60"]
    assert main(["rivals", *size]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in (*rivals.WORKLOADS, *rivals.SYSTEMS, "burst: "))
    runs = pd.read_csv(tmp_path / "runs.csv")
    assert len(runs) == 2 * len(rivals.LOADS) * 2 * len(rivals.SYSTEMS)
    assert (runs["p50"] <= runs["p99"]).all()
    assert {"report.html", "mean_e2e.svg", "mean_e2e.csv"} <= {
        path.name for path in tmp_path.iterdir()
    }
    assert main(["rivals", *size, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["runs"]) == len(runs)
    assert found["verdicts"].keys() == rivals.WORKLOADS.keys()
    assert main(["rivals", "--seeds", "0"]) == 2


@pytest.mark.data
@pytest.mark.parametrize("workload", rivals.WORKLOADS)
def test_the_data_folder_has_the_lengths_of_every_workload(data_folder, workload):
    requests = rivals.drawn(workload, rivals.lengths_of(workload), 300, 7)
    assert requests.cached_tokens.any() == (workload == "agents")
    assert 0.4 < (requests.client == "0").mean() < 0.7
