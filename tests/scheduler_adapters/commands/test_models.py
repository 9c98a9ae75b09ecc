"""The models command."""

from __future__ import annotations

import json

import pytest

from scheduler_adapters.__main__ import PROGRAM, main
from scheduler_adapters.simulator.presets import presets
from scheduler_adapters.validation.fidelity import RECORDINGS


def test_without_data_every_preset_is_listed_and_the_measured_say_what_they_need(capsys):
    assert main(["models", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["name"] for row in printed["models"]] == list(presets())
    for row in printed["models"]:
        if row["data"] is not None:
            assert "LENGTHWISE_DATA" in row["note"]
            assert row["kv_blocks"] is None
    assert printed["fidelity"] == []
    assert "LENGTHWISE_DATA" in printed["fidelity_note"]


def test_the_table_names_every_preset(capsys):
    assert main(["models"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in presets())


@pytest.mark.data
def test_with_data_every_measured_preset_is_checked(capsys, data_folder):
    assert main(["models", "--json", "--data-dir", str(data_folder)]) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    for row in printed["models"]:
        if row["data"] is not None:
            assert row["kv_blocks"] > 0
            assert row["checks"], row
            assert all(0 <= check["mape_fraction"] < 0.3 for check in row["checks"])
    assert len(printed["fidelity"]) == 2 * len(RECORDINGS)


def test_a_data_folder_that_does_not_exist_is_one_line_and_exit_code_2(capsys, tmp_path):
    assert main(["models", "--data-dir", str(tmp_path / "absent")]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: data_dir is ")


def test_the_command_is_registered():
    assert PROGRAM.place_of("models") == "scheduler_adapters.commands.models:run"
