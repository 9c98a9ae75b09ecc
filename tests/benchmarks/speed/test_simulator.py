"""`bench`: every figure that is promised, measured."""

import json

import pytest

from benchmarks.__main__ import main
from benchmarks.speed import simulator


@pytest.mark.slow
def test_bench_prints_every_figure(capsys):
    assert main(["simulator", "--repeats=1", "--million=false", "--clusters=false", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    names = {"sarathi_r1", "sarathi_r8", "pars", "slai_dynamic", "round_robin", "pascal"}
    assert figures["requests"] == "synthetic"
    assert names | {"cluster_r8"} < set(figures)
    assert names == set(figures["python_path"])
    assert all(figures["python_path"][name] > 1000 for name in names)
    for name in ("sarathi_r1", "slai_dynamic"):
        assert figures[name] > 2 * figures["python_path"][name]


def test_every_size_of_run_has_its_place_in_the_json(capsys, monkeypatch):
    """The figures themselves are measured by the slow tests."""
    usage = {"cpu_s": 1.5, "rss_gib": 0.25}
    runs = []
    monkeypatch.setattr(simulator, "per_cpu_s", lambda run, count, repeats: count)
    monkeypatch.setattr(simulator, "alone", lambda run, *sizes: runs.append(sizes) or usage)
    assert main(["simulator", "--large", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    for name in ("million", "pascal_8x100k", "cluster_64x1m"):
        assert figures[name] == usage
    assert runs == [(), (8, 100_000), (64, 1_000_000)]
    assert figures["cluster_r8"] == 10_000


@pytest.mark.slow
def test_the_large_run_is_measured_with_its_output():
    assert set(simulator.run_million(count=2000, replicas=2)) == {"cpu_s", "rss_gib"}


def test_a_cluster_is_measured_with_its_memory():
    figures = simulator.run_pascal(2, 30)
    assert set(figures) == {"cpu_s", "rss_gib"}
    assert min(figures.values()) > 0


def test_chat_requests_have_the_means_they_claim():
    requests = simulator.chat_requests(20_000, 50.0)
    assert requests.prompt_tokens.mean() == pytest.approx(1150, rel=0.1)
    assert requests.output_tokens.mean() == pytest.approx(215, rel=0.1)


def test_all_numbers_of_the_table_are_written_alike():
    figures = {"requests": "golden", "pars": 360608, "python_path": {"pars": 37506}}
    lines = simulator.format_figures(figures).splitlines()
    assert [line.split()[1] for line in lines] == ["golden", "360,608", "37,506"]
    assert len({len(line) for line in lines}) == 1
