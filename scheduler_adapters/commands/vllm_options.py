"""vLLM's model and own options, read from a command line without vLLM, which loads for seconds."""

import re
from argparse import ArgumentParser
from collections.abc import Collection, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import yaml

from lengthwise.errors import ConfigError

_MODEL_FILES: Final = ("config.json", "params.json", "*.gguf")


def require_model(model: str) -> None:
    """Refuse a path that leads to no model. A name of the hub, or an address, is vLLM's to find."""
    path = Path(model).expanduser()
    is_path = model[:1] in ("/", ".", "~") or model.count("/") > 1
    if not path.exists() and is_path and "://" not in model:
        raise ConfigError(f"model is {model!r}, and nothing is there; name a model's folder")
    if path.is_dir() and not any(found for each in _MODEL_FILES for found in path.glob(each)):
        raise ConfigError(f"model is {model!r}, a folder without a model; name a model's folder")


def require_own(words: Sequence[str], own: Collection[str]) -> None:
    """Refuse an option of vLLM's before the --, with its place."""
    for word in (word for word in words if word.startswith("--")):
        name = word[2:].partition("=")[0].replace("-", "_").removeprefix("no_")
        if name not in own and re.search(rf"^    {name}: ", _vllm_options(), re.M):
            raise ConfigError(f"{word} is an option of vLLM; put it behind a --, after our options")


def _vllm_options() -> str:
    """Return the sources of vLLM with its options: read in milliseconds, run in seconds."""
    vllm = find_spec("vllm")
    folder = Path(vllm.origin if vllm and vllm.origin else "/nowhere").parent
    files = (*folder.glob("engine/arg_utils.py"), *folder.glob("entrypoints/*/cli_args.py"))
    return "\n".join(path.read_text() for path in files)


def api_key_words(options: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the API keys among vLLM's options, and the options without them."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--api-key", "--api_key", nargs="*", action="extend", default=[])
    known, others = parser.parse_known_args(options)
    return known.api_key, others


def chat_template(options: Sequence[str]) -> str | None:
    """Return the chat template among vLLM's options: a text, or the path of a file."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--chat-template", "--chat_template")
    given: str | None = parser.parse_known_args(options)[0].chat_template
    return str(Path(given).resolve()) if given is not None and "{" not in given else given


def configured_keys(options: Sequence[str]) -> list[str]:
    """Return the API keys in vLLM's own --config file; vLLM itself reports its errors."""
    if "--config" not in options[:-1]:
        return []
    try:
        content = yaml.safe_load(Path(options[options.index("--config") + 1]).read_text())
        keys = content.get("api-key") or content.get("api_key") or []
    except (OSError, ValueError, AttributeError, yaml.YAMLError):
        return []
    return [keys] if isinstance(keys, str) else [str(key) for key in keys]
