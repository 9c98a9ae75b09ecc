"""Faults of single legs over a handle that is none; replicas die in `test_phase_gateway.py`."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from scheduler_adapters.routers.legs import Emitted, Generation
from tests.scheduler_adapters.routers.test_legs import END, THINK_END, leg

pytest.importorskip("ray")
leg_streams = pytest.importorskip("scheduler_adapters.routers.leg_streams")
pytestmark = pytest.mark.ray
THOUGHT, ANSWER = Emitted(3, [7, THINK_END]), Emitted(5, [9, END])
SILENT, DONE = "silent", [7, THINK_END, 9, END]
CASES = {
    "moved": [["a", THOUGHT, SILENT], ["b", ANSWER]],
    "hand_over_failed": [["a", THOUGHT, ANSWER], [SILENT]],
    "resumed": [["a", SILENT], ["b", THOUGHT, ANSWER]],
    "resumed after a gap": [["a", ANSWER], ["b", THOUGHT, ANSWER]],
}


class Handle:
    """Each call plays the next script."""

    def __init__(self, scripts):
        self.scripts, self.legs, self.open = iter(scripts), [], 0

    def remote(self, leg):
        async def play(script):
            for message in script:
                if message == SILENT:
                    await asyncio.Event().wait()
                yield message

        self.legs.append(leg)
        self.open += 1
        messages = play(next(self.scripts))
        return SimpleNamespace(__anext__=messages.__anext__, cancel=self.close)

    def close(self):
        self.open -= 1

    def dispatch(self, _, leg):
        return self.remote(leg)

    @asynccontextmanager
    async def choose_replica(self, leg):
        yield SimpleNamespace(replica_id="b")


@pytest.mark.parametrize("case", CASES)
def test_a_leg_that_fails_loses_and_doubles_no_token(case):
    handle, one = Handle(CASES[case]), Generation(leg())
    limits = leg_streams.LegLimits(accept_s=0.05, stall_s=0.05)
    streams = leg_streams.LegStreams(handle, limits, moves=not case.startswith("resumed"))

    async def run():
        return [number async for number in streams.serve(one)]

    assert sum(asyncio.run(run())) == len(DONE)
    assert (one.token_ids[3:], handle.open) == (DONE, 0)
    assert streams.counts[case.split()[0]] == 1
    assert handle.legs[1].excluded == ({"a"} if "resumed" in case else set())
