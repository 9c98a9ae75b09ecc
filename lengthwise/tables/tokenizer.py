"""Counts of the tokens of a text by a named tokenizer."""

from collections.abc import Callable
from pathlib import Path

from lengthwise.errors import ConfigError


def token_counter(name: str) -> Callable[[str], int]:
    """Return the count of tokens, without special ones, by a tokenizer.

    Args:
        name: a folder or file with tokenizer.json, or a name of the Hugging Face hub.

    Raises ConfigError for an unknown tokenizer, or without the library tokenizers.
    """
    path = Path(name) / "tokenizer.json" if Path(name).is_dir() else Path(name)
    try:
        from tokenizers import Tokenizer

        made = Tokenizer.from_file(str(path)) if path.exists() else Tokenizer.from_pretrained(name)
    except ImportError as error:
        raise ConfigError(
            "tokenizer needs the library tokenizers: pip install tokenizers"
        ) from error
    except Exception as error:  # the library raises no class of its own
        reason = str(error).splitlines()[0][:200]
        raise ConfigError(f"tokenizer {name!r} cannot be loaded ({reason})") from error
    made.no_truncation()

    def count(text: str) -> int:
        return len(made.encode(text, add_special_tokens=False))

    return count
