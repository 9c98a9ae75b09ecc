"""`compare`: one table over policies and rates, and files that stand alone."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from scheduler_adapters.__main__ import main
from scheduler_adapters.experiments import compare as compare_module
from scheduler_adapters.experiments.workload import gamma_arrivals_s, shock_arrivals_s
from scoring_service.errors import ConfigError

SMALL = ("--num_requests=60", "--max_num_seqs=8")


def test_every_policy_runs_at_every_rate_and_the_files_hold_it(tmp_path, capsys):
    out = tmp_path / "runs"
    arguments = [*SMALL, "--rates_per_s=[2, 8]", "--policies=[fcfs, sarathi]", f"--out={out}"]
    assert main(["compare", *arguments, "--json"]) == 0

    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [(run["policy"], run["rate_per_s"]) for run in printed["runs"]] == [
        ("fcfs", 2.0),
        ("sarathi", 2.0),
        ("fcfs", 8.0),
        ("sarathi", 8.0),
    ]
    assert len(pd.read_csv(out / "summary.csv")) == 4
    assert len(pd.read_parquet(out / "sarathi_q8.parquet")) == 60
    page = (out / "report.html").read_text()
    assert "<svg" in page
    assert 'src="http' not in page


def test_the_order_of_the_papers_holds_on_a_burst(capsys):
    main(["compare", "--num_requests=400", "--max_num_seqs=16", "--json"])
    runs = json.loads(capsys.readouterr().out)["runs"]
    latency_s = {run["policy"]: run["normalized_latency_mean_s"] for run in runs}
    assert latency_s["oracle"] < latency_s["pars"] < latency_s["fcfs"]


def test_an_interrupted_comparison_keeps_what_is_finished(tmp_path, capsys, monkeypatch):
    simulate = compare_module.simulate

    def interrupted(requests, policy, instance):
        if policy.name != "fcfs":
            raise KeyboardInterrupt
        return simulate(requests, policy, instance)

    monkeypatch.setattr(compare_module, "simulate", interrupted)
    assert main(["compare", *SMALL, f"--out={tmp_path}", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 1
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ("--policies=[]", "policies is empty"),
        ("--policies=[fcfs, best]", "no policy named 'best'"),
        ("--rates_per_s=[0]", "rate_per_s is 0"),
    ],
)
def test_bad_input_is_one_line(argument, complaint, capsys):
    assert main(["compare", *SMALL, argument]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert len(error.splitlines()) == 1


def test_gamma_gaps_have_the_rate_and_the_variation():
    gaps_s = np.diff(gamma_arrivals_s(40_000, rate_per_s=5.0, cv=3.0, seed=1))
    assert gaps_s.mean() == pytest.approx(0.2, rel=0.05)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(3.0, rel=0.05)
    with pytest.raises(ConfigError, match="cv is 0"):
        gamma_arrivals_s(10, rate_per_s=1.0, cv=0.0, seed=0)


def test_a_shock_is_faster_in_the_middle_and_nowhere_else():
    gaps_s = np.diff(shock_arrivals_s(50_000, rate_per_s=5.0, factor=5.0, seed=1))
    assert gaps_s[20_000:30_000].mean() == pytest.approx(0.04, rel=0.05)
    assert gaps_s[:20_000].mean() == pytest.approx(0.2, rel=0.05)
    with pytest.raises(ConfigError, match="factor"):
        shock_arrivals_s(10, rate_per_s=1.0, factor=0.0, seed=0)
