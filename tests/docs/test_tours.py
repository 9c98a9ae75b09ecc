"""The tours of docs/architecture.md are true of the code: each is compared with a real run.

A tour is a list of functions. The first column is the way from the one before:

    calls             it was called by the one before
    returns to        it called the one before and continues
    anything else     a hand-over (a wire, a queue): it is called later, perhaps by another thread

Between a function and the next one may stand functions of their two rooms and of the ground floor,
which is no room. No room is entered twice but on the way back.
"""

import ast
import re
from collections.abc import Iterable
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from scheduler_adapters.engines.engine_clock import WallClock
from scheduler_adapters.engines.vllm_v1.in_process import OfflineConfig, open_driver
from scheduler_adapters.workload.requests import make_requests
from scoring_service.client import ScoringClient
from scoring_service.ranker.model import RankerModel
from scoring_service.server.server import ScoringServer
from scoring_service.service.config import ServerConfig
from tests.docs.tracing import Call, Trace, traced

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/architecture.md").read_text()
GROUND_FLOORS = {"training", "scoring_service", "scheduler_adapters"}


class Stop(NamedTuple):
    """One function of a tour, and how it is reached."""

    how: str
    name: str

    @property
    def room(self) -> str:
        return room_of(self.name)


def room_of(name: str) -> str:
    """The package in which a function stands."""
    return name.partition(":")[0].rpartition(".")[0]


def tours() -> dict[str, list[Stop]]:
    found = re.findall(r"^### Tour: (.*?)$.*?^```text\n(.*?)^```$", TEXT, flags=re.M | re.S)
    return {
        title: [Stop(how.strip(), name) for how, name in re.findall(r"^(.*?) +(\S+)$", block, re.M)]
        for title, block in found
    }


TOURS = tours()


def broken_link(stops: list[Stop], trace: Trace) -> str:
    """The first pair of a tour that a trace does not show in this order; "" where there is none."""
    position = next((n for n, call in trace.after(0) if call.name == stops[0].name), None)
    if position is None:
        return f"{stops[0].name} is never called"
    for before, stop in pairwise(stops):
        if stop.how == "returns to":
            if not any(leads(stop, before, call) for _, call in trace.after(0)):
                return f"{before.name} does not return to {stop.name}"
            continue
        position = next(
            (
                n
                for n, call in trace.after(position)
                if call.name == stop.name and (stop.how != "calls" or leads(before, stop, call))
            ),
            None,
        )
        if position is None:
            return f"{before.name} does not lead to {stop.name} ({stop.how})"
    return ""


def leads(caller: Stop, callee: Stop, call: Call) -> bool:
    """Return whether `call` is one of `callee` by `caller`, with no third room between them."""
    if call.name != callee.name or caller.name not in call.callers:
        return False
    between = call.callers[: call.callers.index(caller.name)]
    return {room_of(name) for name in between} <= {caller.room, callee.room, *GROUND_FLOORS}


def rooms_passed(rooms: Iterable[str]) -> list[str]:
    """The rooms in order, a stay in one of them counted once, the ground floor left out."""
    return [room for room, _ in groupby(room for room in rooms if room not in GROUND_FLOORS)]


def rooms_entered_twice(stops: list[Stop]) -> set[str]:
    """Rooms that are entered again other than on the way back to them."""
    way: list[str] = []
    seen: set[str] = set()
    again: set[str] = set()
    for room in rooms_passed(stop.room for stop in stops):
        if room in way:
            del way[way.index(room) + 1 :]
            continue
        if room in seen:
            again.add(room)
        seen.add(room)
        way.append(room)
    return again


@pytest.mark.parametrize("title", TOURS)
def test_every_function_of_a_tour_exists(title):
    assert len(TOURS[title]) > 5
    for stop in TOURS[title]:
        module, _, qualified = stop.name.partition(":")
        body = ast.parse(ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text()).body
        for part in qualified.split("."):
            found = [n for n in body if getattr(n, "name", None) == part]
            assert found, f"{stop.name} is not there"
            body = getattr(found[0], "body", [])


@pytest.mark.parametrize("title", TOURS)
def test_no_room_of_a_tour_is_entered_twice_but_on_the_way_back(title):
    assert not rooms_entered_twice(TOURS[title])


def test_a_room_that_is_entered_twice_is_found():
    def walk(rooms: str) -> set[str]:
        return rooms_entered_twice([Stop("calls", f"{room}.file:f") for room in rooms])

    assert not walk("abccba")
    assert not walk("abcbdba")
    assert walk("abcbc") == {"c"}
    assert walk("abcab") == {"b"}
    ground = [Stop("calls", f"{package}.file:f") for package in sorted(GROUND_FLOORS)]
    assert rooms_passed(stop.room for stop in ground) == []


def test_a_prompt_takes_the_way_of_its_tour(tiny_bundle):
    stops = TOURS["a prompt, from client to score"]
    model = RankerModel.load(tiny_bundle)
    with traced() as trace:
        server = ScoringServer(model, ServerConfig(address="127.0.0.1:0"))
        server.start()
        with ScoringClient(server.target, timeout_s=60) as client:
            client.score("long essay")
        server.stop()
    assert not broken_link(stops, trace)
    assert broken_link([*stops[:5], stops[6], stops[5], *stops[7:]], trace)
    assert "does not lead to" in broken_link([*stops[:2], *stops[3:]], trace)
    # A dataclass that is filled in another room, such as the `Call` with its deadline, is no visit.
    # Nor is what a thread of its own does all the time.
    aside = ("__create_fn__", "BlockedCalls.cancel_overdue", "BlockedCalls._cancel_while")
    names = [call.name for call in trace.calls if not any(name in call.name for name in aside)]
    asked = names.index("scoring_service.client.scoring_client:ScoringClient.score")
    answered = names.index("scoring_service.transport.direct:DirectCall.respond")
    rooms = rooms_passed(room_of(name) for name in names[asked : answered + 1])
    inward = ["client", "transport", "server", "service", "ranker"]
    assert rooms == [f"scoring_service.{room}" for room in [*inward, *reversed(inward[1:-1])]]


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
def test_a_rank_takes_the_way_of_its_tour():
    stops = TOURS["a rank, from policy to engine step"]
    requests = make_requests(prompt_tokens=[8, 9, 7], output_tokens=[3, 3, 3])
    config = OfflineConfig(scheduler="slai", max_num_seqs=2, kv_cache_mib=16)
    with open_driver(config) as driver, traced({stop.name for stop in stops}) as trace:
        driver.serve(requests, clock=WallClock(), seed=0)
    assert not broken_link(stops, trace)
    assert broken_link([*stops[:2], *stops[3:]], trace)
