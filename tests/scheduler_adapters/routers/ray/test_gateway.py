"""The gateway over three Ray nodes with fake engines: moves, and faults without a lost token."""

import asyncio
import json
import os
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import psutil
import pytest
from starlette.requests import Request

from benchmarks.soak.cluster import actors, prepare_ray, prompts, stream_all
from lengthwise.child_processes import free_port
from tests.scheduler_adapters.routers.ray import fake_engines
from tests.scheduler_adapters.routers.ray.fake_engines import BOARD, THINK_END, expected, prompt

ray = pytest.importorskip("ray")
serve = pytest.importorskip("ray.serve")
services = pytest.importorskip("ray._private.services")
Cluster = pytest.importorskip("ray.cluster_utils").Cluster
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]
ON_HEAD = {"num_cpus": 0, "resources": {"head": 0.01}}
NONE = {"min_replicas": 0, "initial_replicas": 0, "max_replicas": 1, "upscale_delay_s": 1e6}


class ThreeNodes:
    """A head and two nodes on loopback, one fake engine on each, and gateways on the head."""

    def __init__(self):
        from ray.serve.config import HTTPOptions

        small = {"num_cpus": 1, "object_store_memory": 80 << 20}
        head = small | {"include_dashboard": False, "resources": {"head": 1}}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self.cluster.add_node(**small) for _ in range(2)]
        ray.init(address=self.cluster.address, namespace="tests", log_to_driver=False)
        self.port = free_port()
        serve.start(http_options=HTTPOptions(host="127.0.0.1", port=self.port, location="HeadOnly"))
        board = ray.remote(fake_engines.Board).options(name=BOARD, **ON_HEAD, max_concurrency=1000)
        self.actor, self.clients = board.remote(), ThreadPoolExecutor(60)
        self.gone = set()
        """Replicas that were killed."""

    def run(self, name, engines=None, number=None, **settings):
        """Start a gateway, with bookings of its own, and engines unless they are given."""
        from scheduler_adapters.routers.ray import gateway

        fixed = {"model": "m", "think_end": THINK_END, "max_context_tokens": 10**9}
        fixed |= {"max_stale_s": 20, "accept_s": 300, "stall_s": 300, "gateways": 1}
        made = gateway.GatewayConfig(**fixed | settings)
        options = gateway.engine_options(made, report_s=0.1) | (number or {"num_replicas": 3})
        options |= {"health_check_period_s": 1, "graceful_shutdown_timeout_s": 1}
        if engines is None:
            engines = serve.deployment(fake_engines.fake_engine()).options(**options).bind()
        app = gateway.build_gateway(engines, made, fake_engines.Codec, ray_actor_options=ON_HEAD)
        serve.run(app, name=name, route_prefix=f"/{name}")

    def board(self, method, *arguments):
        return ray.get(getattr(self.actor, method).remote(*arguments), timeout=300)

    def until(self, holds):
        """Return the board's state once it is as wished."""
        end_s = time.monotonic() + 300
        while not holds(state := self.board("state")):
            assert time.monotonic() < end_s, state
        return state

    def replicas(self):
        """Return the three replicas once they are running."""

        def are_running(state):
            states = serve.status().applications["app"].deployments["FakeEngine"].replica_states
            return len(state["places"].keys() - self.gone) >= 3 == states.get("RUNNING")

        return sorted(self.until(are_running)["places"].keys() - self.gone)

    def num_legs(self):
        """Return the legs that the engines of the first application count."""
        calls = [one.record_routing_stats.remote() for one in actors("app", "FakeEngine")]
        counts = ("num_waiting", "num_reasoning", "num_answering")
        return sum(one[name] for one in ray.get(calls, timeout=300) for name in counts)

    def counts(self, app="app"):
        """Return the counts of a gateway."""
        url = f"http://127.0.0.1:{self.port}/{app}/lengthwise/routing"
        return httpx.get(url, timeout=300).json()

    def decisions(self):
        """Return how often the first gateway has moved a request at a move point, and left it."""
        counts = self.counts()["legs"]
        return counts.get("moved", 0), counts.get("stayed", 0)

    def post(self, prompt_ids, app="app", **more):
        url = f"http://127.0.0.1:{self.port}/{app}/v1/completions"
        body = {"prompt": " ".join(map(str, prompt_ids))} | more
        return httpx.post(url, json=body, timeout=300)

    def stream(self, prompt_ids, app="app"):
        """Return the tokens and the finish reason of a streamed request."""
        answer = self.post(prompt_ids, app, stream=True)
        events = [json.loads(line[6:]) for line in answer.text.split("\n") if "{" in line]
        choices = [event["choices"][0] for event in events]
        tokens = [int(token) for one in choices for token in one["text"].split()]
        return tokens, choices[-1]["finish_reason"]

    def begin(self, key, number=6, app="app", **more):
        """Begin streams that will be held; return prompts and futures, and places by key."""
        settings = {"total": 40, "hold_at": 5} | more
        sent = [prompt(key + one, **settings) for one in range(number)]
        streams = {one[4]: self.clients.submit(self.stream, one, app) for one in sent}
        held = self.until(lambda state: streams.keys() <= state["held"].keys())["held"]
        return [(one, streams[one[4]]) for one in sent], {one: held[one] for one in streams}

    def finish(self, begun):
        """Release requests; return their legs after the first, as (key, replica, kind, decider)."""
        keys = {one[4] for one, _ in begun}
        self.board("release", list(keys))
        for one, stream in begun:
            assert stream.result(300) == (expected(one), "stop")
        return [
            leg for leg in self.board("state")["legs"] if leg[0] in keys and leg[2] != "arrival"
        ]

    def until_placed(self, key, wished, app="app", **more):
        """Send requests until the last leg of one is as wished: the router has the reports."""
        while True:
            self.stream(prompt(key, **{"total": 2} | more), app)
            *_, last = [leg for leg in self.board("state")["legs"] if leg[0] == key]
            if wished(*last[1:]):
                return


