"""`list`: every run and version with its figures."""

import pytest

from tests.training.commands.conftest import champion
from training.__main__ import main


def test_list_shows_every_run_with_the_figures_of_its_bundle(make_bundle, register, training):
    bundle = make_bundle(1)
    (run_id,) = register("listed", bundle)
    _, found = training("list")
    (run,) = [run for run in found["runs"] if run["run_id"] == run_id]
    assert (run["tau_b"], run["tau_b_ci"]) == (0.5, [0.4, 0.6])
    assert run["revision"] == bundle.manifest.revision
    (failed,) = [run for run in found["runs"] if run["name"] == "unfinished"]
    assert (failed["status"], failed["tau_b"]) == ("FAILED", None)
    assert champion(training, "listed") is None


def test_without_json_the_commands_tell_it_in_words(register, mlruns, data, tmp_path, capsys):
    (run,) = register("in-words", 0)
    for arguments, words in (
        (["promote", "in-words", "1"], "in-words version 1 is the champion: the first champion"),
        (["list"], "* in-words"),
        (["export", "--run", run, "--out", str(tmp_path / "bundle")], "bundle: tiny revision"),
        (
            ["evaluate", "--bundle", "in-words/1", "--data", str(data)],
            "training             not checked",
        ),
    ):
        assert main([*arguments, "--mlruns-dir", str(mlruns)]) == 0
        assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["promote", "nobody", "1"], "no model 'nobody'"),
        (["evaluate", "--bundle", "nobody@champion"], "no model 'nobody'"),
        (["evaluate", "--bundle", "no/folder"], "is not a model bundle"),
        (["export", "--run", "0" * 32, "--out", "x"], "has no run"),
    ],
)
def test_what_is_not_in_the_store_is_one_line(refused, data, arguments, message):
    extra = ["--data", data] if arguments[0] == "evaluate" else []
    assert message in refused(*arguments, *extra)


def test_a_folder_without_a_store_is_left_alone(tmp_path, capsys):
    assert main(["list", "--mlruns-dir", str(tmp_path)]) == 2
    assert "holds no MLflow store" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
