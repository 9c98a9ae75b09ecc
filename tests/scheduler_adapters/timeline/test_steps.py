"""The sizes of a step as a latency model sees it."""

from scheduler_adapters.timeline.steps import StepRecord, chunk_sizes


def test_each_token_attends_to_those_before_and_half_of_its_own():
    assert chunk_sizes([]) == (0, 0.0)
    assert chunk_sizes([(10, 4), (0, 6)]) == (10, 4 * 12 + 6 * 3.0)


def test_a_record_counts_its_prefills():
    record = StepRecord.of(3, 70, [(10, 4), (0, 6)], 0.5)
    assert record == StepRecord(3, 70, 2, 10, 66.0, 0.5)
