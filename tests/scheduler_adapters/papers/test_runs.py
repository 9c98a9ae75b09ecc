"""Runs of a paper: settings, means over seeds, and one simulation for each setting and seed."""

import logging
from pathlib import Path

from scheduler_adapters.papers.runs import Experiment, ReproduceConfig, recorded, seed_values
from scheduler_adapters.workload.data_folder import ENVIRONMENT


class Doubled(Experiment):
    """Twice the setting, and the seed more."""

    calls = 0

    def measure(self, setting: float, *, seed: int) -> dict[str, float]:
        self.calls += 1
        return {"found": 2 * setting + seed}


def test_a_setting_is_simulated_once_for_each_seed():
    experiment = Doubled(ReproduceConfig(paper="rad", seeds=3), first_seed=10)
    assert experiment.mean("found", 4) == 19
    assert experiment.values("found", 4).tolist() == [18, 19, 20]
    assert experiment.values("found", 4, seeds=[10]).tolist() == [18]
    assert experiment.calls == 3


def test_values_of_seeds_print_their_mean_with_its_interval():
    values = seed_values([0.1, 0.2, 0.3])
    assert f"{values:+.0%}" == "+20% [-5%, +45%]"
    assert f"{values:.2f s}" == "0.20 s [-0.05, 0.45]"
    assert f"{100 * seed_values([0.25]):.1f%}" == "25.0% [25.0, 25.0]"
    assert f"{values.mean():.1f}" == "0.2"


def test_quick_papers_have_more_seeds_unless_a_number_is_given():
    default = {name: ReproduceConfig(paper=name).num_seeds for name in ("pars", "slai", "rad")}
    assert default == {"pars": 5, "slai": 2, "rad": 2}
    assert ReproduceConfig(paper="pascal").num_seeds == ReproduceConfig(paper="phasor").num_seeds
    assert ReproduceConfig(paper="pars", seeds=1).num_seeds == 1


def test_without_the_data_folder_a_file_is_missed_aloud(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path))
    (tmp_path / "a.txt").write_text("lengths")
    assert recorded("a.txt", Path.read_text) == "lengths"
    with caplog.at_level(logging.WARNING):
        assert recorded("b.txt", Path.read_text) is None
    assert "lengths are drawn" in caplog.text
