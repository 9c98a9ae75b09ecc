"""The bench measures every figure it names, for one bundle and for two in turn."""

import json

import pytest

from benchmarks.__main__ import main
from benchmarks.speed.service import TARGETS


@pytest.mark.slow
def test_the_bench_prints_every_figure_as_one_json_object(tiny_bundle, capsys):
    path = str(tiny_bundle.path)
    options = ["--rounds", "2", "--slice-size", "20", "--beside", path]
    assert main(["service", "--bundle", path, "--json", *options]) == 0
    result = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    other = result.pop("beside")
    assert set(TARGETS) <= set(result) == set(other)
    assert result["vs_peer_cpu"] is None
    assert result["cpu_ratio_unary"] > result["cpu_ratio_floor"] > 1


def test_no_bundle_is_one_clear_line(capsys, tmp_path):
    assert main(["service", "--bundle", str(tmp_path)]) == 2
    assert "--bundle" in capsys.readouterr().err
