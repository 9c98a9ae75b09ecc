"""What the versions of vLLM do not have in common, on stand-ins that are laid out as each."""

from types import SimpleNamespace
from typing import Any

import pytest

from lengthwise.errors import UnsupportedByEngine
from scheduler_adapters.engines.vllm_v1 import TESTED

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

SECOND_QUEUES = {
    "skipped_waiting": "max_num_running_reqs",
    "kv_holding_waiting": "max_num_active_reqs",
}


def make_scheduler(second_queue: str, **changed: Any) -> SimpleNamespace:
    """A scheduler of four seats, with the attributes of the versions that have this queue."""
    from scheduler_adapters.engines.vllm_v1.versions import _ALL_HAVE

    attributes = {**dict.fromkeys(_ALL_HAVE), "max_num_running_reqs": 9}
    attributes |= {SECOND_QUEUES[second_queue]: 4, second_queue: []}
    return SimpleNamespace(**{**attributes, **changed})


@pytest.mark.parametrize("second_queue", SECOND_QUEUES)
def test_seats_and_second_queue_have_the_names_of_the_version(second_queue):
    from scheduler_adapters.engines.vllm_v1.versions import layout_of

    scheduler = make_scheduler(second_queue)
    assert getattr(scheduler, layout_of(scheduler).seats) == 4
    assert layout_of(scheduler).second_queue == second_queue


def test_a_scheduler_that_fits_no_layout_is_refused():
    from scheduler_adapters.engines.vllm_v1.versions import layout_of

    scheduler = make_scheduler("skipped_waiting")
    del scheduler.skipped_waiting
    with pytest.raises(UnsupportedByEngine, match=f"kv_holding_waiting; use vllm {TESTED}"):
        layout_of(scheduler)
    scheduler = make_scheduler("skipped_waiting")
    del scheduler.current_step
    with pytest.raises(UnsupportedByEngine, match="has no current_step"):
        layout_of(scheduler)


def test_a_scheduler_that_keeps_its_queue_otherwise_is_refused(monkeypatch):
    from scheduler_adapters.engines.vllm_v1 import versions
    from scheduler_adapters.engines.vllm_v1.rank_queue import RankQueue

    class Scheduler:
        """It never asks a queue for anything."""

    monkeypatch.setattr(versions, "Scheduler", Scheduler)
    with pytest.raises(UnsupportedByEngine, match="never calls peek_request"):
        versions.probe_classes(RankQueue)
    with pytest.raises(UnsupportedByEngine, match=r"RequestQueue also has .*'pop_request'"):
        versions.probe_classes(versions.RequestQueue)


def test_requests_hold_blocks_once_computed_or_in_a_load():
    from vllm.v1.request import RequestStatus

    from scheduler_adapters.engines.vllm_v1.versions import holds_blocks

    waits, loads = RequestStatus.WAITING, RequestStatus.WAITING_FOR_REMOTE_KVS
    found = [
        holds_blocks(SimpleNamespace(num_computed_tokens=computed, status=status))
        for computed, status in ((0, waits), (7, waits), (0, loads))
    ]
    assert found == [False, True, True]


@pytest.mark.parametrize(("has_counter", "left"), [(True, (3, 0)), (False, (2, 1))])
def test_a_token_in_flight_is_dropped_if_not_awaited(has_counter, left):
    from scheduler_adapters.engines.vllm_v1.versions import preempt

    request = SimpleNamespace(num_output_placeholders=1, async_tokens_to_discard=2)
    if not has_counter:
        request = SimpleNamespace(num_output_placeholders=1)
    preempted: list[Any] = []
    scheduler = SimpleNamespace(
        running=[request], _preempt_request=lambda request, at_s: preempted.append(request)
    )
    preempt(scheduler, request)
    assert preempted == [request]
    assert not scheduler.running
    assert getattr(request, "async_tokens_to_discard", 2) == left[0]
    assert request.num_output_placeholders == left[1]


@pytest.mark.parametrize(
    ("reasoning", "ids"),
    [
        ({"reasoning_end_token_ids": [7]}, (7,)),  # 0.26
        ({"reasoning_end_token_ids": [1, 7], "natural_reasoning_end_token_ids": [7]}, (7,)),
        ({"reasoning_end_token_ids": None}, ()),
        (None, ()),
    ],
)
def test_the_end_of_thinking_is_the_parsers(reasoning, ids):
    from scheduler_adapters.engines.vllm_v1.versions import parsed_think_end

    told = None if reasoning is None else SimpleNamespace(**reasoning)
    assert parsed_think_end(SimpleNamespace(reasoning_config=told)) == ids
    assert parsed_think_end(SimpleNamespace()) == ()