def patient(look):
    """Return a look-up that fails only after five minutes."""

    def repeated(*arguments):
        end_s = time.monotonic() + 300
        while True:
            try:
                return look(*arguments)
            except RuntimeError:
                if time.monotonic() > end_s:
                    raise
                time.sleep(0.1)

    return repeated


@pytest.fixture(scope="module")
def nodes():
    prepare_ray()
    services.get_node, Cluster._wait_for_node.__defaults__ = patient(services.get_node), (300,)
    made = ThreeNodes()
    try:
        made.run("app")
        yield made
    finally:
        serve.shutdown()
        ray.shutdown()
        made.cluster.shutdown()
        made.clients.shutdown(wait=False)


POISONS = [{"prompt": ids} for ids in ([-1], [10_000], [1.5], ["a"], [[1]], [1] * 4096)]
POISONS += [{"prompt": "1", "temperature": one} for one in (float("nan"), -1, "0", True)]
POISONS += [[], None, 7, {}, {"prompt": "1", "kv_transfer_params": {}}, {"prompt": "1 " * 200_000}]


class SlowCodec(fake_engines.Codec):
    """Encodes once the event loop has taken a turn since."""

    has_begun, may_end = threading.Event(), threading.Event()

    def encode(self, text):
        self.has_begun.set()
        return super().encode(text) if self.may_end.wait(60) else []


def test_no_poisoned_body_reaches_an_engine_or_holds_the_loop():
    from scheduler_adapters.routers.ray import gateway

    made = gateway.PhaseGateway.__new__(gateway.PhaseGateway)  # without engines
    made.config, made.codec = gateway.GatewayConfig(model="m"), SlowCodec("m")
    made.readers, made.counts = ThreadPoolExecutor(1), Counter()

    async def asked(body):
        async def receive():
            return {"type": "http.request", "body": json.dumps(body).encode()}

        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
        answer = await made(Request(scope, receive))
        return answer.status_code, json.loads(answer.body)["error"]

    async def run():
        long = asyncio.create_task(asked({"prompt": "1 " * 4096}))
        while not made.codec.has_begun.is_set():
            await asyncio.sleep(0.01)
        made.codec.may_end.set()
        return await long, [await asked(body) for body in POISONS]

    (_, error), answers = asyncio.run(run())
    assert "prompt of 4096 tokens" in error["message"]
    for body, (status, error) in zip(POISONS, answers, strict=True):
        assert (error["type"], error["code"]) == ("invalid_request_error", status), body
        assert status == 413 or error["param"] in f"body prompt {body}"
    assert [status for status, _ in answers] == [400] * (len(POISONS) - 1) + [413]


def test_tokens_and_usage_are_those_of_one_engine(nodes):
    tokens = expected(one := prompt(1, thinking=10, total=20))
    assert nodes.stream(one) == (tokens, "stop")
    answer = nodes.post(one, max_tokens=12).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 10}
    answer = nodes.post(one, stop=f"{tokens[3]} ").json()
    assert answer["choices"][0]["text"].split() == list(map(str, tokens[:3]))
    assert answer["usage"]["completion_tokens"] == 4
    assert nodes.post(one, n=2).status_code == 400


