"""`cross-model`: the matrix of models with its bounds."""

import json

import numpy as np
import pandas as pd
import pytest

from tests.training.data.test_labelled_splits import write_matrix
from training.__main__ import main
from training.commands import cross_model
from training.commands.cross_model import predict, spread


def test_the_matrix_has_its_bounds_beside_it(make_card, tmp_path, tiny_bundle, capsys, monkeypatch):
    fields = {"prompt": "prompt", "output_tokens": "output_tokens", "model": "model"}
    card = make_card(table=write_matrix(tmp_path / "many.parquet"), rows=320, fields=fields)

    def embed(prompts: list[str]) -> np.ndarray:
        return np.random.default_rng(0).normal(size=(len(prompts), 4))

    monkeypatch.setattr(cross_model, "embed", embed)
    out = tmp_path / "out"
    assert main(["cross-model", "--dataset", str(card), "--out", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["models"] == ["m0", "m1", "m2", "m3"]
    assert np.allclose(np.diag(result["copy"]), 1.0)
    assert min(result["consensus"]) > np.mean(np.array(result["copy"])[~np.eye(4, dtype=bool)])
    assert len((out / "cross_model.csv").read_text().splitlines()) == 17
    cross_model._print(result, out)
    assert "4 models, 80 prompts" in capsys.readouterr().out


@pytest.mark.parametrize("count", [0, 2])
def test_a_matrix_of_too_few_models_is_refused_before_the_work(count, tmp_path, capsys):
    options = ["--dataset", "no/such/set", "--models", str(count), "--out", str(tmp_path / "out")]
    assert main(["cross-model", *options]) == 2
    assert f"models is {count}; use a whole number, 3 or more" in capsys.readouterr().err


def test_predictions_come_from_folds_without_the_prompt():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 3))
    tokens = np.exp(features @ [1.0, -0.5, 0.2] + 4)
    assert np.corrcoef(predict(features, tokens), np.log(tokens))[0, 1] > 0.99
    noise = predict(rng.normal(size=(200, 150)), tokens)
    assert abs(np.corrcoef(noise, np.log(tokens))[0, 1]) < 0.3


def test_models_are_spread_over_their_names():
    names = [f"m{n:02}" for n in range(50)]
    few = list(spread(pd.DataFrame(np.ones((1, 50)), columns=names), 5))
    assert (few[0], few[-1], len(few)) == ("m00", "m49", 5)
