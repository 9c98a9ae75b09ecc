"""Attention over packed requests by their borders: the same tokens as by the engine's masks."""

from typing import Any

import numpy as np
import pytest

from lengthwise.errors import ConfigError, UnsupportedByEngine
from scheduler_adapters.engines.random_model import llama_config
from scheduler_adapters.engines.transformers_batching.in_process import _attention
from scheduler_adapters.engines.transformers_batching.packed_attention import NAME, register
from tests.scheduler_adapters.engines.transformers_batching.test_rank_scheduler import (
    make_manager,
    results_of,
)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def takes_others() -> bool:
    """Whether this version of transformers batches with an attention that is not its own."""
    try:
        register()
    except UnsupportedByEngine as error:
        assert "5.13 to 5.17" in str(error)  # noqa: PT017
        return False
    return True


def test_each_device_and_version_gets_the_attention_that_suits_it() -> None:
    assert _attention(None, "cuda:0") == (NAME if takes_others() else None)
    assert _attention(None, "cpu") is None
    assert _attention("paged|eager", "cuda") == "paged|eager"
    for wanted in (NAME, "flash"):
        with pytest.raises(ConfigError, match="attention"):
            _attention(wanted, "cpu")
    if not takes_others():
        with pytest.raises(UnsupportedByEngine):
            _attention(NAME, "cuda")


def one_by_one(
    queries: Any,
    keys: Any,
    values: Any,
    ends_q: Any,
    ends_k: Any,
    max_q: int,
    max_k: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
) -> Any:
    """What torch's kernel computes, of which there is none for CPUs."""
    import torch

    assert window_size == (-1, 0)
    assert {ends_q.dtype, ends_k.dtype} == {torch.int32}
    assert (ends_q[-1], ends_k[-1]) == (len(queries), len(keys))
    parts = []
    sizes_q, sizes_k = ends_q.diff().tolist(), ends_k.diff().tolist()
    assert max(sizes_q) <= max_q
    assert max(sizes_k) <= max_k
    for query, key, value in zip(
        queries.split(sizes_q), keys.split(sizes_k), values.split(sizes_k), strict=True
    ):
        causal = torch.ones(len(query), len(key), dtype=torch.bool).tril(len(key) - len(query))
        part = torch.nn.functional.scaled_dot_product_attention(
            *(each.transpose(0, 1) for each in (query, key, value)), attn_mask=causal, scale=scale
        )
        parts.append(part.transpose(0, 1))
    return torch.cat(parts)


def test_tokens_are_those_of_the_masked_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of up to four chunks, and four heads that share two."""
    import torch
    from transformers import AutoModelForCausalLM

    if not takes_others():
        pytest.skip("this version of transformers takes no attention but its own")
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", one_by_one)
    torch.manual_seed(0)
    config = llama_config("tiny", max_tokens=128)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    random = np.random.default_rng(2)
    prompts = [random.integers(3, 512, size).tolist() for size in random.integers(1, 60, 8)]

    def answers(attention: str) -> dict[str, list[int]]:
        model.set_attn_implementation(attention)
        limits = {"num_blocks": 32, "max_batch_tokens": 16, "max_requests_per_batch": 4}
        manager = make_manager(model, "fifo", **limits)
        for number, prompt in enumerate(prompts):
            manager.add_request(prompt, request_id=str(number), max_new_tokens=4 + number)
        manager.start()
        found = results_of(manager, len(prompts))
        masks = manager.batch_processor.inputs_and_outputs.attention_mask
        assert (masks is None) == (attention == NAME)
        manager.stop(block=True)
        return found

    assert answers("sdpa") == answers(register())