def test_new_requests_avoid_late_readers_and_answers_thoughts(nodes):
    *others, target = nodes.replicas()
    calm = {"paced_for_s": 1e6}
    full = {name: calm | {"used_blocks": 900} for name in others}
    # Of equals the first is chosen: the last one only once the router has the others' reports.
    nodes.board("set_reports", full | {target: calm})
    nodes.until_placed(100, lambda replica, *_: replica == target)
    nodes.board("set_reports", full | {target: {"paced_for_s": -1.0}})
    nodes.until_placed(101, lambda replica, *_: replica != target)
    moved = target, "phase_change"
    fuller = calm | {"used_blocks": 950, "total_blocks": 10_000, "num_thinking": 50}
    nodes.board("set_reports", full | {target: fuller})
    begun, held = nodes.begin(110, thinking=10)
    assert target not in held.values()
    thinks = {name: report | {"num_thinking": 90} for name, report in full.items()}
    nodes.board("set_reports", thinks | {target: fuller})
    nodes.until_placed(102, lambda *last: last[:2] == moved, thinking=2, total=4)
    assert [leg[1:3] for leg in nodes.finish(begun)] == [moved] * len(begun)
    nodes.board("set_reports", {})


def test_a_target_dead_after_the_hand_over_changes_no_token(nodes):
    *others, target = nodes.replicas()
    calm = {"paced_for_s": 1e6}
    free = calm | {"used_blocks": 950, "total_blocks": 10_000, "num_thinking": 50}
    reports = {name: calm | {"used_blocks": 900, "num_thinking": 90} for name in others}
    nodes.board("set_reports", reports | {target: free})
    # An arrival there shows that its own report is not known yet.
    wished = target, "phase_change"
    nodes.until_placed(320, lambda *last: last[:2] == wished, thinking=2, total=4)
    moved, stayed = nodes.decisions()
    begun, _ = nodes.begin(300, thinking=10, hold_at=12)
    nodes.until(lambda _: sum(nodes.decisions()) == moved + stayed + 6)
    moves = nodes.decisions()[0] - moved
    assert moves > 0  # the placement may leave some where they are
    keys = {one[4] for one, _ in begun}
    nodes.until(
        lambda state: sum(leg[0] in keys and leg[1:3] == wished for leg in state["legs"]) == moves
    )
    os.kill(nodes.board("state")["places"][target][0], signal.SIGKILL)
    nodes.gone.add(target)
    kinds = [leg[2] for leg in nodes.finish(begun)]
    assert sorted(kinds) == ["phase_change"] * moves + ["resumed"] * moves
    nodes.board("set_reports", {})


def test_many_streams_at_once_lose_and_double_no_token(nodes):
    url = f"http://127.0.0.1:{nodes.port}/app/v1/completions"
    assert asyncio.run(stream_all(url, prompts(range(-60, 0)), 60)) == {"exact": 60}


def test_two_gateways_share_a_burst_without_a_scoring_service(nodes):
    engines = serve.get_deployment_handle("FakeEngine", "app")
    assert len(nodes.replicas()) == 3
    nodes.run("second", engines, stall_s=8, scorer="service:127.0.0.1:1")
    # A request has one block before and after it has started.
    settings = {"length": 15, "hold_at": 1}
    first = nodes.clients.submit(nodes.begin, 800, 15, **settings)
    second, there = nodes.begin(820, 15, "second", **settings)
    begun, here = first.result(300)
    places = [*here.values(), *there.values()]
    # Reports of the other gateway's requests are late on a busy machine, never for a whole burst.
    assert max(map(places.count, places)) < len(places) / 2
    nodes.finish(begun + second)
    report = nodes.counts("second")
    assert "scored" not in report["scores"]
    assert sum(report["scores"].values()) == report["requests"]["finished"] == 15


def test_without_fresh_reports_the_shortest_queue_decides(nodes):
    nodes.board("set_reports", {name: {"age_s": 99.0} for name in nodes.replicas()})
    nodes.until_placed(600, lambda *last: last[2] == "no_fresh_report")
    begun, held = nodes.begin(610)
    legs = nodes.board("state")["legs"]
    assert {leg[3] for leg in legs if leg[0] in held} == {"no_fresh_report"}
    nodes.finish(begun)
    nodes.board("set_reports", {})
    nodes.until_placed(700, lambda *last: last[2] == "placement")


