"""Shares of clients: decisions by the written-out rule, bounds under a flood, bounded memory."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.checks import check_policy
from scheduler_adapters.policies.fair_shares import FairShares, ServiceShares
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policy import Policy, load_policy
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.views import RequestView
from scheduler_adapters.workload.requests import Floats, Requests, make_requests
from tests.scheduler_adapters.engines.decisions import (
    LATENCY,
    Dice,
    assert_same_steps,
    steps_of_simulator,
    workload,
)
from tests.scheduler_adapters.planner.fake_engine import FakeEngine
from tests.scheduler_adapters.policies import floods
from tests.scheduler_adapters.policies.small_runs import INSTANCE
from tests.scheduler_adapters.simulator.any_policy import assert_equal, serve
from tests.scheduler_adapters.simulator.reference import ReferenceEngine

INNER: dict[str, Callable[[], Policy]] = {
    "fcfs": FCFS,
    "pars": lambda: pars(starve_after_s=0.3),
    "pars overtaking": lambda: pars(guard="overtaking", times=0.5, at_least=2),
    "slai": lambda: SLAI(max_tokens=64, max_resident=6, max_decodes=3),
    "pascal": lambda: Pascal(quantum_tokens=5, demote_above_tokens=40),
    "any ranks": lambda: Dice(1),
    "displacing": lambda: Dice(1, displaces=True),
}
WEIGHTS = {"paying": 3, "free": 2}


def several(seed: int, size: int = 24) -> Requests:
    """Requests of one to five clients per class, of every kind."""
    clients = np.random.default_rng(seed).integers(0, 1 + seed % 5, size).astype(str)
    return replace(workload(seed, count=size, longest=60), client=clients)


def instance(seed: int, *, seats: int | None = None) -> Instance:
    return Instance(
        latency=LATENCY, kv_blocks=40 if seed % 3 else 12, max_num_seqs=seats or 4, max_tokens=64,
        block_tokens=16, watermark_fraction=0.0,
    )  # fmt: skip


# In seed 33 two requests of one client end in one step, in another order in each engine.
@pytest.mark.parametrize(
    "seeds", [(*range(8), 33), pytest.param(range(8, 40), marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", INNER)
def test_simulator_and_planner_decide_by_the_written_out_rule(name, seeds):
    for seed in seeds:  # more requests than of which a client's usual output is the mean
        requests, one = several(seed, 96 if seed == 5 else 24), instance(seed)

        def make() -> Policy:
            return FairShares(INNER[name](), weights=WEIGHTS)

        expected = ReferenceEngine(make(), one).run(requests)
        assert_equal(serve(Engine(make(), one), requests), expected)
        assert_equal(simulate(requests, make(), one, loop="compiled"), expected)
        if name in ("pascal", "displacing"):
            continue  # an admission may displace one of its own step: only in the simulator
        limits = {"seats": 4, "budget": 64, "blocks": one.kv_blocks, "block_tokens": 16}
        planned = FakeEngine(make(), **limits).serve(requests)
        assert_same_steps(planned, steps_of_simulator(make(), requests, **limits))


@pytest.mark.parametrize("name", INNER)
def test_with_one_client_the_order_is_that_of_the_inner_policy(name):
    for seed in range(4):
        alone = replace(several(seed), client=np.full(24, "a"), user_class=np.full(24, "free"))
        assert_equal(
            simulate(alone, FairShares(INNER[name]()), instance(seed)),
            simulate(alone, INNER[name](), instance(seed)),
        )


@pytest.mark.parametrize("name", ["fcfs", "pars", "pars overtaking", "slai", "pascal"])
def test_every_law_of_scheduling_holds_with_shares(name):
    assert check_policy(lambda: FairShares(INNER[name](), weights=WEIGHTS))


@pytest.mark.parametrize("honest_open", [1, 8])
@pytest.mark.parametrize(("size", "keys"), [(12, 1), (64, 1), (500, 1), (64, 64)])
@pytest.mark.parametrize("machine", [floods.TWO_SEATS, floods.INSTANCE], ids=["2", "64 seats"])
def test_a_flood_leaves_a_client_its_share(machine, size, keys, honest_open):
    classes = ("", "") if keys == 1 else ("paying", "free")
    flood = {"size": size, "keys": keys, "classes": classes, "honest_open": honest_open}
    half = replace(machine, max_num_seqs=machine.max_num_seqs // 2)
    alone_s, alone_waits_s = floods.run(pars(), half, size=0, honest_open=honest_open)
    median_s, waits_s = floods.run(FairShares(floods.SERVING()), machine, **flood)
    assert median_s <= 2 * alone_s
    assert waits_s <= 2 * (alone_waits_s + alone_s)  # a turn of the flood's requests and its own
    if size > machine.max_num_seqs:
        assert floods.run(floods.SERVING(), machine, until=5, **flood)[0] > 5 * alone_s


def test_weights_divide_the_service_of_classes_that_are_flooded():
    engine = Engine(FairShares(FCFS(), weights={"paying": 3}), floods.TWO_SEATS)
    loops = floods.Floods(engine, until=1)
    for keys, name in ((1, "paying"), (20, "free")):
        loops.open(floods.flood(keys, name, prefix=name), 40)
    engine.advance(200.0)
    served = Counter({"paying": 0, "free": 0})
    for client, number in loops.served.items():
        served["paying" if "paying" in client else "free"] += number
    assert served["paying"] / served["free"] == pytest.approx(3, rel=0.02)
    free = [number for client, number in loops.served.items() if "free" in client]
    assert max(free) - min(free) <= 2  # they share what is their class's


@pytest.mark.parametrize(("clients", "has_long"), [(2, False), (8, False), (32, False), (8, True)])
def test_honest_clients_lose_no_mean_latency(clients, has_long):
    requests = floods.mix(clients, seed=0, has_long=has_long)
    shared_s = floods.mean_s(requests, FairShares(floods.SERVING()))
    assert shared_s <= 1.03 * floods.mean_s(requests, floods.SERVING())


def test_clients_that_left_are_forgotten_and_save_up_nothing():
    shares, numbers = ServiceShares({}), count()

    def wait(client: str) -> RequestView:
        view = RequestView("", next(numbers), 0.0, 10, client=client)
        shares.waits(view)
        return view

    def serve_one(view: RequestView) -> None:
        shares.starts(view, lambda: 5)
        shares.leaves(view)

    stays = wait("stays")
    for number in range(3000):
        serve_one(wait(f"visitor {number}"))
        if number % 10 == 0:
            before, stays = stays, wait("stays")
            serve_one(before)
    own = shares.share_of(stays)
    assert own.group is not None
    assert len(own.group.members) <= 512
    assert shares.share_of(wait("visitor 1")).served == own.served


def test_a_learned_order_inside_a_client_keeps_the_shares():
    clients = np.array(["busy"] * 40 + ["other"] * 10)
    lengths = np.tile([200, 10], 25)
    requests = make_requests(
        prompt_tokens=[10] * 50, output_tokens=lengths, score=lengths, client=clients
    )

    def ended_s(policy: Policy) -> Floats:
        return simulate(requests, policy, replace(INSTANCE, max_num_seqs=4)).finished_s

    fcfs_s, learned = ended_s(FCFS()), load_policy("virtual-token-counter", inside="pars")
    fair_s, both_s = ended_s(load_policy("virtual-token-counter")), ended_s(learned)
    is_other = clients == "other"
    assert fair_s[is_other].mean() < 0.6 * fcfs_s[is_other].mean()
    assert both_s[is_other].mean() < 0.7 * fcfs_s[is_other].mean()
    assert both_s.mean() < 0.9 * fair_s.mean()
    assert learned.name == "virtual-token-counter+pars"
    with pytest.raises(ConfigError, match="no policy named 'nobody'"):
        load_policy("virtual-token-counter", inside="nobody")
