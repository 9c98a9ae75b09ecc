"""Engines that stream numbered tokens as server-sent events, and a real Envoy before them."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path

from aiohttp import web

from lengthwise.child_processes import free_port, started

ENVOY = Path(__file__).parents[4] / ".venv-gateways/bin/envoy"
SHIPPED = (files("scheduler_adapters.routers.endpoint_picker") / "envoy.yaml").read_text()
BUFFERED = "request_body_mode: BUFFERED, response_header_mode: SKIP}"
FULL_DUPLEX = (
    "request_body_mode: FULL_DUPLEX_STREAMED, request_trailer_mode: SEND, "
    "response_body_mode: FULL_DUPLEX_STREAMED, response_trailer_mode: SEND}"
)


class FakeEngine:
    """Streams the number of `tokens` in a body, those after the first once `go` is set."""

    def __init__(self) -> None:
        self.num_open = self.used_blocks = 0
        self.page: str | None = None
        self.go = asyncio.Event()

    async def __aenter__(self) -> "FakeEngine":
        app = web.Application(client_max_size=1 << 24)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_route("*", "/{path:.*}", self._stream)
        self.runner = web.AppRunner(app, shutdown_timeout=0)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.name = f"127.0.0.1:{self.runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        self.go.set()
        await self.runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        lines = (
            f"num_requests_running {self.num_open}",
            "num_requests_waiting 0",
            f"kv_cache_usage_perc {self.used_blocks / 1000}",
            'cache_config_info{block_size="16",num_gpu_blocks="1000"} 1.0',
        )
        return web.Response(text=self.page or "".join(f"vllm:{line}\n" for line in lines))

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        number = (await request.json())["tokens"] if request.can_read_body else 1
        answer = web.StreamResponse(headers={"x-engine": self.name})
        self.num_open += 1
        with contextlib.suppress(ConnectionError):
            await answer.prepare(request)
            for token in range(number):
                if token:
                    await self.go.wait()
                await answer.write(b"data: %d\n\n" % token)
        self.num_open -= 1
        return answer


@contextlib.contextmanager
def envoy(engines: Sequence[str], picker: int, folder: Path, mode: str = BUFFERED) -> Iterator[int]:
    """Envoy with the shipped configuration, or with another `mode`; its port, ready soon."""
    port, path = free_port(), folder / "envoy.yaml"
    ports = {"8080": port, "9002": picker}
    ports |= {f"800{i}": name.split(":")[1] for i, name in enumerate(engines, start=1)}
    text = SHIPPED.replace(BUFFERED, mode)
    text = text.replace("message_timeout: 0.25s", "message_timeout: 60s")  # of a busy machine
    for shipped, other in ports.items():
        text = text.replace(f"port_value: {shipped}", f"port_value: {other}")
    path.write_text(text)
    run = f"exec {ENVOY} -c {path} --concurrency 1 -l off --use-dynamic-base-id"
    with started(["sh", "-c", f"echo starting; {run}"], ready="starting"):
        yield port
