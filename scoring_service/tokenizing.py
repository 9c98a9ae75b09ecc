"""Prompt text -> token ids, in time proportional to the ids that are kept.

A model reads the first few hundred tokens; a prompt may have a hundred thousand. Where the
tokenizer works word by word, the ids of a prefix that ends at white space are a prefix of the ids
of the whole text, so it is enough to tokenize a prefix that yields sufficiently many.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tokenizers import Encoding, Tokenizer

from scoring_service.errors import BundleError

# White space ends a word for these, and no rule of theirs looks across it.
_WORD_BY_WORD: Final = frozenset({"BertPreTokenizer", "Whitespace", "WhitespaceSplit"})
_LOCAL_NORMALIZERS: Final = frozenset(
    {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents"}
)
_CHARS_PER_TOKEN: Final = 5.5
"""First guess at the prefix: English has about 5 per WordPiece token, spaces included."""
_MIN_GROWTH: Final = 1.25
_MAX_GROWTH: Final = 4.0


class TokenizedPrompt(NamedTuple):
    """The part of one prompt that the model reads."""

    ids: Sequence[int]
    truncated: bool
    """Whether the prompt had more tokens than the model may read."""


class PromptTokenizer:
    """A bundle's tokenizer, cutting prompts to `max_tokens` ids, special tokens included.

    Threads may share it.

    Raises:
        BundleError: the file is not a tokenizer.
    """

    def __init__(self, path: Path, max_tokens: int) -> None:
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
            spec = json.loads(path.read_text())
        except Exception as error:  # tokenizers raises bare Exception
            raise BundleError(
                f"{path} is not a tokenizer ({error}); export the bundle again"
            ) from error
        self.max_tokens = max_tokens
        self.pad_id = _pad_id(spec)
        self.vocab_size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self._prefixes_are_exact = _tokenizes_word_by_word(spec)
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_tokens)

    def tokenize(self, prompts: Sequence[str]) -> list[TokenizedPrompt]:
        """Token ids of each prompt, identical to those of the full tokenizer."""
        chars = int(self.max_tokens * _CHARS_PER_TOKEN)
        starts = [p if len(p) <= chars else self._prefix(p, chars) for p in prompts]
        # Even for one prompt: unlike `encode`, this releases the interpreter lock.
        encodings = self._tokenizer.encode_batch_fast(starts)
        return [
            TokenizedPrompt(encoding.ids, False)
            if start is prompt and len(encoding) < self.max_tokens
            else self._finish(prompt, start, encoding)
            for prompt, start, encoding in zip(prompts, starts, encodings, strict=True)
        ]

    def _finish(self, prompt: str, start: str, encoding: Encoding) -> TokenizedPrompt:
        """Lengthen the start of the prompt until it holds more tokens than are kept."""
        chars = int(self.max_tokens * _CHARS_PER_TOKEN)
        while len(encoding) < self.max_tokens or not encoding.overflowing:
            if len(start) == len(prompt):
                return TokenizedPrompt(encoding.ids, False)
            # As much as the tokens so far make likely to suffice, in few steps.
            growth = 1.2 * self.max_tokens / len(encoding) if len(encoding) else _MAX_GROWTH
            chars = int(chars * min(max(growth, _MIN_GROWTH), _MAX_GROWTH))
            start = self._prefix(prompt, chars)
            encoding = self._tokenizer.encode_batch_fast([start])[0]
        return TokenizedPrompt(encoding.ids, True)

    def _prefix(self, prompt: str, chars: int) -> str:
        """The longest start of `prompt` of at most `chars` characters that ends before a space."""
        if len(prompt) <= chars or not self._prefixes_are_exact:
            return prompt
        return prompt[: max(0, *(prompt.rfind(space, 0, chars) for space in " \n\t"))]


def _tokenizes_word_by_word(spec: Mapping[str, Any]) -> bool:
    """Whether white space always separates tokens."""
    steps = _flatten(spec.get("pre_tokenizer"), "pretokenizers")
    normalizers = _flatten(spec.get("normalizer"), "normalizers")
    added = spec.get("added_tokens") or []
    return (
        bool(steps)
        and _WORD_BY_WORD.issuperset(steps)
        and _LOCAL_NORMALIZERS.issuperset(normalizers)
        and not any(any(c.isspace() for c in token["content"]) for token in added)
    )


def _flatten(step: Mapping[str, Any] | None, members: str) -> list[str]:
    if step is None:
        return []
    if step["type"] == "Sequence":
        return [name for member in step[members] for name in _flatten(member, members)]
    return [step["type"]]


def _pad_id(spec: Mapping[str, Any]) -> int:
    """The tokenizer's padding id; 0 where it has none, as the attention mask hides it anyway."""
    if spec.get("padding"):
        return int(spec["padding"]["pad_id"])
    named = {token["content"]: token["id"] for token in spec.get("added_tokens") or []}
    return int(named.get("[PAD]", named.get("<pad>", 0)))
