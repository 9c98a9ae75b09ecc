"""A real gateway and router before three engines that run the simulator in real time.

    LENGTHWISE_DATA=... python -m benchmarks cluster-prediction [NUMBER OF REQUESTS]

The first 350 of Azure's conversations at their own times; a fifth of each output counts as
reasoning. Three systems in turn: least-KV and FCFS, PASCAL, and least-KV and PARS with true scores.
Each is predicted by `replay-cluster` on the trace before it runs.

Criterion, set before the first run: a change against least-KV and FCFS is the predicted one within
15%. It is judged in the time to the first answering token, PASCAL by p99, PARS by the mean. Exit
status 1: it is not met.
"""

import asyncio
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np

from benchmarks.soak.cluster import LIMITS, connected, stream_all
from benchmarks.validation.replay_cluster import ReplayConfig, figure_errors, simulated
from scheduler_adapters.policy import load_policy
from scheduler_adapters.routers.ray.replica import RayReplica
from scheduler_adapters.routers.replica_load import ReplicaLoad
from scheduler_adapters.routers.replica_views import COUNTS
from scheduler_adapters.simulator.cluster.cluster_instance import ClusterInstance
from scheduler_adapters.simulator.engine.engine import Engine
from scheduler_adapters.simulator.engine.request_state import RequestState
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.timeline.timeline import read_timeline
from scheduler_adapters.views import Phase, RequestView
from scheduler_adapters.workload.data_folder import data_file
from scheduler_adapters.workload.requests import make_requests
from scheduler_adapters.workload.traces import read_trace
from tests.scheduler_adapters.routers.ray.fake_engines import THINK_END, Codec, next_token, prompt

TRACE = "azure-llm-2023/AzureLLMInferenceTrace_conv_first_half.csv"
OF_A_MESSAGE, LONGEST_PROMPT, REASONING = 8, 3000, 0.2
COMMON = {"profile": "llama-3-8b@l40s", "kv_blocks": 900, "host_gb_per_s": 25.0}
QUANTUM = {"quantum_tokens": 50}
SYSTEMS = {
    "least-kv, fcfs": {"placement": "least-kv", "policy": "fcfs"},
    "pascal": {"placement": "pascal", "policy": "pascal", "placement_settings": QUANTUM,
               "settings": QUANTUM | {"offload": True}},
    "least-kv, pars": {"placement": "least-kv", "policy": "pars"},
}  # fmt: skip
BASE = "least-kv, fcfs"
JUDGED = {"pascal": "first_answer_s.p99", "least-kv, pars": "first_answer_s.mean"}


class Tokens(EngineObserver):
    """Tokens of each request by the end of their step; several make one message."""

    def __init__(self):
        self.new, self.due = {}, []

    def emitted(self, request, num_tokens, now_s):
        number = request.number
        self.new[number] = self.new.get(number, 0) + num_tokens
        answers = request.phase is Phase.ANSWERING
        first = request.thinking_tokens + 1 if answers else 1
        if request.generated_tokens == first or self.new[number] >= OF_A_MESSAGE:
            self.flush(request, now_s)

    def flush(self, request, now_s):
        self.due.append((now_s, request.number, self.new.pop(request.number, 0)))

    thinking_ended = finished = flush


class SimulatedEngine(RayReplica):
    """A replica that is a simulated instance in real time."""

    def __init__(self, config):
        super().__init__(ReplicaLoad(total_blocks=1))
        self.events, self.start_s = Tokens(), time.monotonic()
        policy, observers = load_policy(config.policy, **config.settings), [self.events]
        self.engine = Engine(policy, config.instance(), observers=observers)
        watch = config.loaded_placement().watch
        self.instance = ClusterInstance(self.engine, watch, watches_prefills=False)
        self.messages, self.clock, self.wake = {}, None, asyncio.Event()

    def now_s(self):
        return time.monotonic() - self.start_s

    async def run(self):
        while True:
            next_s = self.engine.advance(self.now_s())
            due = self.events.due
            while due and due[0][0] <= self.now_s():
                _, number, tokens = due.pop(0)
                if number in self.messages:
                    self.messages[number].put_nowait(tokens)
            wait_s = min(next_s, due[0][0] if due else next_s) - self.now_s()
            self.wake.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.wake.wait(), min(max(wait_s, 0.001), 60))

    async def tokens(self, leg):
        self.clock = self.clock or asyncio.create_task(self.run())
        _, thinking, total = leg.token_ids[:3]
        engine, done, now_s = self.engine, leg.generated_tokens, self.now_s()
        thought = min(thinking, total - 1)
        arrival_s = max(0.0, leg.arrival_s - self.start_s)
        number = len(engine.requests)
        view = RequestView(leg.request_id, number, arrival_s, leg.prompt_tokens, leg.score)
        carried = RequestState(replace(view), total, thought)
        carried.joins_s, carried.other_token_s = now_s, (now_s,) * done
        state = RequestState(view, total, thought)
        self.instance.submit(number, state, carried if done else None)
        queue = asyncio.Queue()
        self.messages[number] = queue
        self.wake.set()
        context = list(leg.token_ids)
        try:
            while len(context) < leg.prompt_tokens + total:
                new = []
                for _ in range(await queue.get()):
                    new.append(next_token(context, thinking, total, leg.prompt_tokens))
                    context.append(new[-1])
                if new:
                    is_end = len(context) == leg.prompt_tokens + total
                    yield new, "stop" if is_end else None
        finally:
            del self.messages[number]
            if not state.is_gone:
                engine.withdraw(state)
                self.wake.set()

    async def record_routing_stats(self):
        self.instance.renew_view()
        view, base = self.instance.view, self.load.report()
        counts = {name: int(getattr(view, name)) for name in COUNTS}
        watched = self.instance.counts
        read_s = inf if watched is None else watched.paced_until_s(for_later=True)
        read_s -= self.now_s()
        kept = {name: base[name] for name in ("number", "arrived")}
        return kept | counts | {"paced_for_s": read_s}