@pytest.mark.parametrize(("key", "how"), [(900, signal.SIGSTOP), (950, signal.SIGKILL)])
def test_a_replica_that_hangs_or_dies_in_a_stream_loses_no_token(nodes, key, how):
    begun, held = nodes.begin(key, app="second")
    pid = nodes.board("state")["places"][held[key]][0]
    os.kill(pid, how)
    try:
        legs = nodes.finish(begun)
    finally:
        if how == signal.SIGSTOP:
            os.kill(pid, signal.SIGCONT)
    # On a busy machine a stream elsewhere may stall as well, and be resumed.
    assert {leg[2] for leg in legs} == {"resumed"}
    last = {leg[0]: leg[1] for leg in legs}
    there = {one for one, replica in held.items() if replica == held[key]}
    assert there <= last.keys()
    assert held[key] not in {last[one] for one in there}
    nodes.gone |= {held[key]} if how == signal.SIGKILL else set()


def test_a_killed_gateway_fails_its_clients_and_another_goes_on(nodes):
    nodes.run("twins", serve.get_deployment_handle("FakeEngine", "app"), gateways=None)
    begun, _ = nodes.begin(1200, app="twins")
    gateways = nodes.board("state")["gateways"]
    ray.kill(ray.get_actor(gateways[1200], namespace="serve"))
    rest = [one for one in begun if gateways[one[0][4]] != gateways[1200]]
    assert all(stream.exception(300) for one, stream in begun if (one, stream) not in rest)
    nodes.until(lambda _: nodes.num_legs() == len(rest))

    def is_served(_):
        # Until Ray has noticed the death, it may choose the dead gateway.
        with suppress(httpx.TransportError):
            return nodes.post(prompt(1300), "twins").status_code == 200

    nodes.until(is_served)
    assert not nodes.finish(rest)


# After the two gateways are started: a controller that has just restarted may fail to deploy.
def test_a_killed_controller_disturbs_no_stream(nodes):
    begun, _ = nodes.begin(1000)
    ray.kill(ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve"), no_restart=False)
    nodes.finish(begun)
    assert nodes.stream(prompt(1100))[1] == "stop"

    def is_back(_):
        with suppress(ray.exceptions.RayError):
            return "app" in serve.status().applications

    nodes.until(is_back)


def test_a_removed_node_loses_and_doubles_no_token(nodes):
    begun, held = nodes.begin(1400, 9)
    places = {name: nodes.board("state")["places"][name] for name in held.values()}
    node = next(one for one in nodes.nodes if one.node_id in {node for _, node in places.values()})
    nodes.cluster.remove_node(node, allow_graceful=False)
    lost = [name for name in held.values() if places[name][1] == node.node_id]
    with suppress(psutil.NoSuchProcess):  # its engine ends a moment after the node
        psutil.wait_procs([psutil.Process(places[lost[0]][0])], timeout=300)
    assert [leg[2] for leg in nodes.finish(begun)] == ["resumed"] * len(lost)


def test_without_replicas_clients_are_answered_at_the_deadline(nodes):
    nodes.run("empty", number={"autoscaling_config": NONE}, accept_s=0.5)
    answer = nodes.post(prompt(1500), app="empty")
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "service_unavailable")


def test_pools_hand_over_each_prefill_and_keep_each_token_once(nodes):
    pools = {"placement": "phasor", "roles": ["prefill", "decode", "decode"], "hand_over_kv": True}
    number = {"num_replicas": 3, "ray_actor_options": {"num_cpus": 0}}
    nodes.run("pools", number=number, move_every_tokens=7, **pools)
    nodes.until_placed(1600, lambda replica, kind, decided_by: kind == "prefilled", "pools")
    sent = [prompt(1601 + number, thinking=5, total=30) for number in range(12)]
    streams = list(nodes.clients.map(lambda one: nodes.stream(one, "pools"), sent))
    assert streams == [(expected(one), "stop") for one in sent]
    places = {}
    for key, replica, kind, decided_by in nodes.board("state")["legs"]:
        if key > 1600:
            assert decided_by == "placement"
            places.setdefault(kind, set()).add(replica)
    assert places.keys() == {"arrival", "prefilled", "quantum"}
    assert len(places["arrival"]) == 1
    assert not places["arrival"] & (places["prefilled"] | places["quantum"])
