"""Figures show the numbers they were given."""

import io

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from training.evaluation import figures
from training.evaluation.drift import Window


def drawn(figure: Figure) -> Figure:
    figure.savefig(io.BytesIO())
    return figure


def test_the_training_curve_shows_every_validation_and_the_baseline() -> None:
    history = [{"epoch": 0.5, "val/tau_b": 0.2}, {"epoch": 1.0, "val/tau_b": 0.4}]
    (axes,) = drawn(figures.training_curve(history, 0.3)).axes
    curve, baseline = axes.lines
    assert np.asarray(curve.get_xydata()).tolist() == [[0.5, 0.2], [1.0, 0.4]]
    assert set(np.asarray(baseline.get_ydata())) == {0.3}
    (axes,) = drawn(figures.training_curve(history, None)).axes
    assert axes.get_legend_handles_labels()[1] == ["TF-IDF + ridge (test): undefined"]


def test_every_test_prompt_is_a_point() -> None:
    scores, lengths = np.array([0.1, 0.2]), np.array([10.0, 400.0])
    (axes,) = drawn(figures.predicted_against_real(scores, lengths, "title")).axes
    offsets = np.asarray(axes.collections[0].get_offsets())
    assert offsets.tolist() == [[0.1, 10.0], [0.2, 400.0]]
    assert (axes.get_yscale(), axes.get_title()) == ("log", "title")


def test_a_prefill_has_its_points_and_its_fit_per_batch_size() -> None:
    points = pd.DataFrame(
        {"batch_size": [1, 1, 4], "prompt_tokens": [8, 16, 8]}
        | {"measured_s": [0.001, 0.002, 0.003], "fitted_s": [0.001, 0.002, 0.004]}
    )
    (axes,) = drawn(figures.prefill_latency(points, "")).axes
    assert [len(np.asarray(line.get_xdata())) for line in axes.lines] == [2, 2, 1, 1]
    assert np.asarray(axes.lines[3].get_ydata()).tolist() == [4.0]  # milliseconds


def test_the_matrix_has_a_panel_per_bound() -> None:
    panels = {"learnt": [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]], "copied": [[1.0, 0.2]] * 3}
    figure = drawn(figures.transfer_matrix(panels, ["a", "b", "consensus"], ["a", "b"]))
    images = [axes.images[0] for axes in figure.axes if axes.images]
    assert np.asarray(images[0].get_array()).tolist() == panels["learnt"]
    assert len(images) == 2


def test_drift_has_a_second_panel_where_quantiles_are_known() -> None:
    def window(end: int, coverage: dict[str, float]) -> Window:
        interval = (0.4, 0.6)
        return Window(first_row=0, end_row=end, tau_b=0.5, tau_b_ci=interval, coverage=coverage)

    plain = drawn(figures.drift([window(100, {}), window(200, {})], 0.45, "log"))
    assert len(plain.axes) == 1
    assert np.asarray(plain.axes[0].lines[0].get_xdata()).tolist() == [100, 200]
    calibrated = drawn(figures.drift([window(100, {"0.5": 0.52})], 0.45, "log"))
    assert np.asarray(calibrated.axes[1].lines[0].get_ydata()).tolist() == [0.52]
