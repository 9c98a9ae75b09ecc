"""`bench`: every figure that is promised, measured."""

from __future__ import annotations

import json

import pytest

from scheduler_adapters.__main__ import main
from scheduler_adapters.commands.bench.simulator import chat_requests, format_figures, run_million


@pytest.mark.slow
def test_bench_prints_every_figure(capsys, monkeypatch):
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)
    assert main(["bench", "--repeats=1", "--million=false", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    names = {"sarathi_r1", "sarathi_r8", "pars", "slai_dynamic", "round_robin"}
    assert figures["requests"] == "synthetic"
    assert names < set(figures)
    assert names == set(figures["python_path"])
    assert all(figures["python_path"][name] > 1000 for name in names)
    for name in ("sarathi_r1", "slai_dynamic"):
        assert figures[name] > 2 * figures["python_path"][name]


@pytest.mark.slow
def test_the_large_run_is_measured_with_its_output():
    assert set(run_million(count=2000, replicas=2)) == {"cpu_s", "rss_gib"}


def test_chat_requests_have_the_means_they_claim():
    requests = chat_requests(20_000, 50.0)
    assert requests.prompt_tokens.mean() == pytest.approx(1150, rel=0.1)
    assert requests.output_tokens.mean() == pytest.approx(215, rel=0.1)


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [("--repeats=0", "repeats is 0"), ("--golden=nosuch", "golden is nosuch, which is no folder")],
)
def test_what_cannot_be_measured_is_refused(argument, complaint, capsys):
    assert main(["bench", argument]) == 2
    assert complaint in capsys.readouterr().err


def test_all_numbers_of_the_table_are_written_alike():
    figures = {"requests": "golden", "pars": 360608, "python_path": {"pars": 37506}}
    lines = format_figures(figures).splitlines()
    assert [line.split()[1] for line in lines] == ["golden", "360,608", "37,506"]
    assert len({len(line) for line in lines}) == 1
