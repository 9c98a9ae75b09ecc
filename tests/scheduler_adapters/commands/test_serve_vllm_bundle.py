"""`serve-vllm --bundle`: one server, whose engine scores each prompt of every endpoint."""

import asyncio
import json
from collections import Counter
from typing import Any
from urllib.request import urlopen

import pytest

from scheduler_adapters.engines.random_model import VOCABULARY
from tests.scheduler_adapters.commands import vllm_server
from tests.scheduler_adapters.commands.vllm_server import ONE_PROCESS, SEATS, Live, serving
from tests.scheduler_adapters.engines.chat_templates import CHATML, byte_tokenizer
from tests.scheduler_adapters.engines.vllm_v1.test_client_bodies import NO_GENERATION

pytestmark = pytest.mark.vllm

COPIES = 4
PROMPT = "short poem"
CHAT = [{"role": "user", "content": PROMPT}]
IDS = [50, 60, 70]
SAMPLING = {"max_tokens": 2}
NOT_OF_A_LLAMA = {"/v1/systemone"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": [PROMPT, PROMPT], **SAMPLING},
    "/v1/chat/completions": {"messages": CHAT, **SAMPLING},
    "/v1/chat/completions/batch": {"messages": [CHAT, CHAT], **SAMPLING},
    "/v1/messages": {"messages": CHAT, **SAMPLING},
    "/v1/responses": {"input": PROMPT, "max_output_tokens": 2},
    "/invocations": {"prompt": [IDS], **SAMPLING},
    "/inference/v1/generate": {"token_ids": IDS, "sampling_params": SAMPLING},
    "/generative_scoring": {"query": "short", "items": ["poem"], "label_token_ids": [2, 3]},
}


@pytest.fixture
def live(tmp_path, tiny_bundle, monkeypatch):
    write = byte_tokenizer(CHATML, VOCABULARY).save_pretrained
    monkeypatch.setattr(vllm_server, "write_tokenizer", write)
    own = [f"--bundle={tiny_bundle.path}", "--guard=none", "--deadline-s=30", "--score-all=true"]
    vllms = ["--max-model-len=1024", f"--max-num-seqs={SEATS}", "--enable-scale-out"]
    with serving(tmp_path, "", own, [*vllms, *ONE_PROCESS]) as running:
        yield running


async def post_all(live: Live, path: str, body: dict[str, Any]) -> None:
    """Send a request so many times at once."""
    import aiohttp

    async def one(session: aiohttp.ClientSession) -> None:
        async with session.post(path, json={"model": "tiny", **body}) as answer:
            assert answer.status == 200, (path, await answer.text())
            await answer.read()

    async with aiohttp.ClientSession(live.url) as session:
        await asyncio.gather(*(one(session) for _ in range(COPIES)))


def counts(live: Live) -> Counter[str]:
    """Requests of the engine so far, by the outcome of their score."""
    samples = live.samples("lengthwise_engine_requests_total")
    return Counter({sample.labels["hint"]: int(sample.value) for sample in samples})


def test_every_route_that_generates_is_scored(live):
    with urlopen(f"{live.url}/openapi.json", timeout=300) as response:
        routes = json.load(response)["paths"]
    posts = {path for path, kinds in routes.items() if "post" in kinds}
    posts -= NO_GENERATION | NOT_OF_A_LLAMA
    assert {path for path in posts if not path.endswith("render")} == BODIES.keys()
    for path, body in BODIES.items():
        before = counts(live)
        asyncio.run(post_all(live, path, body))
        live.wait_until_idle()
        found = counts(live) - before
        assert found["scored"] >= COPIES, path
        assert found.keys() == {"scored"}, path
    assert live.outcomes() == Counter({"engine": COPIES * len(BODIES)})
