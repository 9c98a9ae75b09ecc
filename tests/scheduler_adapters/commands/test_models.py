"""The models command."""

import json

import pytest

from scheduler_adapters.__main__ import main
from scheduler_adapters.simulator.latency.presets import presets


def test_without_data_presets_are_listed_and_say_what_they_need(capsys):
    assert main(["models", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["name"] for row in printed["models"]] == list(presets())
    for row in printed["models"]:
        if row["data"] is not None:
            assert "LENGTHWISE_DATA" in row["note"]
            assert row["kv_blocks"] is None
    assert main(["models"]) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in presets())


@pytest.mark.data
@pytest.mark.usefixtures("data_folder")
def test_with_data_presets_have_kv_memory_unless_weights_fill_it(capsys):
    assert main(["models", "--json"]) == 0
    for row in json.loads(capsys.readouterr().out.splitlines()[-1])["models"]:
        is_full = row["data"] is None and "leave no room for KV" in row["note"]
        assert is_full or row["kv_blocks"] > 0
