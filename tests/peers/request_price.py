"""CPU time that the middleware adds to a request inside vLLM's API server, without an engine.

    python tests/peers/request_price.py

The real application serves the same requests with the middleware and without it, in turn and one by
one, in one process. In place of the engine core each request gets all its tokens, one in each
output. Prompts have 200 words, answers 16 tokens. A client in the process is part of each time.
"""

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scheduler_adapters.engines.random_model import make_tiny_model
from scheduler_adapters.engines.vllm_v1.in_process import set_environment
from scheduler_adapters.engines.vllm_v1.middleware import (
    MiddlewareConfig,
    ScoreMetrics,
    ScoreMiddleware,
)
from tests.scheduler_adapters.commands.test_serve_vllm_live import write_tokenizer

PAIRS = 1000
TEXT = " ".join(f"w{number % 40}" for number in range(200))
COMMON = {"model": "tiny", "max_tokens": 16, "ignore_eos": True, "temperature": 0}
BODIES = {
    "completion": ("/v1/completions", COMMON | {"prompt": TEXT}),
    "stream": ("/v1/completions", COMMON | {"prompt": TEXT, "stream": True}),
    "chat": ("/v1/chat/completions", COMMON | {"messages": [{"role": "user", "content": TEXT}]}),
}


class Echo:
    """The client of an engine core that answers with one token, again and again."""

    engine_ranks_managed = (0,)
    resources = SimpleNamespace(engine_dead=False)

    def __init__(self, *arguments: Any, **named: Any) -> None:
        from vllm.v1.serial_utils import MsgpackEncoder

        self.encoder, self.outputs = MsgpackEncoder(), asyncio.Queue[Any]()
        self.get_output_async = self.outputs.get

    async def get_supported_tasks_async(self) -> tuple[str, ...]:
        return ("generate",)

    async def add_request_async(self, request: Any) -> None:
        from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason

        self.encoder.encode(request)
        for left in reversed(range(request.sampling_params.max_tokens)):
            end = None if left else FinishReason.LENGTH
            one = EngineCoreOutput(request.request_id, [7], finish_reason=end)
            self.outputs.put_nowait(EngineCoreOutputs(outputs=[one]))


async def application(model: Path) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.core_client import EngineCoreClient

    EngineCoreClient.make_async_mp_client = staticmethod(Echo)
    options = [f"--model={model}", "--served-model-name=tiny", "--max-model-len=2048"]
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(options)
    config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config()
    engine = AsyncLLM.from_vllm_config(config)
    tasks = await engine.get_supported_tasks()
    app = build_app(arguments, tasks, config.model_config)
    await init_app_state(engine, app.state, arguments, tasks)
    return app


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(model := make_tiny_model(Path(folder) / "model"))
        app = await application(model)
        config = MiddlewareConfig(shares=True)
        ours = ScoreMiddleware(app, config, scorer=None, metrics=ScoreMetrics())
        sides = [
            httpx.AsyncClient(transport=httpx.ASGITransport(each), base_url="http://x")
            for each in (app, ours)
        ]
        for name, (path, body) in BODIES.items():
            spent_us = np.zeros((PAIRS, 2))
            for pair in range(PAIRS):
                for side in (0, 1) if pair % 2 else (1, 0):
                    begun_s = time.process_time()
                    (await sides[side].post(path, json=body)).raise_for_status()
                    spent_us[pair, side] = 1e6 * (time.process_time() - begun_s)
            added = np.random.default_rng(0).choice(np.diff(spent_us), (1000, PAIRS))
            low, high = np.quantile(np.median(added, axis=1), (0.025, 0.975))
            plain, ours = np.median(spent_us, axis=0)
            print(
                f"{name:10} us: {plain:.0f} plain, {ours:.0f} ours, added {low:.0f} to {high:.0f}"
            )
    os._exit(0)  # the stand-in cannot be shut down


if __name__ == "__main__":
    set_environment()
    asyncio.run(main())
