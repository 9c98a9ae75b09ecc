import numpy as np
import pytest

from benchmarks.validation.cluster_errors import figure_errors
from scheduler_adapters.timeline.timeline import timeline_from_token_times
from scheduler_adapters.workload.requests import make_requests


def served(times_s, instance, migrations):
    requests = make_requests(prompt_tokens=[5] * 4, output_tokens=[2] * 4, arrival_s=np.arange(4.0))
    token_s = [[arrival + times_s, arrival + 2 * times_s] for arrival in range(4)]
    return timeline_from_token_times(requests, token_s, instance=instance, migrations=migrations)


def test_every_figure_of_both_runs_has_an_error_but_no_shares_do():
    measured = served(0.2, [7, 7, 7, 1], [1, 0, 0, 0])
    errors = {row.figure: row for row in figure_errors(measured, served(0.3, [0, 1, 0, 0], 0))}
    assert errors["ttft_s.p99"][1:] == pytest.approx((0.2, 0.3, 0.5))
    assert errors["e2e_s.mean"].error == pytest.approx(0.5)
    assert errors["moves per request"][1:] == (0.25, 0.0, -1.0)
    assert [errors[f"share of instance {n}"].error for n in (1, 2)] == [0, 0]
    assert "ttfat_s.mean" not in errors  # no request thinks
