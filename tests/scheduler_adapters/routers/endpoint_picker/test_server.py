"""A real Envoy with the shipped configuration before three engines."""

import asyncio
import sys
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from types import SimpleNamespace

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lengthwise.child_processes import free_port, started
from scheduler_adapters.placement import load_placement
from scheduler_adapters.routers.endpoint_picker.endpoints import endpoint_lists
from scheduler_adapters.routers.endpoint_picker.engine_scrape import EngineScrape
from scheduler_adapters.routers.endpoint_picker.picker import EndpointPicker
from scheduler_adapters.routers.endpoint_picker.server import serving
from scheduler_adapters.routers.routing import Routing
from tests.scheduler_adapters.routers.endpoint_picker import gateway

pytestmark = pytest.mark.skipif(not gateway.ENVOY.exists(), reason="no Envoy; see .ci/setup")
TOKENS = [f"data: {token}" for token in range(100)]


async def until(holds):
    while not holds():
        await asyncio.sleep(0.01)


@asynccontextmanager
async def engines_behind_envoy(folder, port, mode=gateway.BUFFERED):
    """Three engines, their names, their list, and a client of the Envoy before them."""
    async with AsyncExitStack() as running:
        made = [await running.enter_async_context(gateway.FakeEngine()) for _ in range(3)]
        names, listed = [one.name for one in made], folder / "engines.txt"
        listed.write_text("\n".join(names))
        at = running.enter_context(gateway.envoy(names, port, folder, mode))
        client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{at}", timeout=60, trust_env=False)
        await running.enter_async_context(client)
        while True:
            with suppress(httpx.TransportError):
                await client.get("/ready")
                break
            await asyncio.sleep(0.02)

        async def one():
            # A client's own header chooses nothing.
            headers, body = {"x-gateway-destination-endpoint": names[0]}, {"tokens": len(TOKENS)}
            answer = await client.post("/v1/completions", json=body, headers=headers)
            return (
                answer.status_code,
                answer.headers.get("x-engine"),
                answer.text.split("\n\n")[:-1],
            )

        yield SimpleNamespace(
            **{"made": made, "names": names, "listed": listed, "client": client, "stream": one},
            streams=lambda number: [asyncio.create_task(one()) for _ in range(number)],
        )


@asynccontextmanager
async def one_picker(it, port):
    picker = EndpointPicker(Routing(load_placement("least-kv")))
    scrape = EngineScrape(lambda: picker.routing.num_routed, picker.received, every_s=0.05)
    endpoints = endpoint_lists(it.listed, every_s=0.05)
    async with serving(picker, endpoints, scrape, address=f"127.0.0.1:{port}", drain_s=0):
        yield picker


async def used(it, picker, blocks):
    """Wait until the picker sees these used blocks."""
    for one, number in zip(it.made, blocks, strict=True):
        one.used_blocks = number
    views = picker.routing.views.replicas
    seen = lambda: [views[name].view and views[name].view.used_blocks for name in it.names]  # noqa: E731
    await until(lambda: seen() == blocks)


async def check_spread(it, picker):
    await used(it, picker, [0, 0, 0])
    sent = it.streams(30)
    await until(lambda: sum(one.num_open for one in it.made) == picker.num_open == 30)
    for one in it.made:
        one.go.set()
    answers = await asyncio.gather(*sent)
    assert all((status, events) == (200, TOKENS) for status, _, events in answers)
    assert min(Counter(engine for _, engine, _ in answers).values()) >= 7
    await until(lambda: not picker.num_open)
    await used(it, picker, [900, 900, 0])
    assert {engine for _, engine, _ in await asyncio.gather(*it.streams(9))} == {it.names[2]}
    # A dead engine with free memory: the gateway retries with the next alternative.
    await it.made[2].runner.cleanup()
    assert (await it.stream())[:2] in [(200, name) for name in it.names[:2]]


async def check_list(it, picker, port, caplog):
    it.made[0].go.clear()
    it.listed.write_text(it.names[0])
    await until(lambda: picker.names == it.names[:1])
    async with it.client.stream("POST", "/v1/completions", json={"tokens": 2}) as answer:
        assert await anext(answer.aiter_raw())
        await until(lambda: picker.num_open == 1)
    await until(lambda: not picker.num_open)  # the client has left
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        names = ("liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor")
        for text, statuses in ((it.names[0], [1, 1, 1]), ("", [1, 2, 2])):
            it.listed.write_text(text)
            await until(lambda: len(picker.names) == bool(text))  # noqa: B023
            asked = [check(health_pb2.HealthCheckRequest(service=name)) for name in names]
            assert [(await one).status for one in asked] == statuses
    assert (await it.stream())[0] == 503
    it.listed.write_text(it.names[1])
    await until(lambda: picker.names == it.names[1:2])
    it.listed.write_text("nonsense")
    await until(lambda: caplog.text.count("the last endpoints stay") == 2)
    assert picker.names == it.names[1:2]


@pytest.mark.parametrize("mode", [gateway.BUFFERED, gateway.FULL_DUPLEX])
def test_requests_follow_load_and_list_and_are_booked_to_the_end(tmp_path, caplog, mode):
    async def run(port):
        async with engines_behind_envoy(tmp_path, port, mode) as it, one_picker(it, port) as picker:
            await check_spread(it, picker)
            await check_list(it, picker, port, caplog)

    asyncio.run(asyncio.wait_for(run(free_port()), 120))


def test_envoy_serves_on_without_the_picker_and_uses_it_again(tmp_path):
    async def run(port):
        async with engines_behind_envoy(tmp_path, port) as it:
            it.listed.write_text(it.names[2])
            command = [sys.executable, "-m", "scheduler_adapters", "serve-picker"]
            command += [f"--endpoints={it.listed}", f"--address=127.0.0.1:{port}"]
            with started(command, ready="choosing by pascal") as (process, _):
                sent = it.streams(30)
                await until(lambda: sum(one.num_open for one in it.made) == 30)
                process.kill()
                for one in it.made:
                    one.go.set()
                answers = await asyncio.gather(*sent)
                assert all((status, events) == (200, TOKENS) for status, _, events in answers)
            answers = [await it.stream() for _ in range(6)]
            assert {status for status, _, _ in answers} == {200}
            assert {engine for _, engine, _ in answers} == set(it.names)
            paths = ("/health", "/v1/models", "/metrics", "/sleep", "/v1%2f..%2fsleep", "/v1x")
            asked = [await it.client.get(path) for path in paths]
            assert [answer.status_code for answer in asked] == [200, 200, 404, 404, 400, 404]
            with started(command, ready="choosing"):
                while {(await it.stream())[1] for _ in range(3)} != {it.names[2]}:
                    pass

    asyncio.run(asyncio.wait_for(run(free_port()), 120))
