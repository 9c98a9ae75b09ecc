"""One timeline of requests that were in several instances."""

import numpy as np

from scheduler_adapters.timeline.latency_metrics import summarize
from scheduler_adapters.timeline.migrations import join_moved
from scheduler_adapters.timeline.timeline import timeline_from_token_times
from scheduler_adapters.workload.requests import make_requests

REQUESTS = make_requests(
    prompt_tokens=[4, 5, 6], output_tokens=[4, 2, 3], reasoning_tokens=[2, 0, 0]
)


def part(rows: list[int], token_s: list[list[float]], **columns):
    return timeline_from_token_times(REQUESTS.take(np.array(rows)), token_s, **columns)


def test_tokens_are_joined_in_time_and_the_last_instance_counts():
    # Request 0 goes from the second instance to the first, and request 2 came nowhere.
    parts = [part([0], [[3.0, 4.0]]), part([1, 0], [[1.0, 1.5], [1.0, 2.0]])]
    parts[0].preemptions[0] = 7
    parts[0].finished_s[0] = 4.0
    last_at = np.array([[0, 0], [1, 0], [-1, -1]])
    joined = join_moved(REQUESTS, parts, [[0], [1, 0]], last_at, np.array([1, 0, 0]))
    np.testing.assert_array_equal(joined.token_s(0), [1.0, 2.0, 3.0, 4.0])
    assert joined.first_answer_s[0] == 3.0
    assert joined.instance.tolist() == [0, 1, 0]
    assert joined.migrations.tolist() == [1, 0, 0]
    assert joined.preemptions.tolist() == [7, 0, 0]
    np.testing.assert_array_equal(joined.finished_s, [4.0, 1.5, np.nan])
    assert summarize(joined).num_unfinished == 1
    assert summarize(joined).tbt_s.count == 4
