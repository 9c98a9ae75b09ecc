"""`score-batch` scores as the service does, and continues where it was ended."""

import pandas as pd
import pytest

from scoring_service.__main__ import main
from scoring_service.commands import score_batch

pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]


def test_scores_equal_those_of_the_service_and_ready_parts_stay(
    server, tiny_bundle, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    prompts = [f"essay {'long ' * n}" for n in range(7)]
    pd.DataFrame({"prompt": prompts}).to_parquet(tmp_path / "prompts.parquet")
    command = ["score-batch", str(tmp_path / "prompts.parquet"), "--part-rows", "2"]
    command += ["--bundle", str(tiny_bundle.path), "--out", str(tmp_path / "scores")]
    assert main([*command, "--workers", "2"]) == 0
    parts = sorted((tmp_path / "scores").glob("*.parquet"))
    found = pd.concat(map(pd.read_parquet, parts))
    assert [len(pd.read_parquet(part)) for part in parts] == [2, 2, 2, 1]
    assert found["row"].tolist() == list(range(7))
    from scoring_service.client import ScoringClient

    with ScoringClient(server.target, timeout_s=60) as client:
        served = [one.value for one in client.score_batch(prompts)]
    assert found["score"].tolist() == pytest.approx(served, abs=1e-5)
    parts[1].unlink()
    asked, kept = [], parts[0].stat().st_mtime_ns
    ranker = score_batch._Ranker(str(tiny_bundle.path))
    monkeypatch.setattr(score_batch, "_scored", lambda _, of: asked.extend(of) or map(ranker, of))
    assert main(command) == 0
    assert [one["part"] for one in asked] == [1]
    assert parts[0].stat().st_mtime_ns == kept
    assert pd.read_parquet(parts[1]).equals(found[2:4].reset_index(drop=True))
    assert main([*command, "--part-rows", "3"]) == 2
    assert "parts of another part_rows; use another folder" in capsys.readouterr().err
