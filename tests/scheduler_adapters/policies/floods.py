"""Simulated floods by one client, and mixes of honest clients, with shares and without.

    python tests/scheduler_adapters/policies/floods.py

An honest client keeps `honest_open` requests open; a flood keeps `count` shorter ones open. `keys`
is the number of names of the flood. Requests of the flood have the least score, honest ones the
greatest, so an order by length alone serves the flood first.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

import numpy as np

from scheduler_adapters.policies.fair_shares import FairShares
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.engine.request_state import RequestState
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.views import RequestView
from scheduler_adapters.workload.arrivals import arrivals_s
from scheduler_adapters.workload.requests import Requests, make_requests

TWO_SEATS = Instance(
    latency=AffineLatency(base_s=0.004, per_token_s=2e-5), kv_blocks=4000, max_num_seqs=2
)
INSTANCE = Instance(
    latency=AffineLatency(base_s=0.013, per_token_s=1.7e-4, per_context_token_s=1.1e-7),
    kv_blocks=8000, max_num_seqs=64, max_tokens=2048,
)  # fmt: skip
Loop = Iterator[tuple[RequestView, int]]
"""Requests of one client, with their output tokens."""
SERVING: Callable[[], Policy] = pars


class Floods(EngineObserver):
    """Closed loops of several clients on one engine; every finished request is replaced."""

    def __init__(self, engine: Engine, *, until: int) -> None:
        self.engine = engine
        self.until = until
        """Number of honest requests at which the run stops."""
        self.waited_s: list[float] = []
        self.latency_s: list[float] = []
        self.served: Counter[str] = Counter()
        self.loops: dict[str, Loop] = {}
        engine.observe(self)

    def open(self, loop: Loop, size: int, at_s: float = 0.0) -> None:
        for _ in range(size):
            view, output_tokens = next(loop)
            view.arrival_s = at_s
            self.loops[view.client] = loop
            self.engine.submit(RequestState(view, output_tokens))

    def admitted(self, request: RequestView, now_s: float) -> None:
        if request.client == "honest":
            self.waited_s.append(now_s - request.arrival_s)

    def finished(self, request: RequestView, now_s: float) -> None:
        self.served[request.client] += 1
        if request.client == "honest":
            self.latency_s.append(now_s - request.arrival_s)
            if len(self.latency_s) >= self.until:
                self.engine.stop()
        self.open(self.loops[request.client], 1, now_s)


def honest(user_class: str = "") -> Loop:
    """Requests with answers of 20 to 180 tokens and the greatest score."""
    sizes = np.random.default_rng(0)
    for number in count():
        size = int(sizes.integers(20, 181))
        view = RequestView(f"h{number}", 0, 0.0, 64, 9.0, user_class, client="honest")
        yield view, size


def flood(keys: int, user_class: str = "", *, prefix: str = "key") -> Loop:
    """Requests of 100 tokens with the least score, of `keys` clients in turn."""
    for number in count():
        name = f"{prefix} {number % keys}"
        yield RequestView(f"{prefix} {number}", 0, 0.0, 8, 1.0, user_class, client=name), 100


def run(
    policy: Policy,
    instance: Instance,
    *,
    size: int,
    keys: int = 1,
    honest_open: int = 1,
    classes: tuple[str, str] = ("", ""),
    until: int = 60,
) -> tuple[float, float]:
    """Return the median latency and the longest wait of the honest client's requests, seconds.

    `classes`: of the honest client, and of the flood, which begins first.
    """
    engine = Engine(policy, instance)
    loops = Floods(engine, until=until)
    if size:
        loops.open(flood(keys, classes[1]), size)
    loops.open(honest(classes[0]), honest_open, at_s=2.0)
    engine.advance(600.0)
    waiting_s = [
        engine.load.now_s - state.view.arrival_s
        for state in engine.requests
        if state.view.client == "honest" and state.is_waiting
    ]
    latency_s = loops.latency_s or [float("inf")]
    return float(np.median(latency_s)), max([*loops.waited_s, *waiting_s])


def mix(clients: int, *, seed: int, has_long: bool = False, rate_per_s: float = 7.0) -> Requests:
    """Return requests of equal clients, with scores that are disturbed; `has_long`: client 0 has
    answers that are nine times as long."""
    random = np.random.default_rng(seed)
    client = random.integers(0, clients, 3000)
    center = np.where(has_long & (client == 0), 6.5, 4.3) if has_long else 5.0
    output_tokens = np.clip(random.lognormal(center, 1.0 - 0.3 * has_long, 3000), 1, 3000)
    return make_requests(
        prompt_tokens=np.clip(random.lognormal(5.5, 1.0, 3000), 1, 3000).astype(int),
        output_tokens=output_tokens.astype(int),
        scores=np.log(output_tokens) + random.normal(0, 0.6, 3000),
        arrival_s=arrivals_s(3000, rate_per_s=rate_per_s, seed=seed),
        client=client.astype(str),
    )


def mean_s(requests: Requests, policy: Policy) -> float:
    """Return the mean latency of a mix."""
    timeline = simulate(requests, policy, INSTANCE, loop="python")
    return float((timeline.finished_s - requests.arrival_s).mean())


CASES = {"one client": (1, ("", "")), "its size in keys, another class": (500, ("a", "b"))}


def main() -> None:
    print("| seats | honest open | flood | shares off: p50, longest wait (s) | shares on |", end="")
    print(" its share alone: p50 | ratio |\n|---|---|---|---|---|---|---|")
    for instance in (TWO_SEATS, INSTANCE):
        for honest_open in (1, 8):
            for size in (12, 64, 500):
                for case, (keys, classes) in CASES.items():
                    given = {"size": size, "keys": min(keys, size), "classes": classes}
                    half = replace(instance, max_num_seqs=instance.max_num_seqs // 2)
                    alone_s, _ = run(SERVING(), half, size=0, honest_open=honest_open)
                    off = run(SERVING(), instance, honest_open=honest_open, **given)
                    on = run(FairShares(SERVING()), instance, honest_open=honest_open, **given)
                    print(f"| {instance.max_num_seqs} | {honest_open} | {size}, {case}", end="")
                    for median_s, wait_s in (off, on):
                        print(f" | {median_s:.2f}, {wait_s:.1f}", end="")
                    print(f" | {alone_s:.2f} | {on[0] / alone_s:.2f} |", flush=True)
    print("\n| honest mix | requests/s | mean, shares off | on | ratio |\n|---|---|---|---|---|")
    for clients, has_long in ((2, False), (8, False), (32, False), (8, True)):
        for rate in (5.0, 7.0, 10.0):
            mixes = [
                mix(clients, seed=seed, has_long=has_long, rate_per_s=rate) for seed in range(3)
            ]
            off_s, on_s = (
                np.mean([mean_s(requests, make()) for requests in mixes])
                for make in (SERVING, lambda: FairShares(SERVING()))
            )
            name = f"{clients} clients" + ", one with long answers" * has_long
            print(f"| {name} | {rate:g} | {off_s:.1f} | {on_s:.1f} | {on_s / off_s:.3f} |")


if __name__ == "__main__":
    main()
