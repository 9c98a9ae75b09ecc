"""The model of most tests of continuous batching."""

import pytest


@pytest.fixture(scope="module")
def model():
    """Small enough that a step costs its bookkeeping; in float32 no batch moves an argmax."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    config = LlamaConfig(vocab_size=512, num_attention_heads=2, num_key_value_heads=1, **shape)
    return LlamaForCausalLM(config).eval()
