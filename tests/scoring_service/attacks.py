"""Hostile clients of the scoring service, each bounded and on loopback: for tests and `make soak`.

An attack is a function of a target and a number of seconds; it ends by itself and leaves nothing
behind on its own side. `honest` asks meanwhile what a scheduler asks, and counts.
"""

import itertools
import json
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lengthwise.bundle import ModelBundle
from lengthwise.child_processes import started
from lengthwise.errors import ScoringError
from scoring_service.client import ScoringClient
from scoring_service.proto import scoring_pb2 as pb
from scoring_service.proto.status import CLIENT_KEY
from scoring_service.server import oip
from scoring_service.server.reflection import PATHS
from scoring_service.server.rpc import SERVICE
from tests.scoring_service.waiting import no_messages

Attack = Callable[[str, float], object]


@contextmanager
def serving(bundle: ModelBundle, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process and its HOST:PORT."""
    command = [sys.executable, "-m", "scoring_service", "serve", "--bundle", str(bundle.path)]
    ready = f"serving tiny revision {bundle.manifest.revision} on 127.0.0.1:"
    with started([*command, "--address", "127.0.0.1:0", *options], ready=ready) as (process, line):
        yield process, line.split()[-1]


def open_channel(target: str) -> grpc.Channel:
    """A connection of its own; gRPC would share one among the channels of a process."""
    return grpc.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)])


@dataclass
class Honest:
    """What honest callers met."""

    scored: int = 0
    failed: int = 0
    errors: list[str] = field(default_factory=list)
    score_s: list[float] = field(default_factory=list)
    health_s: list[float] = field(default_factory=list)

    @property
    def slowest_health_s(self) -> float:
        return max(self.health_s, default=0.0)


@contextmanager
def honest_callers(target: str, *, timeout_s: float, pause_s: float = 0.01) -> Iterator[Honest]:
    """A scheduler and an orchestrator that ask until the block ends; both are connected before."""
    seen, stopped = Honest(), threading.Event()
    connected = threading.Barrier(3)

    def ask() -> None:
        with ScoringClient(target, timeout_s=timeout_s) as client:
            client.score("essay")
            connected.wait(60)
            for number in itertools.count():
                begun_s = time.monotonic()
                try:
                    client.score(f"essay {number}")
                    seen.scored += 1
                    seen.score_s.append(time.monotonic() - begun_s)
                except ScoringError as error:
                    seen.failed += 1
                    seen.errors.append(str(error)[:200])
                if stopped.wait(pause_s):
                    return

    def probe() -> None:
        with open_channel(target) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            check(health_pb2.HealthCheckRequest(), timeout=60)
            connected.wait(60)
            while not stopped.wait(pause_s):
                begun_s = time.monotonic()
                check(health_pb2.HealthCheckRequest(), timeout=60)
                seen.health_s.append(time.monotonic() - begun_s)

    with ThreadPoolExecutor(2) as pool:
        callers = [pool.submit(ask), pool.submit(probe)]
        try:
            connected.wait(60)
            yield seen
        finally:
            stopped.set()
        for caller in callers:
            caller.result(120)


def stalled_calls(target: str, seconds: float, *, calls: int = 300) -> None:
    """Calls of every method that never send their message."""
    done = threading.Event()
    methods = [f"/{SERVICE}/{name}" for name in ("Score", "ScoreBatch", "Info", "Report")]
    methods += ["/grpc.health.v1.Health/Check", "/inference.GRPCInferenceService/ModelInfer"]
    methods += ["/grpc.health.v1.Health/Watch", PATHS[0]]
    with open_channel(target) as channel:
        opened = [
            channel.stream_unary(method).future(no_messages(done), timeout=seconds + 60)
            for method in itertools.islice(itertools.cycle(methods), calls)
        ]
        done.wait(seconds)
        done.set()
        for call in opened:
            call.cancel()


def silent_connections(
    target: str, seconds: float, *, connections: int = 300, sent: bytes = b""
) -> None:
    """TCP connections on which nothing is said, or `sent` and no more."""
    host, _, port = target.rpartition(":")
    opened = [socket.create_connection((host, int(port)), timeout=60) for _ in range(connections)]
    for connection in opened:
        with suppress(OSError):  # The server has closed the oldest.
            connection.sendall(sent)
    time.sleep(seconds)
    for connection in opened:
        connection.close()


def half_scrapes(target: str, seconds: float) -> None:
    """Requests for the metrics, at the address `target`, that never end."""
    request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n"
    silent_connections(target, seconds, connections=500, sent=request)


HEAVY_TEXTS = {
    "one character": "!" * 1_000_000,
    "Chinese": "漢字" * 100_000,
    "minified JSON": json.dumps([{"a": n, "b": "x"} for n in range(40_000)], separators=(",", ":")),
    "emoji": "👩🏽‍🚀" * 30_000,
    "combining marks": "a" + "\u0301" * 500_000,
    "Hangul": "각" * 300_000,
    "long words": ("a" * 99 + " ") * 10_000,
}


def heavy_texts(target: str, seconds: float, *, clients: int = 4) -> None:
    """Prompts that cost as much as their sender can make them cost, each another one."""
    until_s = time.monotonic() + seconds

    def send(client_number: int) -> None:
        with ScoringClient(target, timeout_s=60) as client:
            for count in itertools.count(client_number):
                if time.monotonic() > until_s:
                    return
                text = list(HEAVY_TEXTS.values())[count % len(HEAVY_TEXTS)]
                # Different at the start: equal ones would come from the cache.
                client.score_batch([f"{client_number} {count} {text}"])

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(send, range(clients)))


def invented_reports(target: str, seconds: float) -> None:
    """Reports about models that nobody knows, and with prompts of megabytes."""
    until_s = time.monotonic() + seconds
    with open_channel(target) as channel:
        report = channel.unary_unary(f"/{SERVICE}/Report")
        for count in itertools.count():
            if time.monotonic() > until_s:
                return
            name = "tiny-llm" if count % 10 == 0 else f"invented-{count}"
            text = "x" * 1_000_000 if count % 50 == 0 else ""
            seen = pb.Observation(target_model=name, output_tokens=5, score=1.0, prompt=text)
            report.future(
                pb.ReportRequest(observations=[seen] * 3).SerializeToString(), timeout=60
            ).exception()


def malformed_messages(target: str, seconds: float) -> None:
    """Bytes that are no messages, to every method."""
    until_s = time.monotonic() + seconds
    with open_channel(target) as channel:
        while time.monotonic() < until_s:
            for name in ("Score", "ScoreBatch", "Report", "Info"):
                channel.unary_unary(f"/{SERVICE}/{name}").future(b"\xff\xff", timeout=60).code()


def refused_calls(target: str, seconds: float, *, connections: int = 4) -> None:
    """Calls that cost their sender nothing: unknown models, methods and versions, wrong types."""
    until_s, scores = time.monotonic() + seconds, "/inference.GRPCInferenceService/ModelInfer"
    tensor = {"name": "text", "datatype": "INT32", "shape": [1]}
    infer = oip.MESSAGES["ModelInferRequest"]
    calls = [
        (f"/{SERVICE}/Score", pb.ScoreRequest(prompt="x", target_model="none").SerializeToString()),
        (f"/{SERVICE}/None", b""),
        (scores, infer(model_name="none").SerializeToString()),
        (scores, infer(model_name="tiny", model_version="9").SerializeToString()),
        (scores, infer(model_name="tiny", inputs=[tensor]).SerializeToString()),
    ]

    def send(_: int) -> None:
        with open_channel(target) as channel:
            while time.monotonic() < until_s:
                opened = [channel.unary_unary(m).future(b, timeout=60) for m, b in calls * 10]
                assert not {call.code() for call in opened} & {grpc.StatusCode.OK}

    with ThreadPoolExecutor(connections) as pool:
        list(pool.map(send, range(connections)))


def batches(target: str, seconds: float, *, callers: int = 2) -> None:
    """Full batches of new prompts in the name of one client, each caller's next at once."""
    until_s, metadata = time.monotonic() + seconds, ((CLIENT_KEY, "greedy"),)

    def send(caller: int) -> None:
        with open_channel(target) as channel:
            for count in itertools.count():
                if time.monotonic() > until_s:
                    return
                prompts = [f"{caller} {count} {number} " + "essay " * 30 for number in range(64)]
                request = pb.ScoreBatchRequest(prompts=prompts).SerializeToString()
                score = channel.unary_unary(f"/{SERVICE}/ScoreBatch")
                score.future(request, timeout=60, metadata=metadata).exception()

    with ThreadPoolExecutor(callers) as pool:
        list(pool.map(send, range(callers)))


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4\0" + bytes(4)
"""The first bytes of a connection of HTTP/2, with empty settings."""
ELSEWHERE = "127.0.0.2"
"""The attackers' address, which is none of the honest clients'."""


def _frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def _header(name: bytes, value: bytes) -> bytes:
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def _request(path: bytes) -> bytes:
    head = {b":path": path, b":authority": b"x", b"content-type": b"application/grpc"}
    return b"\x83\x86" + b"".join(itertools.starmap(_header, head.items()))


def _flood(target: str, seconds: float, connections: int, first: bytes, more: bytes) -> None:
    """Connections that send `first`, then `more` for ever; without `more` they wait for the end."""
    until_s, (host, _, port) = time.monotonic() + seconds, target.rpartition(":")

    def send(_: int) -> None:
        while time.monotonic() < until_s:
            with suppress(OSError):
                source = (ELSEWHERE, 0)
                with socket.create_connection((host, int(port)), 1.0, source) as connection:
                    connection.sendall(PREFACE + first)
                    while more and time.monotonic() < until_s:
                        connection.sendall(more)
                    silent = select.poll()
                    silent.register(connection, select.POLLRDHUP)
                    silent.poll(max(until_s - time.monotonic(), 0) * 1e3)
            time.sleep(0.02)  # One that is cut off at once would else only open connections.

    with ThreadPoolExecutor(connections) as pool:
        list(pool.map(send, range(connections)))


def continuation_flood(target: str, seconds: float, *, connections: int = 8) -> None:
    """Headers that never end."""
    first = _frame(1, 0, 1, _request(f"/{SERVICE}/Score".encode()))
    more = _frame(9, 0, 1, _header(b"x-a", b"v" * 40) * 300) * 16
    _flood(target, seconds, connections, first, more)


def settings_flood(target: str, seconds: float, *, connections: int = 8) -> None:
    """Settings, whose acknowledgements are not read."""
    _flood(target, seconds, connections, b"", _frame(4, 0, 0) * 2000)


def idle_connections(target: str, seconds: float, *, connections: int = 520) -> None:
    """Connections of one address that speak HTTP/2 and then say nothing."""
    _flood(target, seconds, connections, b"", b"")


def slow_readers(target: str, seconds: float, *, connections: int = 8) -> None:
    """Calls whose answers are not read: of a window of one byte none can be sent."""
    head, window = _request(f"/{SERVICE}/Info".encode()), _frame(4, 0, 0, b"\0\4\0\0\0\1")
    calls = [_frame(1, 4, n, head) + _frame(0, 1, n, bytes(5)) for n in range(1, 400, 2)]
    _flood(target, seconds, connections, window + b"".join(calls), b"")


FLOODS = (continuation_flood, settings_flood, idle_connections, slow_readers)
"""Attacks below gRPC, from an address of their own; see `deploy/test_envoy.py`."""
ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (
        stalled_calls,
        silent_connections,
        heavy_texts,
        invented_reports,
        malformed_messages,
        refused_calls,
        batches,
    )
}
"""Those on the service's own port; `half_scrapes` has the metrics' port for its target."""
