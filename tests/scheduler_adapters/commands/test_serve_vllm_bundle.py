"""`serve-vllm --bundle`: one server, whose engine scores each prompt of every endpoint."""

import asyncio
import json
import random
from collections import Counter
from typing import Any
from urllib.request import urlopen

import pytest

from scheduler_adapters.engines.random_model import VOCABULARY
from tests.scheduler_adapters.commands import test_serve_vllm_live
from tests.scheduler_adapters.commands.test_serve_vllm_live import CLASSES, PROMPTS, Live, serving
from tests.scheduler_adapters.engines.chat_templates import CHATML, byte_tokenizer
from tests.scheduler_adapters.engines.vllm_v1.test_client_bodies import NO_GENERATION

pytestmark = pytest.mark.vllm

SEATS, COPIES = 2, 12
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


@pytest.fixture(scope="module")
def live(tmp_path_factory, tiny_bundle):
    folder = tmp_path_factory.mktemp("bundle")
    (folder / "classes.json").write_text(json.dumps(CLASSES))
    own = [f"--bundle={tiny_bundle.path}", f"--classes={folder / 'classes.json'}"]
    own += ["--guard=none", "--deadline-s=30", "--score-all=true"]
    vllms = ["--max-model-len=1024", f"--max-num-seqs={SEATS}", "--enable-scale-out"]
    with pytest.MonkeyPatch.context() as patch:
        write = byte_tokenizer(CHATML, VOCABULARY).save_pretrained
        patch.setattr(test_serve_vllm_live, "write_tokenizer", write)
        with serving(folder, "", own, vllms) as running:
            yield running


def post_all(live: Live, requests: list[tuple[str, dict[str, Any]]]) -> Counter[str]:
    """The engine's counts of these requests, sent at once."""
    import aiohttp

    async def main() -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(live.url, connector=connector) as session:

            async def one(path: str, body: dict[str, Any]) -> None:
                async with session.post(path, json={"model": "tiny", **body}) as answer:
                    assert answer.status == 200, (path, await answer.text())
                    await answer.read()

            await asyncio.gather(*(one(*request) for request in requests))

    before = counts(live)
    asyncio.run(main())
    live.wait_until_idle()
    return counts(live) - before


def counts(live: Live) -> Counter[str]:
    samples = live.samples("lengthwise_engine_requests_total")
    return Counter({sample.labels["hint"]: int(sample.value) for sample in samples})


def test_every_route_that_generates_is_scored(live):
    with urlopen(f"{live.url}/openapi.json", timeout=300) as response:
        routes = json.load(response)["paths"]
    posts = {path for path, kinds in routes.items() if "post" in kinds}
    posts -= NO_GENERATION | NOT_OF_A_LLAMA
    assert {path for path in posts if not path.endswith("render")} == BODIES.keys()
    for path, body in BODIES.items():
        found = post_all(live, [(path, body)] * COPIES)
        assert found["late"] == found["unscored"] >= COPIES, path
        assert found.keys() == {"unscored", "late"}, path
    assert live.outcomes() == Counter({"engine": COPIES * len(BODIES)})


def test_a_burst_of_200_is_ranked_at_once_and_short_end_first(live):
    kinds = [kind for kind in PROMPTS for _ in range(100)]
    random.Random(0).shuffle(kinds)
    body = {"max_tokens": 40, "ignore_eos": True}
    found = post_all(
        live,
        [
            ("/v1/completions", {"prompt": f"{PROMPTS[kind]} w{number}", **body})
            for number, kind in enumerate(kinds)
        ],
    )
    assert found["unscored"] == found["late"] == 200
