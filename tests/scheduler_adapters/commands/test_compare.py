"""`compare`: one table over policies and rates, and files that stand alone."""

import json

import pandas as pd

from scheduler_adapters.__main__ import main
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.simulator.cluster import cluster_config

SMALL = ("--num_requests=60", "--max_num_seqs=8")


def test_a_policy_that_fails_is_named_and_the_others_are_kept(tmp_path, capsys, monkeypatch):
    def rank(self, request, load):
        raise KeyError("score")

    monkeypatch.setattr(Sarathi, "rank", rank)
    policies = "--policies=[fcfs, sarathi, oracle]"
    assert main(["compare", *SMALL, policies, f"--out={tmp_path}", "--json"]) == 2
    captured = capsys.readouterr()
    assert [run["policy"] for run in json.loads(captured.out)["runs"]] == ["fcfs"]
    assert "left out sarathi, oracle" in captured.err
    assert "error: policy 'sarathi' failed to rank" in captured.err
    assert (tmp_path / "report.html").exists()


def test_every_run_has_its_row_and_each_figure_its_table(tmp_path, capsys):
    out = tmp_path / "runs"
    arguments = [*SMALL, "--rates_per_s=[2, 8]", "--policies=[fcfs, slai]", f"--out={out}"]
    more = ['--slo={"ttft_s.p90": 3}', "--seeds=1", "--tolerance=0.5"]
    assert main(["compare", *arguments, *more]) == 0
    assert "capacity, requests/s" in capsys.readouterr().out
    runs = pd.read_csv(out / "summary.csv")[["policy", "rate_per_s"]].to_numpy().tolist()
    assert runs == [["fcfs", 2], ["slai", 2], ["fcfs", 8], ["slai", 8]]
    assert len(pd.read_parquet(out / "slai_q8.parquet")) == 60
    figures = {path.stem for path in out.glob("*.svg")}
    assert figures == {"latency_by_rate", "latencies", "capacity"}
    page = (out / "report.html").read_text()
    assert page.count("<figure>") == len(figures)
    assert page.count("<svg") == 3 + 3 + 1  # panels, told apart on a narrow screen
    assert 'src="http' not in page
    for figure in figures:
        assert set(pd.read_csv(out / f"{figure}.csv")["policy"]) == {"fcfs", "slai"}
    for said in ("llama-3-8b@a100-80g", "Poisson arrivals", ", 60 requests", "seed 0"):
        assert said in page


CLUSTER = ("--instances=2", "--rate-per-s=20", "--policies=[fcfs]")


def test_a_cluster_is_the_one_that_simulate_runs(capsys):
    options = [*SMALL, "--instances=2", "--rate-per-s=20", "--placement=distserve"]
    options += ["--prefill-instances=1", "--fabric-gb-per-s=5", "--json"]
    assert main(["simulate", "--policy=fcfs", *options]) == 0
    simulated = json.loads(capsys.readouterr().out)
    assert main(["compare", "--policies=[fcfs]", *options]) == 0
    compared = json.loads(capsys.readouterr().out)
    (run,) = compared["runs"]
    assert (run["policy"], run["placement"]) == ("fcfs", "distserve")
    assert compared["instances"] == simulated["instances"] == 2
    for metric in ("ttft", "tpot", "e2e"):
        assert run[f"{metric}_p99_s"] == simulated[f"{metric}_s"]["p99"]


def test_placements_are_named_in_tables_sentences_and_figures(tmp_path, capsys):
    own = {"pascal": {"migration": "never"}}
    options = [f"--placement-settings={json.dumps(own)}", "--placements=[random, pascal]"]
    options += ['--slo={"ttft_s.p90": 3}', "--seeds=2", "--tolerance=0.5", f"--out={tmp_path}"]
    assert main(["compare", *SMALL, *CLUSTER, *options]) == 0
    out = capsys.readouterr().out
    assert "fcfs with pascal against fcfs with random at 20 req/s: mean E2E" in out
    assert "capacity, requests/s of an instance" in out
    assert "2 instances under random, pascal; " in out
    systems = ["fcfs with random", "fcfs with pascal"]
    assert pd.read_csv(tmp_path / "summary.csv")["placement"].tolist() == ["random", "pascal"]
    loads = pd.read_csv(tmp_path / "capacity.csv")
    assert loads["policy"].tolist() == systems
    assert loads["searches"].tolist() == [2, 2]
    assert set(pd.read_csv(tmp_path / "latencies.csv")["policy"]) == set(systems)
    assert len(pd.read_parquet(tmp_path / "fcfs_pascal_q20.parquet")) == 60
    assert "2 instances under random, pascal; " in (tmp_path / "report.html").read_text()


def test_an_interrupted_comparison_keeps_what_is_finished(capsys, monkeypatch):
    run_cluster, served = cluster_config.simulate_cluster, []

    def interrupted(requests, placement, *rest, **more):
        served.append(placement.name)
        if len(served) > 1:
            raise KeyboardInterrupt
        return run_cluster(requests, placement, *rest, **more)

    monkeypatch.setattr(cluster_config, "simulate_cluster", interrupted)
    more = ["--placements=[random, least-kv]", "--json"]
    assert main(["compare", *SMALL, *CLUSTER, *more]) == 130
    captured = capsys.readouterr()
    assert [run["placement"] for run in json.loads(captured.out)["runs"]] == ["random"]
    assert "left out fcfs with least-kv at 20 requests/s" in captured.err


def test_requests_that_reason_add_what_their_readers_saw(tmp_path, capsys):
    arguments = [*SMALL, "--lengths=arena-hard", "--rate-per-s=20", "--policies=[fcfs, pascal]"]
    assert main(["compare", *arguments, f"--out={tmp_path}", "--json"]) == 0
    for run in json.loads(capsys.readouterr().out)["runs"]:
        assert 0 <= run["qoe_violations"] <= 1
        assert run["blocking_p99_s"] >= 0
        assert run["first_answer_tail"]
    assert "<th>QoE &lt; .95</th>" in (tmp_path / "report.html").read_text()
    assert "qoe_violations" in pd.read_csv(tmp_path / "summary.csv")


def test_a_policy_may_have_scores_of_its_own(tiny_bundle, tmp_path, capsys):
    words = ["yes", "short poem", "long essay"] * 20
    lengths = [{"yes": 2, "short poem": 40, "long essay": 400}[word] for word in words]
    trace = tmp_path / "trace.jsonl"
    table = pd.DataFrame({"prompt": words, "output_tokens": lengths, "prompt_tokens": 5})
    table.to_json(trace, orient="records", lines=True)
    given = [*SMALL, f"--trace={trace}", "--scores=constant", "--policies=[pars, small, oracle]"]
    settings = {"small": {"policy": "pars", "scores": f"bundle:{tiny_bundle.path}"}}
    assert main(["compare", *given, f"--settings={json.dumps(settings)}"]) == 0
    assert f"scores of small: bundle:{tiny_bundle.path}" in capsys.readouterr().out
    assert main(["compare", *given, f"--settings={json.dumps(settings)}", "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    constant_s, small_s, oracle_s = (run["normalized_latency_mean_s"] for run in runs)
    assert constant_s > 1.2 * small_s > oracle_s
    for wrong in ("bundle:" + str(tmp_path), "nonsense"):
        settings["small"]["scores"] = wrong
        assert main(["compare", *given, f"--settings={json.dumps(settings)}"]) == 2
        assert capsys.readouterr().out == ""
