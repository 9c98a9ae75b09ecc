"""One record per request, the same after a round trip through a file."""

import numpy as np
import pytest

from lengthwise.errors import DataError
from scheduler_adapters.timeline.latency_metrics import summarize
from scheduler_adapters.timeline.timeline import (
    as_table,
    read_timeline,
    timeline_from_token_times,
    write_timeline,
)
from scheduler_adapters.workload.requests import make_requests


@pytest.fixture
def timeline():
    requests = make_requests(
        arrival_s=[0.0, 0.5, 0.75],
        prompt_tokens=[4, 5, 6],
        output_tokens=[2, 3, 3],
        scores=[1.0, np.nan, 3.0],
        user_class=["paying", "free", "free"],
    )
    return timeline_from_token_times(
        requests, [[1.0, 2.0], [2.0, 2.5, 3.5], []], scheduled_s=[0.5, 1.0, np.nan]
    )


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_a_timeline_survives_the_round_trip_through_a_file(tmp_path, timeline, suffix):
    path = tmp_path / f"timeline{suffix}"
    write_timeline(timeline, path)
    again = read_timeline(path)

    assert as_table(again).equals(as_table(timeline))
    for row in range(3):
        np.testing.assert_array_equal(again.token_s(row), timeline.token_s(row))
    np.testing.assert_equal(summarize(again).to_dict(), summarize(timeline).to_dict())


def test_a_file_without_token_times_is_refused_when_read_back(tmp_path, timeline):
    path = tmp_path / "timeline.parquet"
    write_timeline(timeline, path, token_times=False)
    with pytest.raises(DataError, match="token_s"):
        read_timeline(path)


def test_an_unwritable_place_leaves_nothing_behind(tmp_path, timeline):
    with pytest.raises(DataError, match="cannot be written"):
        write_timeline(timeline, tmp_path / "absent" / "timeline.parquet")
    with pytest.raises(DataError, match="no known format"):
        write_timeline(timeline, tmp_path / "timeline.xlsx")
    assert list(tmp_path.iterdir()) == []


def test_taking_requests_takes_their_tokens_along(timeline):
    part = timeline.take(np.array([False, True, True]))
    assert part.requests.request_id.tolist() == ["1", "2"]
    np.testing.assert_array_equal(part.token_s(0), [2.0, 2.5, 3.5])
    assert len(part.token_s(1)) == 0
