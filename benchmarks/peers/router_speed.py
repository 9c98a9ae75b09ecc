"""Requests per second by our router and by Ray's default one, on the same application in turn.

    python -m benchmarks router-speed [ROUNDS]

Three replicas that answer at once, one caller, 16 requests at a time, 600 in a round.
"""

import asyncio
import sys
from statistics import median
from time import perf_counter

from ray import serve

from benchmarks.soak.cluster import connected
from scheduler_adapters.routers.legs import Leg
from scheduler_adapters.routers.ray.gateway import engine_options
from scheduler_adapters.routers.replica_load import ReplicaLoad
from scheduler_adapters.routers.routing import MovingConfig


class Echo:
    """A replica that counts legs as an engine does, and answers at once."""

    def __init__(self):
        self.load = ReplicaLoad(total_blocks=10_000)

    async def record_routing_stats(self):
        return self.load.report()

    async def serve(self, leg):
        self.load.end(self.load.begin(leg))


async def requests_per_s(handle, requests=600, at_once=16):
    places, ids = asyncio.Semaphore(at_once), tuple(range(200))
    sizes = {"token_ids": ids, "prompt_tokens": 200, "max_tokens": 9, "arrival_s": 0.0}

    async def one(number):
        async with places:
            await handle.serve.remote(Leg(request_id=str(number), is_thinking=True, **sizes))

    began_s = perf_counter()
    await asyncio.gather(*map(one, range(requests)))
    return requests / (perf_counter() - began_s)


async def compare(handles, rounds):
    found = {name: [] for name in handles}
    for number in range(rounds + 1):
        for name in sorted(handles, reverse=bool(number % 2)):
            found[name].append(await requests_per_s(handles[name]))
    measured = {name: column[1:] for name, column in found.items()}  # the first opens connections
    for name, column in measured.items():
        print(f"{name:>8} {median(column):6.0f} requests/s")
    ratios = [ours / default for ours, default in zip(*measured.values(), strict=True)]
    print(f"   ratio {median(ratios):6.3f} [{min(ratios):.3f}, {max(ratios):.3f}], {rounds} rounds")


def main(rounds):
    ours = engine_options(MovingConfig(placement="pascal", max_stale_s=10))
    options = {"ours": ours, "default": {"max_ongoing_requests": ours["max_ongoing_requests"]}}
    handles = {}
    with connected("local", num_cpus=8):
        for name, more in options.items():
            app = serve.deployment(Echo).options(num_replicas=3, **more).bind()
            handles[name] = serve.run(app, name=name, route_prefix=f"/{name}")
        asyncio.run(compare(handles, rounds))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 9)
