"""The page of a ranker shows its order beside others, its coverage and its worst errors."""

import numpy as np

from lengthwise.bundle import Manifest
from training.evaluation.report import (
    evaluation_table,
    predicted_against_real,
    ranker_page,
    training_curve,
)

PROMPTS = [f"prompt number {number}" for number in range(20)]


def a_page(scores: np.ndarray, **about: object) -> str:
    metrics = {"tau_b": 0.5, "tau_b_ci": [0.4, 0.6], "tau_b_tfidf_ridge": 0.45}
    metrics |= {"coverage": {"0.5": 0.48, "0.9": 0.91}}
    manifest = Manifest(
        name="n", label="l", label_tokenizer="t", max_prompt_tokens=8, metrics=metrics, **about
    )
    return ranker_page(manifest, PROMPTS, scores, np.arange(1.0, 21.0))


def test_the_prompt_in_the_most_wrong_place_comes_first():
    scores = np.arange(20.0)
    scores[2] = 100.0
    worst = a_page(scores).partition("Worst errors")[2]
    assert worst.index("prompt number 2<") < worst.index("prompt number 19<")
    assert "<td>100%</td><td>15%</td><td>3</td>" in worst


def test_the_order_stands_beside_its_baselines_and_the_coverage():
    page = a_page(np.arange(20.0))
    assert "tau_b of 0.500 (95% interval 0.400 to 0.600)" in page
    assert page.index("this ranker") < page.index("TF-IDF + ridge")
    assert "<td>0.500</td><td>0.480</td>" in page


def test_a_curve_is_drawn_where_the_history_is_known():
    history = ({"epoch": 0.5, "val/tau_b": 0.1}, {"epoch": 1.0, "val/tau_b": 0.2})
    curve, baseline = training_curve(history, 0.4).axes[0].lines
    assert np.asarray(curve.get_xydata()).tolist() == [[0.5, 0.1], [1.0, 0.2]]
    assert set(np.asarray(baseline.get_ydata())) == {0.4}
    labels = training_curve(history, None).axes[0].get_legend_handles_labels()[1]
    assert labels == ["TF-IDF + ridge (test): undefined"]
    page = a_page(np.arange(20.0), history=history)
    assert page.count("<svg") == a_page(np.arange(20.0)).count("<svg") + 1


def test_every_test_prompt_is_a_point():
    (axes,) = predicted_against_real(np.array([0.1, 0.2]), np.array([10.0, 400.0])).axes
    offsets = np.asarray(axes.collections[0].get_offsets())
    assert (offsets.tolist(), axes.get_yscale()) == ([[0.1, 10.0], [0.2, 400.0]], "log")


def test_the_table_of_an_evaluation_has_places_among_all_prompts() -> None:
    table = evaluation_table(["a", "b"] * 600, np.arange(1200.0), -np.arange(1200.0))
    assert len(table) == 1000
    assert table["place"].iloc[0] == 1 - table["predicted_place"].iloc[0] + 1 / 1200
    assert table["predicted_place"].iloc[0] == 1
