"""Runs of a paper: settings, means over seeds, and one simulation for each setting and seed."""

import logging
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.papers.runs import Experiment, KeptRuns, ReproduceConfig, SeedValues, kept, recorded
from lengthwise.errors import DataError
from scheduler_adapters.workload.data_folder import ENVIRONMENT


class Doubled(Experiment):
    """Twice the setting, and the seed more."""

    calls = 0

    @kept
    def run(self, system: float, *, rate: float = 0, seed: int) -> dict[str, float]:
        self.calls += 1
        return {"found": 2 * system + rate + seed}


def test_a_setting_is_simulated_once_for_each_seed():
    experiment = Doubled(ReproduceConfig(paper="rad", seeds=3))
    assert experiment.mean("found", 4) == 309
    assert experiment.values("found", 4).tolist() == [308, 309, 310]
    assert experiment.values("found", 4, most_seeds=1).tolist() == [308]
    assert experiment.calls == 3


def test_an_interrupted_command_continues_with_runs_of_its_file(tmp_path):
    config = ReproduceConfig(paper="rad", seeds=3, resume=tmp_path / "runs")
    before = Doubled(config)
    assert before.run(4, seed=300) == {"found": 308}
    after = Doubled(config)
    assert after.mean("found", 4) == 309
    assert (before.calls, after.calls) == (1, 2)
    with pytest.raises(DataError, match=r"its first line is not .*; use a new file by --resume"):
        Doubled(replace(config, scale=0.5))


def test_systems_are_compared_by_seed_and_rate():
    experiment = Doubled(ReproduceConfig(paper="rad", seeds=2))
    experiment.seeds = range(2)
    pair = experiment.pair("found", 1.0, 4.0, rates=(0, 2))
    assert (pair["theirs"].tolist(), pair["ours"].tolist()) == ([3, 4], [9, 10])
    np.testing.assert_allclose(pair["ratio"], [(8 / 2 + 10 / 4) / 2, (9 / 3 + 11 / 5) / 2])
    np.testing.assert_allclose(pair["change"], pair["ratio"] - 1)
    assert pair["value"].average == pair["shift"].average == pytest.approx(6 / 3.5)
    assert pair["times"] == pytest.approx(3.5 / 9.5)
    assert experiment.level("found", 1.0, seeds=(5, 7))["value"].tolist() == [7, 8]
    assert experiment.level("found", 1.0, most_seeds=1)["value"].tolist() == [2]


def test_a_comparison_with_0_has_no_ratio_and_order_needs_growth():
    experiment = Doubled(ReproduceConfig(paper="rad", seeds=1))
    experiment.seeds = range(1)
    assert experiment.pair("found", 1.0, 0.0)["times"] == np.inf
    assert np.isnan(experiment.pair("found", 0.0, 1.0)["value"])
    found = experiment.in_order("found", [2.0, 3.0, 5.0])
    assert (found["means"], found["value"]) == ([4, 6, 10], 4 / 6)
    assert [change.tolist() for change in found["changes"]] == [[4 / 6 - 1], [4 / 10 - 1]]
    assert experiment.in_order("found", [2.0, 5.0, 5.0])["value"] == 1


def test_values_of_seeds_print_their_mean_with_its_interval():
    values = SeedValues.of([0.1, 0.2, 0.3])
    assert f"{values:+.0%}" == "+20% [-5%, +45%]"
    assert f"{values:.2f s}" == "0.20 s [-0.05, 0.45]"
    assert f"{SeedValues.of([0.25]):.1f%}" == "25.0% [25.0, 25.0]"
    assert f"{values.mean():.1f}" == "0.2"


def test_without_the_data_folder_a_file_is_missed_aloud(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path))
    (tmp_path / "a.txt").write_text("lengths")
    assert recorded("a.txt", Path.read_text) == "lengths"
    with caplog.at_level(logging.WARNING):
        assert recorded("b.txt", Path.read_text) is None
    assert "lengths are drawn" in caplog.text


FIRST, SECOND = '["measure", ["FCFS"], {"seed": 0}]', '["measure", ["FCFS"], {"seed": 1}]'
FOUND = {FIRST: {"ttft_s": 0.1, "blocked": float("inf")}, SECOND: [1, 2]}


@pytest.fixture
def path(tmp_path):
    runs = KeptRuns(tmp_path / "runs", {"seeds": 3})
    for run, result in FOUND.items():
        runs.keep(run, result)
    return runs.path


@pytest.mark.parametrize("cut", [0, 1, 2, 9])
def test_results_are_read_as_kept_but_for_a_damaged_last_line(path, cut):
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - cut])
    runs = KeptRuns(path, {"seeds": 3})
    assert runs.found == ({FIRST: FOUND[FIRST]} if cut else FOUND)
    if cut:
        runs.keep(SECOND, FOUND[SECOND])
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (pickle.dumps(FOUND), "its first line is not"),
        (b'{"seeds": 5}\n', 'its first line is not {"seeds": 3}'),
        (b'{"seeds": 3}\n[]\n[1, 2]\n', "line 2 is damaged"),
        (b'{"seeds": 3}\n\xff\n[1, 2]\n', "line 2 is damaged"),
    ],
)
def test_another_file_is_refused_and_stays_as_it_is(path, content, complaint):
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"no kept runs \({complaint}.*; use a new file"):
        KeptRuns(path, {"seeds": 3})
    assert path.read_bytes() == content
