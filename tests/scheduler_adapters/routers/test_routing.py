"""Decisions of the router, and their parity with the simulated cluster on the same views."""

from dataclasses import replace

import numpy as np
import pytest

from lengthwise.errors import UnsupportedByEngine
from scheduler_adapters.placement import Move, Placement, SetRole, load_placement
from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.routers.replica_views import COUNTS
from scheduler_adapters.routers.routing import MovingConfig, Routing, RoutingConfig
from scheduler_adapters.simulator.cluster import simulate_cluster
from scheduler_adapters.simulator.cluster.placement_views import InstanceViews, TelemetryAge
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.links import Fabric
from scheduler_adapters.workload.requests import make_requests
from tests.scheduler_adapters.routers.test_legs import leg
from tests.scheduler_adapters.routers.test_replica_views import REPORT
from tests.scheduler_adapters.simulator.any_policy import LATENCY


class Recorder(Placement):
    """Another placement's routing, with the views and answers of each call."""

    name = "recorder"

    def __init__(self, inner, events):
        self.inner, self.events = inner, events
        self.watch, self.watches_prefills = inner.watch, inner.watches_prefills

    def place(self, request, instances):
        return self._record("place", request, None, instances, self.inner.place(request, instances))

    def at_phase_change(self, request, instance, instances):
        chosen = self.inner.at_phase_change(request, instance, instances)
        return self._record("phase", request, instance, instances, chosen)

    def _record(self, kind, request, instance, instances, chosen):
        views = [{name: getattr(view, name) for name in COUNTS} for view in instances]
        paced_s = [view.paced_until_s for view in instances]
        self.events.append((kind, replace(request), instance, views, paced_s, chosen))
        return chosen


def simulated(name, monkeypatch, settings):
    """Return the calls of a placement in a simulated cluster, and the snapshots between them."""
    events, take = [], InstanceViews.take_snapshot

    def take_snapshot(self):
        take(self)
        events.append(("snapshot", self.clock.now_s, [replace(view) for view in self.by_number]))

    monkeypatch.setattr(InstanceViews, "take_snapshot", take_snapshot)
    random, count = np.random.default_rng(3), 120
    outputs = random.integers(2, 160, count)
    requests = make_requests(
        prompt_tokens=random.integers(20, 300, count),
        output_tokens=outputs,
        reasoning_tokens=random.integers(1, outputs),
        arrival_s=np.cumsum(random.exponential(0.05, count)),
    )
    simulate_cluster(
        requests,
        Recorder(load_placement(name, **settings), events),
        Pascal,
        [Instance(latency=LATENCY, kv_blocks=150, max_num_seqs=16)] * 3,
        fabric=Fabric(kv_bytes_per_token=1),
        age=TelemetryAge(period_s=0.4),
    )
    return events


def replayed(events, name, settings):
    """Return the calls of the same placement in a router that gets the snapshots as reports."""
    now_s, calls = [0.0], []
    recorder = Recorder(load_placement(name, **settings), calls)
    routing = Routing(recorder, max_stale_s=100.0, clock=lambda: now_s[0])
    names = list("012")
    for number, event in enumerate(events):
        if event[0] == "snapshot":
            now_s[0] = event[1]
            reports = {
                name: {key: getattr(view, key) for key in COUNTS}
                | {"number": number, "paced_for_s": view.paced_until_s - now_s[0]}
                | {"arrived": {routing.router: number}}
                for name, view in zip(names, event[2], strict=True)
            }
            routing.update(reports)
            continue
        kind, request, instance, *_ = event
        now_s[0] = request.arrival_s if kind == "place" else request.last_token_s
        one = leg(
            "arrival" if kind == "place" else "phase_change",
            tuple(range(request.context_tokens)),
            request.prompt_tokens,
            arrival_s=request.arrival_s,
            thinking_tokens=request.thinking_tokens,
            is_thinking=kind == "place",
            current="" if instance is None else str(instance),
        )
        routing.num_routed = number  # a later report shows all earlier legs
        routing.choose(f"call {number}", one, names)
    return calls


CASES = {
    "pascal": {"quantum_tokens": 20, "demote_above_tokens": 250, "reserve_tokens": 64},
    "phasor": {},
    "least-kv": {},
    "shortest-queue": {},
    "memory-aware": {},
    "random": {"seed": 3},
}


