"""A small random Llama on disk: schedules do not depend on what a model says."""

from __future__ import annotations

from pathlib import Path

from scheduler_adapters.engines.random_model import SHAPES, llama_config

VOCABULARY = SHAPES["tiny"]["vocab_size"]


def make_tiny_model(
    path: Path, *, shape: str = "tiny", max_tokens: int = 8192, seed: int = 0
) -> Path:
    """Write a Llama with random weights to `path`; no tokenizer, no download, about 1 s.

    Args:
        shape: of `random_model.SHAPES`: "tiny" or "small", which share their vocabulary.
        max_tokens: longest context it accepts, prompt + output.
    """
    import torch
    from transformers import LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(seed)
    model = LlamaForCausalLM(llama_config(shape, max_tokens=max_tokens))
    model.to(torch.bfloat16).save_pretrained(path)
    return path
