"""Sizes of models: what follows from them."""

import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.simulator.latency.facts import GPUS, MODELS, facts_of


def test_llama_3_8b_keeps_128_kib_of_kv_per_token():
    assert MODELS["llama-3-8b"].kv_bytes_per_token == 2 * 32 * 8 * 128 * 2 == 131_072
    assert MODELS["llama-3-8b"].weights_bytes == 2 * 8.03e9


def test_an_unknown_gpu_is_refused_with_the_list():
    assert facts_of("GPU", "v100-32g", GPUS).memory_bytes == 32e9
    with pytest.raises(ConfigError, match="no GPU named 'p4'; use one of v100-32g"):
        facts_of("GPU", "p4", GPUS)
