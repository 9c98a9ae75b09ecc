"""A random Llama of 1.2 million parameters: schedules do not depend on what a model says."""

from __future__ import annotations

from pathlib import Path

VOCABULARY = 512


def make_tiny_model(path: Path, *, max_tokens: int = 8192, seed: int = 0) -> Path:
    """Write a two-layer Llama with random weights to `path`; no tokenizer, no download, about 1 s.

    Args:
        max_tokens: longest context it accepts, prompt + output.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_tokens,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
    return path
