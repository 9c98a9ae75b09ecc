"""Large simulated clusters, at a small size."""

from scheduler_adapters.benchmarks.clusters import run_pascal


def test_a_cluster_is_measured_with_its_memory(capsys):
    figures = run_pascal(2, 30)
    assert set(figures) == {"cpu_s", "rss_gib"}
    assert min(figures.values()) > 0
    assert capsys.readouterr().err == ""  # the progress line is for terminals
