import asyncio
import json

import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.placement import load_placement
from scheduler_adapters.routers.endpoint_picker.picker import EndpointPicker, PickerLimits
from scheduler_adapters.routers.routing import Routing

NAMES = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]
LOAD = {"num_waiting": 0, "used_blocks": 0, "total_blocks": 1000, "block_tokens": 16}


def make_picker(placement="least-kv", *, scores=None, clock=lambda: 0.0, **limits):
    routing = Routing(load_placement(placement), clock=clock)
    picker = EndpointPicker(routing, scores, PickerLimits(**limits))
    picker.update(NAMES)
    return picker


def pick(picker, body=b"", tokens=160):
    """A leg with a body of 160 tokens, which are 10 blocks, and its endpoints."""
    return asyncio.run(picker.pick(body, 4 * tokens))


def test_bookings_count_until_a_report_shows_their_requests():
    picker = make_picker()
    for name, used in zip(NAMES, (0, 15, 20), strict=True):
        picker.received(name, LOAD | {"used_blocks": used}, 0)
    chosen = [pick(picker) for _ in range(3)]
    assert [names[0] for _, names in chosen] == [NAMES[0], NAMES[0], NAMES[1]]
    # The report begun after the first request does not show it: the engine has ended it.
    picker.received(NAMES[0], LOAD, 1)
    assert pick(picker, tokens=1600)[1][0] == NAMES[0]
    # The newest requests before the report are those that wait.
    picker.received(NAMES[0], LOAD | {"num_waiting": 1}, 2)
    assert picker.routing.views.replicas[NAMES[0]].view.waiting_prompt_tokens == 160 + 1600


def test_without_fresh_reports_own_bookings_decide():
    now_s = [0.0]
    picker = make_picker(clock=lambda: now_s[0])
    for name in NAMES:
        picker.received(name, LOAD | {"used_blocks": 900 if name == NAMES[0] else 0}, 0)
    now_s[0] = 2.5
    chosen = [pick(picker) for _ in range(3)]
    assert sorted(names[0] for _, names in chosen) == NAMES
    assert picker.counts == {"no_fresh_report": 3}
    picker.received(NAMES[0], LOAD, 3)  # shows the first one, which is in its queue still
    now_s[0] = 5.0
    picker.release(chosen[1][0])
    assert pick(picker)[1][0] == chosen[1][1][0]


def test_the_prompt_of_every_api_is_scored_before_the_choice():
    asked = []

    class Scores:
        async def of(self, prompt):
            asked.append(prompt)
            return (4.5, ((0.5, 90.0),)) if prompt else None

    picker = make_picker(scores=Scores())
    chat = {"messages": [{"role": "user", "content": "a"}]}
    for body in (chat, {"prompt": "a"}, {"prompt": ["a"]}, {"input": "a"}, {"prompt": [3]}, [1]):
        leg, _ = pick(picker, json.dumps(body).encode())
        assert (leg.score, leg.quantiles) == ((4.5, ((0.5, 90.0),)) if asked[-1] else (None, ()))
    pick(picker, b"\xff{")
    pick(picker, b" " * 300_000)  # is not parsed
    assert asked == [*["a"] * 4, None, None, None]
    with pytest.raises(ConfigError, match="max_streams is 0; use a whole number, 1 or more"):
        PickerLimits(max_streams=0)
