"""Floods below gRPC: the service stays below the unit's memory, and new clients are served.

Once without a proxy, once behind a real Envoy with the configuration that is shipped. The service
is in a memory group with the unit's limit where this machine lets us make one.
"""

import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import scoring_service
from lengthwise.child_processes import free_port, started
from scoring_service.client import Score, ScoringClient
from tests.conftest import write_tiny_bundle
from tests.scoring_service.attacks import FLOODS, continuation_flood, open_channel, serving
from tests.scoring_service.waiting import wait_until

DEPLOY = Path(scoring_service.__file__).parent / "deploy"
ENVOY = Path(__file__).parents[3] / ".venv-gateways/bin/envoy"
UNIT = (DEPLOY / "lengthwise-scoring.service").read_text()
MAX_MB = 1024 * int(re.findall(r"^MemoryMax=(\d+)G$", UNIT, re.M)[0])
SECONDS = float(os.environ.get("LENGTHWISE_FLOOD_S", "0.5"))
"""Length of a flood. In longer ones nine of ten new clients are served, on a calm machine."""
LEAST = 5
"""Clients that are served in any flood. A busy machine fails some: Envoy refuses calls beyond its
own limit until the service has answered the flood's, and a connection has a second."""
GROUP = Path("/sys/fs/cgroup/memory")


def peak_mb(pid: int) -> float:
    return int(re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0]) / 1024


@contextmanager
def limited(pid: int) -> Iterator[None]:
    """Let the kernel end a process that exceeds the unit's memory, where groups can be made."""
    group = GROUP / f"lengthwise-{pid}"
    with suppress(OSError):
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(MAX_MB << 20))
        (group / "cgroup.procs").write_text(str(pid))
    try:
        yield
    finally:
        with suppress(OSError):
            (GROUP / "cgroup.procs").write_text(str(pid))
            group.rmdir()


@contextmanager
def behind_envoy(target: str, folder: Path) -> Iterator[tuple[int, str]]:
    """Envoy with the shipped configuration, before the service at `target`."""
    port, path = free_port(), folder / "envoy.yaml"
    shipped = (DEPLOY / "envoy.yaml").read_text()
    shipped = shipped.replace("0.0.0.0, port_value: 50050", f"127.0.0.1, port_value: {port}")
    path.write_text(shipped.replace("50051", target.rpartition(":")[2]))
    # Its log is its standard error, where nothing says on which port it listens.
    command = ["sh", "-c", f"echo starting; exec {ENVOY} -c {path} --concurrency 2 -l off "]
    with started([*command[:2], command[2] + "--use-dynamic-base-id"], ready="starting") as (it, _):
        wait_until(lambda: serves(f"127.0.0.1:{port}"))
        yield it.pid, f"127.0.0.1:{port}"


def serves(target: str) -> bool:
    """Return whether a client that has not connected before gets a score."""
    with ScoringClient(target, timeout_s=5) as client, suppress(Exception):
        return isinstance(client.score(f"essay {time.monotonic()}"), Score)
    return False


@pytest.fixture(scope="module", params=["direct", "envoy"])
def deployed(request, tmp_path_factory):
    """Process ids of the service and of Envoy, and the address for clients."""
    folder = tmp_path_factory.mktemp("deployed")
    with ExitStack() as running:
        service, target = running.enter_context(serving(write_tiny_bundle(folder / "bundle")))
        running.enter_context(limited(service.pid))
        pids = [service.pid]
        if request.param == "envoy":
            proxy, target = running.enter_context(behind_envoy(target, folder))
            pids.append(proxy)
        yield pids, target


@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: flood.__name__)
def test_a_flood_keeps_memory_in_its_limit_and_clients_served(deployed, flood):
    pids, target = deployed
    is_beyond = len(pids) == 1 and flood is continuation_flood
    asked: list[bool] = []
    with ThreadPoolExecutor(1) as pool:
        least, end_s = 0 if is_beyond else LEAST, time.monotonic() + 120
        # A slow machine serves few clients in a round.
        while sum(asked) < least or not asked:
            under_way = pool.submit(flood, target, SECONDS)
            while not under_way.done():
                asked.append(serves(target))
            under_way.result()
            assert time.monotonic() < end_s, asked
    peaks = [peak_mb(pid) for pid in pids]
    print(flood.__name__, f"served {sum(asked)} of {len(asked)}, peak MB {peaks}")
    assert max(peaks) < MAX_MB
    if is_beyond:
        # To read endless headers takes gRPC's threads: what Envoy is there for.
        wait_until(lambda: serves(target))
    elif SECONDS > 1:
        assert sum(asked) >= 0.9 * len(asked)


def test_envoy_lets_health_and_scores_through_and_nothing_else(deployed):
    _, target = deployed
    with open_channel(target) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert check.status == health_pb2.HealthCheckResponse.SERVING
        other = channel.unary_unary("/grpc.reflection.v1alpha.ServerReflection/Info")
        assert "UNIMPLEMENTED" in str(other.future(b"", timeout=60).code())
    with ScoringClient(target, timeout_s=60) as client:
        batch = client.score_batch(["essay " * 20_000] * 3)
    assert all(isinstance(one, Score) for one in batch)