@pytest.mark.parametrize("name", CASES)
def test_the_router_decides_as_the_simulator_on_the_same_views(name, monkeypatch):
    events = simulated(name, monkeypatch, CASES[name])
    calls = replayed(events, name, CASES[name])
    ours = [event for event in events if event[0] != "snapshot"]
    assert len(calls) == len(ours) >= 120
    for sim, router in zip(ours, calls, strict=True):
        assert router[0] == sim[0]
        assert router[3] == sim[3]  # reports and bookings
        assert router[4] == pytest.approx(sim[4])
        assert router[5] == sim[5]
    if name == "pascal":
        assert len([call for call in calls if call[0] == "phase" and call[2] != call[5]]) > 10


def routing_of(reports, now_s=10.0, **more):
    routing = Routing(load_placement("least-kv"), clock=lambda: now_s, **more)
    routing.update(reports)
    return routing


@pytest.mark.parametrize("report", [{}, {"number": 1}])
def test_replicas_without_a_report_are_left_out_or_go_by_queue(report):
    full = REPORT | {"used_blocks": 9}
    assert routing_of({"a": report, "b": full}).choose("1", leg(), list("ab")) == "b"
    blind = routing_of({"a": report, "b": report}, queue_length={"a": 3, "b": 1}.get)
    assert blind.choose("1", one := leg(), list("ab")) == "b"
    assert one.routed.decided_by == "no_fresh_report"
    aged = REPORT | {"age_s": 99.0}
    blind = routing_of({"a": aged | {"num_answering": 2}, "b": aged})
    assert [blind.choose(str(n), leg(), list("ab")) for n in range(4)] == ["b", "b", "a", "b"]


def test_a_repeated_choice_replaces_the_booking():
    routing, one = routing_of({"a": REPORT, "b": REPORT}), leg()
    assert [routing.choose("call", one, list("ab")) for _ in range(3)] == ["a"] * 3
    assert [len(replica.bookings) for replica in routing.views.replicas.values()] == [1, 0]


class Broken(Placement):
    name = "broken"

    def place(self, request, instances):
        return 99 if request.prompt_tokens == 3 else 1 / 0


@pytest.mark.parametrize("one", [leg(), leg(prompt_tokens=2)])
def test_a_placement_that_fails_does_not_stop_requests(one):
    routing = Routing(Broken())
    routing.update({"a": REPORT})
    assert routing.choose("1", one, ["a"]) == "a"
    assert one.routed.decided_by == "placement_failed"


def test_a_placement_with_pools_needs_roles_or_only_routes():
    for config in (RoutingConfig(placement="phasor"), MovingConfig(placement="phasor")):
        with pytest.raises(UnsupportedByEngine, match="at_prefill_end and tick, which need"):
            config.load()
    assert RoutingConfig(placement="phasor", routing_only=True).load().name == "phasor"
    assert MovingConfig(placement="phasor", roles=["prefill", "decode"]).load().name == "phasor"


class Ticking(Placement):
    """Waits for the decode instance named by the last tick; its ticks are those given."""

    name, tick_s, to = "ticking", 1.0, None

    def __init__(self, *changes):
        self.changes, self.shown = iter(changes), []

    def place(self, request, instances):
        return min(one.instance_id for one in instances if one.role != "decode")

    def at_prefill_end(self, request, instance, instances):
        return self.to

    def tick(self, now_s, instances):
        self.shown = [(one.role, one.num_migrating, len(one.decodes())) for one in instances]
        return next(self.changes, ())


def test_prefilled_requests_wait_and_ticks_set_roles_and_moves():
    move, role = Move(request_id="a", to=1), SetRole(instance=2, role="prefill")
    placement, now_s = Ticking([move, role]), [0.0]
    routing = Routing(placement, roles=["prefill", "decode"], clock=lambda: now_s[0])

    def report(number):
        now_s[0] = float(number)
        one = REPORT | {"number": number}
        last = one | {"rank": 2, "decodes": [("a", 3, 2)]}
        routing.update({"a": one | {"rank": 0}, "b": one | {"rank": 1}, "c": last})

    def choose(kind, current):
        one = leg(kind, (1, 2, 3, 4), current=current)
        return routing.choose(kind, one, list("abc")), one.routed.decided_by

    report(1)
    assert placement.shown == [("prefill", 0, 0), ("decode", 0, 0), ("both", 0, 1)]
    assert choose("prefilled", "a") == ("a", "waits")
    placement.to = 1
    assert choose("prefilled", "a") == ("b", "placement")
    report(2)
    assert placement.shown == [("prefill", 0, 0), ("decode", 1, 0), ("prefill", 1, 1)]
    assert choose("quantum", "c") == ("b", "placement")
    assert choose("quantum", "c") == ("c", "placement")  # moved once
    assert choose("prefilled", "b") == ("b", "placement")  # not of a role that hands over
