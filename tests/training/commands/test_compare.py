"""`compare`: two rankers on the same prompts, with a paired interval."""

from dataclasses import replace

import pandas as pd
import pytest

from tests.training.commands.conftest import TEST
from training.data.records import PromptResponse


def test_compare_says_who_is_better_and_by_how_much(make_bundle, register, training, data):
    good, bad = make_bundle(0), make_bundle(3)
    register("compared", bad)
    status, result = training("compare", good.path, "compared/1", "--data", data)
    low, high = result["difference_ci"]
    assert (status, result["better"], result["n"]) == (0, "a", len(TEST))
    assert 0 < low < result["difference"] < high
    assert result["difference"] == pytest.approx(result["a"]["tau_b"] - result["b"]["tau_b"])
    _, swapped = training("compare", "models:/compared/1", good.path, "--data", data)
    assert swapped["better"] == "b"
    assert swapped["difference"] == pytest.approx(-result["difference"])
    _, same = training("compare", good.path, good.path, "--data", data)
    assert (same["better"], same["difference_ci"], same["order_tau_b"]) == (None, [0, 0], 1)


def test_compare_counts_the_prompts_a_ranker_has_learnt_from_and_no_others(
    make_bundle, learnt, training, tiny_bundle, tmp_path
):
    trained, splits = learnt(900)
    rankers, log = (make_bundle(0, **trained).path, tiny_bundle.path), tmp_path / "log.parquet"
    strangers = [replace(record, prompt=f"again {record.prompt}") for record in TEST]
    for part, num_seen in (([], 0), (splits.train[:30], 30), (splits.test, 0)):
        rows = [PromptResponse(prompt=p.prompt, output_tokens=int(p.observed)) for p in part]
        pd.DataFrame([*strangers, *rows]).to_parquet(log)
        _, result = training("compare", *rankers, "--data", log)
        assert result["a"]["num_seen_in_training"] == num_seen
        assert result["b"]["num_seen_in_training"] is None