async def true_length(text):
    return float(text.split(maxsplit=3)[2]), ()


def serve_trace(name, config, requests, port, folder):
    """Serve the requests at their times by one system; return the gateway's record."""
    from ray import serve

    from scheduler_adapters.routers.ray import gateway

    class ScoredGateway(gateway.PhaseGateway):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.scores.of = true_length

    record = folder / f"{config.placement}-{config.policy}.jsonl"
    made = gateway.GatewayConfig(
        **{"model": "m", "think_end": THINK_END, "record": str(record), **LIMITS},
        placement=config.placement,
        settings=config.placement_settings,
    )
    options = {"num_replicas": 3, "ray_actor_options": {"num_cpus": 0.3}}
    options |= gateway.engine_options(made)
    engines = serve.deployment(SimulatedEngine).options(**options).bind(config)
    app = serve.deployment(ScoredGateway).options(max_ongoing_requests=1000)
    serve.run(app.bind(engines, made, Codec), name="app", route_prefix="/app")
    sizes = zip(
        requests.prompt_tokens, requests.reasoning_tokens, requests.output_tokens, strict=True
    )
    sent = [prompt(key, thinking=int(t), total=int(n), length=int(p))
            for key, (p, t, n) in enumerate(sizes)]  # fmt: skip
    for one in sent:
        one[-1] = one[-1] if one[1] else THINK_END  # an ended thought: the model does not think
    url = f"http://127.0.0.1:{port}/app/v1/completions"
    outcomes = asyncio.run(stream_all(url, sent, len(sent), at_s=requests.arrival_s))
    print(f"{name}: {dict(outcomes)}")
    assert set(outcomes) == {"exact"}
    while not record.exists() or record.read_text().count("\n") < len(sent):
        time.sleep(0.1)
    serve.delete("app")
    return read_timeline(record)


def azure(count=350):
    """Return the first requests of the trace."""
    trace = read_trace(data_file(TRACE), limit=count)
    outputs = np.maximum(2, trace.output_tokens)
    return make_requests(
        prompt_tokens=np.clip(trace.prompt_tokens, 6, LONGEST_PROMPT),
        output_tokens=outputs,
        reasoning_tokens=np.floor(REASONING * outputs),
        arrival_s=(trace.arrival_s - trace.arrival_s[0]),
        scores=outputs,
    )


def main():
    requests = azure(*map(int, sys.argv[1:]))
    systems = {name: ReplayConfig(record=Path(), **COMMON, **own) for name, own in SYSTEMS.items()}
    predicted = {name: simulated(config, requests) for name, config in systems.items()}
    measured = {}
    with connected("local") as port, tempfile.TemporaryDirectory() as folder:
        for name, config in systems.items():
            measured[name] = serve_trace(name, config, requests, port, Path(folder))
            print("figure                 measured  predicted    error   replayed from the record")
            replay = figure_errors(measured[name], simulated(config, measured[name].requests))
            rows = figure_errors(measured[name], predicted[name])
            for row, again in zip(rows, replay, strict=True):
                print("{:22} {:8.3f} {:10.3f} {:+8.1%}".format(*row), f"{again.error:+10.1%}")
    is_met = True
    for name, figure in JUDGED.items():
        both = [measured[name], predicted[name]], [measured[BASE], predicted[BASE]]
        (real, ours), (real_base, base) = (
            next(row[1:3] for row in figure_errors(*pair) if row.figure == figure) for pair in both
        )
        is_met &= abs(real / real_base / (ours / base) - 1) <= 0.15
        print(f"{name}, {figure} over {BASE}: {real / real_base:.3f}, predicted {ours / base:.3f}")
    return int(not is_met)


if __name__ == "__main__":
    sys.exit(main())
