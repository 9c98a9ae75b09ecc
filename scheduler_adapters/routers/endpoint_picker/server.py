"""A process of the endpoint picker: gRPC with health, endpoints, scrapes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health

from lengthwise.errors import ConfigError, raised_as
from scheduler_adapters.routers.endpoint_picker.engine_scrape import EngineScrape
from scheduler_adapters.routers.endpoint_picker.ext_proc import SERVICE, ExternalProcessor
from scheduler_adapters.routers.endpoint_picker.picker import EndpointPicker

READY: Final = ("readiness", SERVICE, "")
"""Names in the health service that serve with at least one endpoint; `liveness` always does."""
_FRAME_BYTES: Final = 1 << 16


@asynccontextmanager
async def serving(
    picker: EndpointPicker,
    endpoints: AsyncIterator[list[str]],
    scrape: EngineScrape,
    *,
    address: str,
    drain_s: float = 10.0,
) -> AsyncIterator[int]:
    """Serve until the block ends, then `drain_s` for the streams in flight; yields the port.

    Raises:
        ConfigError: the address is taken.
        LengthwiseError: as the first reading of the endpoints.
    """
    limits = picker.limits
    size = ("grpc.max_receive_message_length", limits.max_body_bytes + _FRAME_BYTES)
    # Beyond the picker's own limit, at which requests get status 429.
    most = 2 * limits.max_streams
    server = grpc.aio.server(options=(size, ("grpc.so_reuseport", 0)), maximum_concurrent_rpcs=most)
    checks, kinds = health.HealthServicer(), health_pb2.HealthCheckResponse
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    server.add_generic_rpc_handlers((ExternalProcessor(picker).handler(),))

    async def note(names: Sequence[str]) -> None:
        picker.update(names)
        scrape.update(names)
        for name in READY:
            await checks.set(name, kinds.SERVING if names else kinds.NOT_SERVING)

    async def follow() -> None:
        async for names in endpoints:
            await note(names)

    async with AsyncExitStack() as running:
        running.push_async_callback(scrape.close)
        await checks.set("liveness", kinds.SERVING)
        await note(await anext(endpoints))
        why = f"cannot listen on {address}; use another --address"
        with raised_as(ConfigError, why, RuntimeError):
            port = server.add_insecure_port(address)
        await server.start()
        running.push_async_callback(server.stop, drain_s)
        running.callback(asyncio.create_task(follow()).cancel)
        yield port
