"""`advise`: from a log to a page, a JSON object and the commands to go on with."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from scheduler_adapters.__main__ import main
from scheduler_adapters.commands.advise import scored_log

COUNT = 240


def write_log(path: Path, rate_per_s: float = 8.0, **columns: Any) -> Path:
    """Chats at a rate; long answers to essays."""
    random = np.random.default_rng(0)
    is_long = random.random(COUNT) < 0.2
    table = pd.DataFrame(
        {
            "prompt": [f"{'essay' if x else 'word'} number {n}" for n, x in enumerate(is_long)],
            "prompt_tokens": 20,
            "output_tokens": np.where(is_long, 600, random.integers(5, 60, COUNT)),
            "arrival_s": np.cumsum(random.exponential(1 / rate_per_s, COUNT)),
        }
        | columns
    )
    table.to_parquet(path)
    return path


def advise(log: Path, out: Path, *more: str) -> int:
    limits = ["--max-num-seqs", "4", "--draws", "10", "--instances", "1"]
    return main(["advise", "--log", str(log), "--out", str(out), *limits, *more])


def test_an_assumed_ranker_trains_nothing_and_fills_the_page(tmp_path, capsys):
    log = write_log(tmp_path / "log.parquet", reasoning_tokens=np.full(COUNT, 3))
    assert advise(log, tmp_path / "out", "--tau-b", "0.7", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "out" / "advise.json").read_text())
    assert found["answer"] == "yes"
    assert found["recommended"] in ("pars", "uniboost-learned", "srpt")  # no rule knows the answers
    assert found["gain_fraction"]["oracle"]["value"] > found["gain_fraction"]["pars"]["value"] > 0.1
    assert {row["policy"] for row in found["latencies"]} == {
        "fcfs", "shortest-prompt", "uniboost", "slai", "pascal", "pars", "uniboost-learned",
        "srpt", "oracle",
    }  # fmt: skip
    assert {row["load"] for row in found["latencies"]} == {0.7, 1.0, 1.3}
    assert found["carried"]["pars"]["load"]["value"] > found["carried"]["fcfs"]["load"]["value"]
    page = (tmp_path / "out" / "report.html").read_text()
    for said in ("Yes: ", "1 instance carries", "tau_b", ">Next<"):
        assert said in page
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "advise.json", "latencies.csv", "latency_by_load.csv", "latency_by_load.svg", "report.html",
    }  # fmt: skip


def test_without_a_queue_the_answer_is_no_and_nothing_is_trained(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(scored_log, "_train", None)  # a call would fail
    models = ["org/Llama-3-8B-Instruct", "gpt-4o"] * (COUNT // 2)
    log = write_log(tmp_path / "log.parquet", rate_per_s=0.01, model=models)
    assert advise(log, tmp_path / "out") == 0
    captured = capsys.readouterr()
    first, *_ = captured.out.splitlines()
    assert first == "Assumed, as it was not given: --model llama-3-8b, --gpu a100-80g."
    assert "No: there is no queue to reorder. Requests wait for 0.0% of their time" in captured.out
    assert "Keep the scheduler that you have" in captured.out
    assert "next:" not in captured.out
    assert "The log names the model gpt-4o, and the simulated one is llama-3-8b" in captured.out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "advise.json", "latencies.csv", "latency_by_load.csv", "latency_by_load.svg", "report.html",
    }  # fmt: skip
    assert advise(log, tmp_path / "out", "--gpu", "h100") == 0
    assert capsys.readouterr().out.startswith("Assumed, as it was not given: --model llama-3-8b.")


def test_a_worse_tail_is_named_and_the_next_command_serves(tmp_path, tiny_bundle, capsys):
    log, bundle = write_log(tmp_path / "log.parquet", rate_per_s=2.0), str(tiny_bundle.path)
    given = ["--bundle", bundle, "--json"]
    assert advise(log, tmp_path / "out", *given, "--tolerance", "0.05") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["answer"] == "unclear"
    name, (before, after, growth) = max(found["price"].items(), key=lambda tail: tail[1][2])
    assert growth == after / before - 1 > 0.05
    assert f"{name} goes from {before:.3g} to {after:.3g} s" in found["reason"]
    assert "of the requests end later" in found["reason"]
    assert "worse by more than 5% (--tolerance)" in found["reason"]
    assert advise(log, tmp_path / "out", *given, "--tolerance", "9") == 0
    patient = json.loads(capsys.readouterr().out)
    assert patient["answer"] == "yes"
    for one in (found, patient):
        own = "" if one["recommended"] == "pars" else f" --policy {one['recommended']}"
        (command,) = one["commands"]
        assert command.endswith(f" serve-vllm MODEL --bundle {bundle}{own}")


def test_arrivals_can_be_drawn_for_a_log_without_times(tmp_path, capsys):
    log = write_log(tmp_path / "log.parquet", arrival_s=0.0)
    assert advise(log, tmp_path / "out", "--tau-b", "0.5") == 2
    assert "--rate-per-s" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert advise(log, tmp_path / "out", "--tau-b", "0.5", "--rate-per-s", "8", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert "which are not the log's" in " ".join(found["notes"])
    (row,) = [
        row for row in found["latencies"]
        if (row["policy"], row["load"], row["metric"]) == ("fcfs", 1.0, "e2e_s.mean")
    ]  # fmt: skip
    assert row["low"] < row["value"] < row["high"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpu", "abacus"], "gpu is 'abacus'; use one of"),
        (["--model", "eliza"], "eliza"),
        (["--tau-b", "2"], "tau_b is 2"),
        (["--tau-b", "0.5", "--bundle", "b"], "use one of them"),
        (["--endpoint", "http://127.0.0.1:9", "--fit", "steps.csv"], "use one of them"),
        (["--draws", "3"], "draws is 3"),
        (["--slo", '{"speed.p50": 1}'], "speed.p50"),
        (["--bundle", "nowhere"], "nowhere"),
        (["--prompt-column", "question"], "question"),
    ],
)
def test_what_cannot_be_is_one_line_and_nothing_is_written(words, said, tmp_path, capsys):
    log = write_log(tmp_path / "log.parquet")
    assert main(["advise", "--log", str(log), "--out", str(tmp_path / "out"), *words]) == 2
    (line,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith("error:")]
    assert said in line
    assert not (tmp_path / "out").exists()


def test_too_short_a_log_is_refused(tmp_path, capsys):
    log = tmp_path / "log.parquet"
    pd.read_parquet(write_log(log)).head(5).to_parquet(log)
    assert advise(log, tmp_path / "out", "--tau-b", "0.5") == 2
    assert "only 5 answered requests" in capsys.readouterr().err
