"""Llamas with random weights: the cost of a step depends on the shape of a model, not on its words.

Nothing is downloaded. A large model is made on its device, not in the host's memory.
"""

from pathlib import Path
from typing import Any, Final

from lengthwise.errors import ConfigError, UnsupportedByEngine, raised_as, require

_SIZES: Final = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads",
)  # fmt: skip
SHAPES: Final[dict[str, dict[str, int]]] = {
    "tiny": dict(zip(_SIZES, (512, 256, 512, 2, 4, 2), strict=True)),
    "small": dict(zip(_SIZES, (512, 512, 1024, 6, 8, 4), strict=True)),
    "7b": dict(zip(_SIZES, (32_000, 4096, 11_008, 32, 32, 32), strict=True)),
}
"""Tiny: 1.2 million parameters, for a CPU. Small: 14 million, with steps longer than an engine's
Python code. 7b: as Llama-2-7B, 13.5 GB in bfloat16."""
VOCABULARY: Final = SHAPES["tiny"]["vocab_size"]
"""Vocabulary size of the tiny and the small shape."""


def llama_config(shape: str, *, max_tokens: int = 8192) -> Any:
    """Return the configuration of a Llama with contexts of at most `max_tokens`.

    Raises ConfigError: no such shape.
    """
    from transformers import LlamaConfig

    require("shape", repr(shape), shape in SHAPES, f"one of {', '.join(SHAPES)}")
    return LlamaConfig(
        **SHAPES[shape], max_position_embeddings=max_tokens, tie_word_embeddings=shape != "7b"
    )


def make_random_model(shape: str, device: str, *, max_tokens: int = 8192, seed: int = 0) -> Any:
    """Return a Llama in bfloat16 on `device`, ready to generate.

    Raises ConfigError: no such shape, or too little memory on the device.
    """
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    why = f"a {shape} model does not fit on {device} ({{}}); free its memory, or use tiny"
    with raised_as(ConfigError, why, torch.OutOfMemoryError), torch.device(device):
        config = llama_config(shape, max_tokens=max_tokens)
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def make_tiny_model(path: Path, *, shape: str = "tiny") -> Path:
    """Write a Llama in bfloat16 to `path`; no tokenizer, about 1 s for the tiny shape."""
    import torch
    from transformers import LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    model = LlamaForCausalLM(llama_config(shape))
    model.to(torch.bfloat16).save_pretrained(path)
    return path


def write_config(path: Path, shape: str) -> Path:
    """Write a Llama's configuration to `path`, for an engine that makes random weights itself."""
    config = llama_config(shape)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(path)
    return path


def find_device(wanted: str | None) -> str:
    """Return `wanted`, else the first GPU, else the CPU.

    Raises:
        ConfigError: a GPU is wanted and there is none.
        UnsupportedByEngine: there is no torch.
    """
    why = "torch cannot be imported ({}); pip install -e '.[train]'"
    with raised_as(UnsupportedByEngine, why, ImportError):
        import torch
    if wanted is not None and wanted.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"device is {wanted!r}, and torch sees no GPU; use cpu")
    return wanted or ("cuda" if torch.cuda.is_available() else "cpu")


def device_name(device: str) -> str:
    """Return a device's name for a report."""
    import torch

    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device
