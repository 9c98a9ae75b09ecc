"""Ten thousand streams through gateway and router to three fake engines, each token checked.

    python -m benchmarks soak-cluster                            500 streams open at a time
    python -m benchmarks soak-cluster --streams 300 --rounds 2 --gateways 2
    python -m benchmarks soak-cluster --address 10.77.0.1:6379   on a cluster of several machines

Half of the streams think first, and may move. Prints the gateway's memory after each fifth of them.
Then shorter rounds run in turn under our router with least-kv and under Ray's own, without moves:
CPU time of the gateway per token, and tokens per second. Last the gateway is killed: seconds until
the next answer. Exit status 1: a token was lost or doubled.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import aiohttp
import psutil

from lengthwise.child_processes import free_port
from tests.scheduler_adapters.routers.ray.fake_engines import (
    THINK_END,
    Codec,
    expected,
    next_token,
    prompt as prompt_of,
)

ROOT = str(Path(__file__).resolve().parents[2])
TOKENS, OF_A_MESSAGE, PACE_S = 40, 4, 0.02
LIMITS = {"accept_s": 300.0, "request_s": 3600.0, "max_context_tokens": 8192}


def streaming_engine():
    """Return the class of a deployment that streams messages of a few tokens."""
    from scheduler_adapters.routers.ray.replica import RayReplica
    from scheduler_adapters.routers.replica_load import ReplicaLoad

    class StreamingEngine(RayReplica):
        def __init__(self):
            super().__init__(ReplicaLoad(total_blocks=100_000))

        async def tokens(self, leg):
            _, thinking, total = leg.token_ids[:3]
            context, finish = list(leg.token_ids), None
            while finish is None:
                await asyncio.sleep(PACE_S)
                new = []
                while finish is None and len(new) < OF_A_MESSAGE:
                    context.append(next_token(context, thinking, total, leg.prompt_tokens))
                    new.append(context[-1])
                    finish = "stop" if new[-1] in leg.stop_token_ids else None
                yield new, finish

    return StreamingEngine


def prompts(keys):
    """Return fake prompts; every second one thinks."""
    return [prompt_of(key, thinking=key % 2 * 15, total=TOKENS) for key in keys]


async def stream_all(url, sent, num_open, done=lambda number: None, at_s=None):
    """Stream a completion per prompt; count outcomes: exact, wrong, or the kind of an error.

    `at_s`: times of the requests, with as many of them open as there are.
    """
    outcomes, waiting, begun_s = Counter(), enumerate(sent), time.monotonic()

    async def client(session):
        for number, one in waiting:
            if at_s is not None:
                await asyncio.sleep(begun_s + at_s[number] - time.monotonic())
            body = {"prompt": " ".join(map(str, one)), "stream": True}
            try:
                async with session.post(url, json=body) as answer:
                    lines = (await answer.text()).split("\n")
                text = "".join(json.loads(x[6:])["choices"][0]["text"] for x in lines if "{" in x)
                exact = list(map(int, text.split())) == expected(one)
                outcomes["exact" if exact else "wrong"] += 1
            except (aiohttp.ClientError, KeyError, ValueError) as error:
                outcomes[type(error).__name__] += 1
            done(outcomes.total())

    limits = {"connector": aiohttp.TCPConnector(limit=0), "timeout": aiohttp.ClientTimeout(None)}
    async with aiohttp.ClientSession(**limits) as session:
        await asyncio.gather(*(client(session) for _ in range(num_open)))
    return outcomes


class Application:
    """Three engines and a gateway, under our router or under Ray's own."""

    def __init__(self, name, port, seats, placement="pascal", *, ours=True):
        from ray import serve

        from scheduler_adapters.routers.ray import gateway

        config = gateway.GatewayConfig(
            model="m", think_end=THINK_END, placement=placement, **LIMITS
        )
        options = {"num_replicas": 3, "ray_actor_options": {"num_cpus": 0.3}}
        options |= gateway.engine_options(config) if ours else {}
        options["max_ongoing_requests"] = seats["max_ongoing_requests"]
        engines = serve.deployment(streaming_engine()).options(**options).bind()
        serve.run(gateway.build_gateway(engines, config, Codec, **seats), name=name,
                  route_prefix=f"/{name}")  # fmt: skip
        self.name, self.url = name, f"http://127.0.0.1:{port}/{name}/v1/completions"
        self.gateways = [psutil.Process(pid) for pid in self.each("PhaseGateway", getpid)]

    def each(self, deployment, answer):
        """Return what `answer` gives in each replica of a deployment."""
        import ray

        calls = [one.__ray_call__.remote(answer) for one in actors(self.name, deployment)]
        return ray.get(calls, timeout=60)

    def round(self, keys, num_open, done=lambda number: None):
        """Return outcomes, the gateway's CPU microseconds per token, and tokens per second."""
        begun_s, spent_s = time.monotonic(), self.cpu_s()
        outcomes = asyncio.run(stream_all(self.url, prompts(keys), num_open, done))
        tokens, spent_s = TOKENS * len(keys), self.cpu_s() - spent_s
        return outcomes, 1e6 * spent_s / tokens, tokens / (time.monotonic() - begun_s)

    def cpu_s(self):
        return sum(sum(one.cpu_times()[:2]) for one in self.gateways)


