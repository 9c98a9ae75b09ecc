"""Virtual freeness: both formulas by hand, and the file that gives the cost of a prefill."""

import json

import pytest

from lengthwise.errors import ConfigError, DataError
from scheduler_adapters.placements.freeness import Freeness, PrefillCost, read_prefill_cost
from scheduler_adapters.views import InstanceView, RequestView
from tests.scheduler_adapters.placements import views

COST = PrefillCost(alpha=2.0, beta=10.0, peak_flop_per_s=1000.0, model="m", device="d")


def freeness(large_tokens: int | None = 160, **changes) -> Freeness:
    settings = {"ttft_slo_s": 2.0, "output_tokens": 10}
    made = Freeness(COST, **settings | changes)
    made.waits(large_tokens)
    return made


def view(**numbers) -> InstanceView:
    return views.view(**{"used_blocks": 10} | numbers)


def test_a_prefill_queue_takes_its_time_from_a_budget_below_zero():
    assert freeness().prefill(view()) == 1
    # Prompts of 10 and 20 tokens: 2 * 500 + 10 * 30 FLOP are 1.3 s of 2.
    queue = view(prefill_tokens=30, prefill_squares=500)
    assert freeness().prefill(queue) == pytest.approx(1 - 0.65)
    assert freeness(ttft_slo_s=0.5).prefill(queue) == pytest.approx(1 - 2.6)
    assert COST.seconds(10) == 0.3


def test_decode_memory_counts_bookings_waiting_and_fragments():
    # 90 free blocks are nine requests of ten: no fragment.
    assert freeness().decode(view()) == pytest.approx(0.9)
    assert freeness().decode(view(), 4) == pytest.approx(1 - 0.14 - 0.06)
    crowded = view(used_blocks=80, booked_blocks=6, waiting_prompt_tokens=17)
    assert (crowded.unclaimed_blocks, freeness().remainder(crowded)) == (12, 2)
    assert freeness().decode(crowded) == pytest.approx(1 - 0.88 - 0.02)
    # Less free than a large request takes: none of it is of use.
    assert freeness(208).remainder(crowded) == 12
    full = view(used_blocks=100, waiting_prompt_tokens=160)
    assert (freeness().remainder(full), freeness().decode(full)) == (0, pytest.approx(-0.1))


def test_a_large_request_waits_first_or_is_in_the_top_tenth():
    known = freeness(None)
    for tokens in range(1, 101):
        known.note(RequestView("a", 0, 0.0, tokens * 16 - 10))
    assert known.large_blocks(view()) == 90
    predicted = RequestView("a", 0, 0.0, 150, quantiles=((0.1, 5.0), (0.6, 20.0)))
    assert predicted.expected_tokens(known.output_tokens) == 20
    known.waits(33)
    assert known.large_blocks(view()) == 3


def written(tmp_path, **changes):
    content = {
        "format": "lengthwise-prefill-cost/1",
        "alpha": 2.0,
        "beta": 10.0,
        "peak_flop_per_s": 1000.0,
        "r2": 0.995,
        "model": "m",
        "device": "d",
        "figure": "plots/fit.png",
    }
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(content | changes))
    return path


def test_cost_files_are_read_and_poor_fits_refused_unless_forced(tmp_path):
    assert read_prefill_cost(written(tmp_path)) == COST
    poor = written(tmp_path, r2=0.9899)
    with pytest.raises(ConfigError, match=r"R\^2 is 0.9899 .*look at plots/fit.png .*force_cost"):
        read_prefill_cost(poor)
    assert read_prefill_cost(poor, force=True) == COST


@pytest.mark.parametrize("changes", [{"format": "other/1"}, {"r2": None}, {"alpha": "much"}])
def test_another_file_is_refused_by_its_path(tmp_path, changes):
    with pytest.raises(DataError, match=r"cost\.json.*is no prefill cost.*training calibrate"):
        read_prefill_cost(written(tmp_path, **changes))
    with pytest.raises(DataError, match="nowhere"):
        read_prefill_cost(tmp_path / "nowhere.json")
