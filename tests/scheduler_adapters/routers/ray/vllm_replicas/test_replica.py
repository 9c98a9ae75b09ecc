"""Two replicas of vLLM under `ray.serve.llm`, routed by a placement, with KV handed over by NIXL.

Prefill -> decode after the first token, reasoning -> answering behind the end of thinking. The
tokens are those of one replica alone.
"""

import os
from collections import Counter
from importlib.util import find_spec

import httpx
import numpy as np
import pytest

from benchmarks.soak.cluster import actors, connected
from scheduler_adapters.engines.random_model import VOCABULARY, llama_config
from scheduler_adapters.routers.legs import Leg
from scheduler_adapters.routers.replica_load import ReplicaLoad
from tests.scheduler_adapters.routers.test_legs import leg

ray = pytest.importorskip("ray")
serve = pytest.importorskip("ray.serve")
pytest.importorskip("vllm")
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]
THINK_END, BLOCK, TOKENS = 243, 32, 40


def write_model(folder):
    """A Llama whose next token follows from its whole context, and a tokenizer of words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    config = llama_config("tiny")
    config.tie_word_embeddings, config.initializer_range = False, 0.1
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    words = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return str(folder)


class Application:
    """`serve-ray` on two replicas, on Ray nodes of this machine."""

    def __init__(self, model, kv, port):
        from openai import OpenAI

        from scheduler_adapters.commands.serving.ray_application import (
            NAME,
            RayServeConfig,
            build,
            serve_file,
        )

        self.port = port
        engine = {"dtype": "float32", "enforce_eager": True, "block_size": BLOCK}
        engine |= {"kv_cache_memory_bytes": 32 << 20, "max_num_seqs": 8}
        settings = {
            "placement": "tests.scheduler_adapters.routers.ray.vllm_replicas.pools:Restless"
        }
        settings |= {"model": model, "replicas": 2, "policy": "pascal", "think_end": THINK_END}
        settings |= {"roles": ["prefill", "decode"], "hand_over_kv": kv, "device": "cpu"}
        settings |= {"engine": engine, "max_context_tokens": 1024, "max_stale_s": 10}
        settings |= {"gateways": 1}  # its counts are read
        content = serve_file(RayServeConfig(**settings), "127.0.0.1", self.port)
        serve.run(build(content["applications"][0]["args"]), name=NAME, route_prefix="/")
        name = next(one for one in serve.status().applications[NAME].deployments if "Vllm" in one)
        handle = serve.get_deployment_handle(name, NAME)
        self.engine = handle.options(method_name="generate", stream=True)
        self.client = OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none")

    def streamed(self, prompt, **sampling):
        """Return the tokens that an OpenAI client gets, one by one."""
        text = " ".join(f"w{token}" for token in prompt)
        settings = {"model": self.client.models.list().data[0].id, "temperature": 0}
        settings |= {"max_tokens": TOKENS, "extra_body": sampling, "timeout": 300}
        stream = self.client.completions.create(prompt=text, stream=True, **settings)
        return [int(word[1:]) for part in stream for word in part.choices[0].text.split()]

    def alone(self, prompt, **sampling):
        """Return the tokens of one replica, in one leg."""
        sampling |= {"temperature": 0}
        settings = {"prompt_tokens": len(prompt), "is_thinking": True, "sampling": sampling}
        one = Leg(request_id="a", token_ids=prompt, max_tokens=TOKENS, arrival_s=0.0, **settings)
        return [token for part in list(self.engine.remote(one))[1:] for token in part.token_ids]

    def pulled_tokens(self):
        """Return the tokens whose KV the replicas have pulled so far."""
        calls = [one.record_routing_stats.remote() for one in actors("lengthwise", "Vllm")]
        return sum(report["pulled_tokens"] for report in ray.get(calls))

    def counts(self):
        """Return the counts of the gateway's legs."""
        url = f"http://127.0.0.1:{self.port}/lengthwise/routing"
        return Counter(httpx.get(url).json()["legs"])


@pytest.fixture(scope="module")
def application(tmp_path_factory):
    os.environ["HF_HUB_OFFLINE"] = "1"
    with connected("local") as port:
        model = write_model(tmp_path_factory.mktemp("model"))
        yield Application(model, find_spec("nixl") is not None, port)


def prompts(length, number):
    random = np.random.default_rng(0)
    return [random.integers(10, 500, length).tolist() for _ in range(number)]


def test_tokens_are_those_of_one_replica_wherever_the_legs_run(application):
    sent = prompts(60, 10) + prompts(2 * BLOCK, 2)
    # Least tokens forbid to stop, and so to pause, until then: computed again.
    settings = [{"ignore_eos": True, "min_tokens": 9 * (n % 2)} for n in range(len(sent))]
    streams = [application.streamed(one, **more) for one, more in zip(sent, settings, strict=True)]
    counts, pulled = application.counts(), application.pulled_tokens()
    for prompt, sampling, stream in zip(sent, settings, streams, strict=True):
        assert application.alone(prompt, **sampling) == stream
    changes = sum(THINK_END in stream[1:-1] for stream in streams)
    assert changes > 0
    # Each prefill moves, and each answer; a context that ends a block is computed again.
    assert counts["moved"] == len(sent) + changes
    if find_spec("nixl") is not None:
        assert 0 < counts["with_kv"] <= counts["moved"] - 2
        assert pulled >= 60 * counts["with_kv"]


def test_the_engines_own_figures_replace_the_legs_while_it_works():
    from scheduler_adapters.routers.ray.vllm_replicas.replica import with_engine

    load = ReplicaLoad(total_blocks=100, clock=lambda: 7.0)
    engine = {"kv_usage_fraction": 0.5, "host_kv_tokens": 17, "on_time": False, "written_s": 90.0}
    assert with_engine(load, [engine], 99.0)["used_blocks"] == 0
    load.begin(leg())
    load.busy_since_s = 3.0
    report = with_engine(load, [engine], 99.0)
    assert (report["used_blocks"], report["used_host_blocks"]) == (50, 2)
    assert (report["age_s"], report["paced_for_s"]) == (4.0, 0.0)
    assert with_engine(load, [engine], 92.0)["age_s"] == 2.0
