"""Late scores are matched with their requests by key, in either order."""

from scheduler_adapters.planner.late_scores import MAX_KEPT, LateScore, LateScores, late_score
from scheduler_adapters.planner.request_annotations import QUANTILES, SCORE


def test_a_score_finds_the_requests_that_wait_for_it_once():
    late: LateScores[str] = LateScores()
    assert late.expect("a", "first sample") is None
    assert late.expect("a", "second sample") is None
    assert late.expect("b", "other") is None
    late.inbox.append(LateScore("a", 3.0))
    assert list(late.take()) == [
        ("first sample", LateScore("a", 3.0)),
        ("second sample", LateScore("a", 3.0)),
    ]
    late.inbox.append(LateScore("a", 4.0))
    assert list(late.take()) == []


def test_a_score_that_came_before_its_request_is_kept_for_it_and_for_its_other_samples():
    late: LateScores[str] = LateScores()
    late.inbox.append(LateScore("a", 3.0))
    assert list(late.take()) == []
    assert late.expect("a", "first sample") == late.expect("a", "second") == LateScore("a", 3.0)


def test_a_key_that_was_forgotten_may_be_used_again():
    late: LateScores[str] = LateScores()
    late.expect("a", "gone")
    late.inbox.append(LateScore("b", 1.0))
    assert not list(late.take())
    late.forget("a")
    late.forget("b")
    late.forget("never seen")
    assert late.expect("b", "new") is None
    late.inbox.append(LateScore("a", 2.0))
    assert list(late.take()) == []


def test_only_the_newest_are_remembered():
    late: LateScores[int] = LateScores()
    for number in range(MAX_KEPT + 1):
        late.expect(f"waits {number}", number)
        late.inbox.append(LateScore(f"early {number}", 0.0))
    assert len(late.inbox) == MAX_KEPT
    assert not list(late.take())
    late.inbox += [LateScore("waits 0", 1.0), LateScore("waits 1", 1.0)]
    assert [item for item, _ in late.take()] == [1]
    assert late.expect("early 0", -1) is None
    assert late.expect(f"early {MAX_KEPT}", -1) is not None


def test_a_late_score_is_read_from_hints_or_not_at_all():
    hints = {SCORE: 3, QUANTILES: [0.5, 210, 0.9, 640]}
    assert late_score("a", hints) == LateScore("a", 3.0, ((0.5, 210.0), (0.9, 640.0)))
    assert late_score(None, hints) is None
    for unusable in ({}, {SCORE: float("nan")}, {SCORE: "3"}, {QUANTILES: [0.5, 210]}):
        assert late_score("a", unusable) is None
