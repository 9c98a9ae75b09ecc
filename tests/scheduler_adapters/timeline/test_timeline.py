"""One record per request, the same after a round trip through a file."""

import numpy as np
import pytest

from lengthwise.errors import DataError
from scheduler_adapters.timeline.timeline import (
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
    )
    return timeline_from_token_times(requests, [[1.0, 2.0], [2.0, 2.5, 3.5], []])


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
