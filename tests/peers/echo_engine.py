"""An engine that computes nothing, for the CPU time of vLLM's API server alone.

As `--tool-parser-plugin` it takes the place of the engine core. In each turn of the event loop all
open requests get one token, as in a step. Messages are encoded as they are for the engine core.
"""

import asyncio
from types import SimpleNamespace
from typing import Any

from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.engine.core_client import EngineCoreClient
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder


class Echo:
    engine_ranks_managed = (0,)
    resources = SimpleNamespace(engine_dead=False)

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.encoder, self.decoder = MsgpackEncoder(), MsgpackDecoder(EngineCoreOutputs)
        self.left: dict[str, int] = {}
        self.is_open = asyncio.Event()

    async def get_supported_tasks_async(self) -> tuple[str, ...]:
        return ("generate",)

    async def reset_mm_cache_async(self) -> None: ...

    async def abort_requests_async(self, names: list[str]) -> None: ...

    async def add_request_async(self, request: Any) -> None:
        self.encoder.encode(request)
        self.left[request.request_id] = request.sampling_params.max_tokens
        self.is_open.set()

    async def get_output_async(self) -> EngineCoreOutputs:
        await self.is_open.wait()
        for _ in range(8):  # requests that arrive together are served together
            await asyncio.sleep(0)
        outputs = [
            EngineCoreOutput(name, [7], finish_reason=None if left > 1 else FinishReason.LENGTH)
            for name, left in self.left.items()
        ]
        self.left = {name: left - 1 for name, left in self.left.items() if left > 1}
        if not self.left:
            self.is_open.clear()
        step = EngineCoreOutputs(outputs=outputs, scheduler_stats=SchedulerStats())
        return self.decoder.decode(self.encoder.encode(step))  # type: ignore[no-any-return]

    def shutdown(self, timeout: float | None = None) -> None: ...


EngineCoreClient.make_async_mp_client = staticmethod(Echo)
