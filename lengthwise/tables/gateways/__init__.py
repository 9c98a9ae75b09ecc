"""The words of each gateway and server: `layouts.toml`, rows rewritten, lines of vLLM."""

import tomllib
from pathlib import Path
from typing import Any, Final

LAYOUTS: Final[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("layouts.toml").read_text(encoding="utf-8")
)
WORDS: Final = {name: tuple(words) for name, words in LAYOUTS.pop("words").items()}
VLLM_PATTERNS: Final = {name: "".join(x) for name, x in LAYOUTS.pop("vllm_patterns").items()}