def actors(app, deployment):
    """Return the living replicas of a deployment."""
    import ray

    names = [one["name"] for one in ray.util.list_named_actors(all_namespaces=True)]
    mine = [name for name in names if f"::{app}#{deployment}" in name]
    return [ray.get_actor(name, namespace="serve") for name in mine]


def getpid(replica):
    return os.getpid()


def host(replica):
    import ray

    return ray.util.get_node_ip_address()


def soak(port, settings):
    """Run the streams, the rounds in turn, and the kill; return the outcomes."""
    seats = {"max_ongoing_requests": 4 * settings.open}
    ours = Application("ours", port, seats | {"num_replicas": settings.gateways})
    print("engines on", sorted(ours.each("StreamingEngine", host)))
    step = max(1, settings.streams // 5)

    def done(number):
        if number % step == 0:
            memory_mb = [round(one.memory_info().rss / 2**20) for one in ours.gateways]
            print(f"{number:>6} streams: gateways {memory_mb} MB", flush=True)

    wrong, cpu_us, rate = ours.round(range(settings.streams), settings.open, done)
    print(f"{dict(wrong)}, {cpu_us:.0f} us of the gateway per token, {rate:.0f} tokens/s")
    apps = {
        name: Application(name, port, seats, "least-kv", ours=name == "least-kv")
        for name in ("least-kv", "own-router")
        if settings.rounds
    }
    found = {name: [] for name in apps}
    for first in range(0, 400 * settings.rounds, 400):
        for name, app in apps.items():
            outcomes, *figures = app.round(range(first, first + 400), 100)
            found[name].append(figures)
            wrong += outcomes
    for name, rounds in found.items():
        cpu_us, rates = (
            [round(number) for number in column] for column in zip(*rounds, strict=True)
        )
        print(f"{name:10} {median(cpu_us):.0f} us per token {sorted(cpu_us)}, "
              f"{median(rates):.0f} tokens/s {sorted(rates)}")  # fmt: skip
    ours.gateways[0].kill()
    killed_s, tries = time.monotonic(), 0
    while not asyncio.run(stream_all(ours.url, prompts([1]), 1))["exact"]:
        tries += 1
    print(
        f"a gateway killed: next answer after {time.monotonic() - killed_s:.2f} s, {tries} errors"
    )
    return wrong


def prepare_ray():
    """Set the environment so that Ray stays on loopback, and waits for its own processes."""
    os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    os.environ |= {"PYTHONPATH": ROOT, "RAY_gcs_server_port_wait_time_s": "300"}
    for name in ("READY", "HEALTH"):
        os.environ[f"RAY_SERVE_PROXY_{name}_CHECK_TIMEOUT_S"] = "300"
    from ray.serve._private import api, client

    api.HTTP_PROXY_TIMEOUT = client.HTTP_PROXY_TIMEOUT = 300


@contextmanager
def connected(address, num_cpus=4):
    """Ray and its proxy, on a node of our own or on a running cluster; yields the port."""
    prepare_ray()
    import ray
    from ray import serve
    from ray.serve.config import HTTPOptions

    local = {"num_cpus": num_cpus, "include_dashboard": False} if address == "local" else {}
    ray.init(address=address, log_to_driver=False, **local)
    try:
        port = free_port()
        serve.start(http_options=HTTPOptions(host="127.0.0.1", port=port))
        yield port
    finally:
        serve.shutdown()
        ray.shutdown()


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--open", type=int, default=500, help="streams open at a time")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each router, in turn")
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--address", default="local", help="HOST:PORT of a running cluster")
    settings = parser.parse_args()
    with connected(settings.address) as port:
        outcomes = soak(port, settings)
    return int(outcomes["exact"] < outcomes.total())


if __name__ == "__main__":
    sys.exit(main())
