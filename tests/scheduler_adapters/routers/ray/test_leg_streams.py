"""Faults of single legs over a handle that is none; replicas die in `test_gateway.py`."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from scheduler_adapters.routers.legs import Emitted, MovePoints, Routed
from tests.scheduler_adapters.routers.test_legs import END, THINK_END, leg

pytest.importorskip("ray")
leg_streams = pytest.importorskip("scheduler_adapters.routers.ray.leg_streams")
pytestmark = pytest.mark.ray
THOUGHT, ANSWER = Emitted(3, [7, THINK_END]), Emitted(5, [9, END])
SILENT, DONE = "silent", [7, THINK_END, 9, END]
FIRST, REST = Emitted(3, [7], "paused", {"lease_s": 60}), Emitted(4, [THINK_END, 9, END])
BRIEF = Emitted(3, [7], "paused", {"lease_s": 1})
PAUSES = {
    "moved by KV": [["a", FIRST], ["b", REST]],
    "with_kv": [["a", FIRST], ["b", REST]],
    "stayed": [["b", FIRST], ["b", REST]],
    "hand_over_failed as its KV expired": [["a", BRIEF], [SILENT], ["c", REST]],
    "moved to a target that died": [["a", FIRST], ["b"], ["c", REST]],
}
"""Replicas that pause after the first token, and how long they keep its KV."""
CASES = PAUSES | {
    "moved": [["a", THOUGHT, SILENT], ["b", ANSWER]],
    "hand_over_failed": [["a", THOUGHT, ANSWER], [SILENT]],
    "resumed": [["a", SILENT], ["b", THOUGHT, ANSWER]],
    "resumed after a gap": [["a", ANSWER], ["b", THOUGHT, ANSWER]],
}


class Handle:
    """Each call plays the next script."""

    def __init__(self, scripts):
        self.scripts, self.legs, self.open, self.answers = iter(scripts), [], 0, []

    def remote(self, leg):
        async def play(script):
            for message in script:
                if message == SILENT:
                    await asyncio.Event().wait()
                yield message

        self.legs.append(leg)
        self.open += 1
        return SimpleNamespace(__anext__=play(next(self.scripts)).__anext__, cancel=self.close)

    def close(self):
        self.open -= 1

    def dispatch(self, _, leg):
        return self.remote(leg)

    @asynccontextmanager
    async def choose_replica(self, leg):
        decided_by = "waits" if leg.kind == "prefilled" and leg.routed is None else "placement"
        leg.routed = Routed("router", 1, "b", decided_by)
        self.answers.append(decided_by)
        yield SimpleNamespace(replica_id="b")


def test_a_request_that_silenced_two_replicas_ends_no_third(caplog):
    handle, limits = Handle([["a", SILENT], ["b", SILENT]]), leg_streams.LegLimits(stall_s=0.05)
    streams = leg_streams.LegStreams(handle, limits, MovePoints())
    with pytest.raises(leg_streams.Suspect, match="two failures under a;"):
        asyncio.run(anext(streams.serve(leg(tokens=[1, 2, 3]))))
    assert leg_streams.Suspect.status == 500
    assert "a ended or silenced two replicas" in caplog.text


@pytest.mark.parametrize("case", CASES)
def test_a_leg_that_fails_loses_and_doubles_no_token(case):
    handle, one = Handle(CASES[case]), leg(tokens=[1, 2, 3])
    limits = leg_streams.LegLimits(accept_s=60 if case in PAUSES else 0.05, stall_s=0.05)
    points = MovePoints(think_end=not case.startswith("resumed"))
    if case in PAUSES:
        points = MovePoints(prefill_end=True, with_kv=True)
    streams = leg_streams.LegStreams(handle, limits, points)

    async def run():
        return [number async for number in streams.serve(one)]

    assert sum(asyncio.run(run())) == len(DONE)
    assert (one.token_ids[3:], handle.open) == (DONE, 0)
    assert streams.counts[case.split()[0]] == 1
    assert handle.legs[1].excluded == ({"a"} if "resumed" in case else set())
    if case in PAUSES:
        assert handle.answers == ["waits", "placement"]
        # KV that has expired, or was lost with its target, is pulled by no further leg.
        assert [leg.pause_after for leg in handle.legs][:2] == [1, None]
        assert handle.legs[1].kv is not None
        assert all(leg.kv is None for leg in handle.legs[2:])
