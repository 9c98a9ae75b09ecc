"""Many models: what they agree on, and how well one's lengths rank another's."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scoring_service.bundle import ModelBundle
from scoring_service.errors import ConfigError, DataError
from training.__main__ import main
from training.commands.studies import cross_model
from training.config import DataConfig, SplitConfig, TrainConfig
from training.data.labels import LabelledPrompt, consensus_of, is_held_out, of_one_model
from training.data.prepared import prepare
from training.evaluation import transfer
from training.evaluation.transfer import LengthTable, predict, spread


def answers(model: str, *lengths: int) -> list[LabelledPrompt]:
    return [
        LabelledPrompt(prompt=f"p{n}", model=model, lengths=(length,))
        for n, length in enumerate(lengths)
    ]


def test_a_consensus_hears_the_order_of_a_model_and_not_its_verbosity() -> None:
    terse, verbose = answers("a", 10, 20, 40), answers("b", 1000, 2000, 4000)
    together = consensus_of([*terse, *verbose])
    assert [item.observed for item in together] == [100, 200, 400]
    assert {item.model for item in together} == {"consensus"}


def test_a_model_that_skips_prompts_does_not_bend_the_consensus() -> None:
    full = answers("a", 10, 20, 40)
    partial = [replace(item, model="b", lengths=(7,)) for item in full[1:2]]
    assert [item.observed for item in consensus_of([*full, *partial])] == sorted(
        item.observed for item in consensus_of([*full, *partial])
    )


def test_several_models_must_be_chosen_from_or_joined() -> None:
    both = [*answers("a", 10, 20), *answers("b", 5, 9)]
    with pytest.raises(DataError, match=r"2 models \(a, b\.\.\.\); choose data\.model"):
        of_one_model(both, model=None, consensus=False, held_out=0)
    with pytest.raises(DataError, match="none called 'c'"):
        of_one_model(both, model="c", consensus=False, held_out=0)
    assert of_one_model(both, model="b", consensus=False, held_out=0) == both[2:]


def test_held_out_models_follow_from_their_names_alone() -> None:
    names = [f"model-{n}" for n in range(1000)]
    held = [name for name in names if is_held_out(name, 0.25)]
    assert 200 < len(held) < 300
    assert set(held) <= {name for name in names if is_held_out(name, 0.5)}


def write_matrix(path: Path, num_prompts: int = 80) -> Path:
    rng = np.random.default_rng(0)
    common = rng.normal(4, 1, num_prompts)
    rows = [
        {"prompt": f"prompt {n}", "model": f"m{m}", "output_tokens": int(np.exp(value)) + 1}
        for m in range(4)
        for n, value in enumerate(common + rng.normal(m / 5, 0.3, num_prompts))
    ]
    pd.DataFrame(rows).to_parquet(path)
    return path


def test_further_sets_are_learnt_from_and_never_tested_on(
    make_card: Callable[..., Path], tmp_path: Path
) -> None:
    card = make_card(
        table=write_matrix(tmp_path / "many.parquet", 200),
        rows=800,
        fields={"prompt": "prompt", "output_tokens": "output_tokens", "model": "model"},
    )
    data = DataConfig(dataset=str(card), also=(f"{card}*3",), consensus=True)
    config = TrainConfig(data=data, split=SplitConfig(test_fraction=0.2))
    prepared = prepare(config, None)
    alone = prepare(replace(config, data=replace(data, also=())), None)
    assert prepared.splits.test == alone.splits.test
    assert len(prepared.splits.train) == 4 * len(alone.splits.train)
    held = {item.prompt for item in prepared.splits.test}
    assert not held & {item.prompt for item in prepared.splits.train}
    with pytest.raises(ConfigError, match="NAME\\*COUNT"):
        prepare(replace(config, data=replace(data, also=(f"{card}*x",))), None)


def test_predictions_are_made_by_folds_that_have_not_seen_the_prompt() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 3))
    tokens = np.exp(features @ [1.0, -0.5, 0.2] + 4)
    good = predict(features, tokens)
    assert np.corrcoef(good, np.log(tokens))[0, 1] > 0.99
    noise = predict(rng.normal(size=(200, 150)), tokens)
    assert abs(np.corrcoef(noise, np.log(tokens))[0, 1]) < 0.3


def test_the_matrix_has_its_bounds_beside_it(
    make_card: Callable[..., Path],
    tmp_path: Path,
    tiny_bundle: ModelBundle,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fields = {"prompt": "prompt", "output_tokens": "output_tokens", "model": "model"}
    card = make_card(table=write_matrix(tmp_path / "many.parquet"), rows=320, fields=fields)

    def embed(prompts: list[str]) -> np.ndarray:
        return np.random.default_rng(0).normal(size=(len(prompts), 4))

    monkeypatch.setattr(transfer, "embed", embed)
    out = tmp_path / "out"
    assert main(["cross-model", "--dataset", str(card), "--out", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["models"] == ["m0", "m1", "m2", "m3"]
    assert np.allclose(np.diag(result["copy"]), 1.0)
    assert min(result["consensus"]) > np.mean(np.array(result["copy"])[~np.eye(4, dtype=bool)])
    assert len((out / "cross_model.csv").read_text().splitlines()) == 17
    assert (out / "cross_model.png").stat().st_size > 1000
    cross_model._print(result, out)
    assert "4 models, 80 prompts" in capsys.readouterr().out


@pytest.mark.parametrize("count", [0, 2])
def test_a_matrix_of_too_few_models_is_refused_before_the_work(
    count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--dataset", "no/such/set", "--models", str(count), "--out", str(tmp_path / "out")]
    assert main(["cross-model", *options]) == 2
    assert f"models is {count}; use 3 or more" in capsys.readouterr().err


def test_models_are_spread_over_their_names() -> None:
    names = [f"m{n:02}" for n in range(50)]
    few = spread(LengthTable(["p"], names, np.ones((1, 50))), 5)
    assert few.models[0] == "m00"
    assert few.models[-1] == "m49"
    assert len(few.models) == 5
