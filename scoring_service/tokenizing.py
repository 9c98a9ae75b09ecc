"""Prompt text -> token ids, in time proportional to the ids that are kept.

A model reads the first few hundred tokens; a prompt may have a hundred thousand. Where the
tokenizer works word by word, the ids of a prefix that ends before white space, punctuation or a
Chinese character are a prefix of the ids of the whole text, so it is enough to tokenize a prefix
that yields sufficiently many.

No more than `max_chars` characters of a prompt are read: white space, combining marks, and words
beyond the tokenizer's own limit yield few or no tokens however long they are. A prompt whose first
`max_chars` characters hold fewer tokens than the model reads is scored by them alone, and marked as
truncated. Text whose words have up to 63 characters, one space between them, is no such prompt.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tokenizers import Encoding, Tokenizer

from lengthwise.errors import BundleError

# White space ends a word for these, and no rule of theirs looks across it.
_WORD_BY_WORD: Final = frozenset({"BertPreTokenizer", "Whitespace", "WhitespaceSplit"})
_LOCAL_NORMALIZERS: Final = frozenset(
    {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents"}
)
_CHARS_PER_TOKEN: Final = 5.5
"""First guess at the prefix: English has about 5 per WordPiece token, spaces included."""
_MAX_CHARS_PER_TOKEN: Final = 64
_LEAST_MAX_CHARS: Final = 4096
_PUNCTUATION: Final = frozenset(r"""!"#$%&'()*+,-./:;<=>?@[\]^_`{|}~""")
_CHINESE: Final = "\u3400-\u4dbf\u4e00-\u9fff"
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
        self.max_chars = max(max_tokens * _MAX_CHARS_PER_TOKEN, _LEAST_MAX_CHARS)
        """Characters of a prompt that are read at most; what follows changes nothing."""
        self._until_break = _until_break(spec)
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_tokens)

    def tokenize(self, prompts: Sequence[str]) -> list[TokenizedPrompt]:
        """Token ids of each prompt's first `max_chars` characters, as of the full tokenizer."""
        return [
            part
            if len(part.ids) >= self.max_tokens or len(prompt) <= self.max_chars
            # All that may be read has been.
            else TokenizedPrompt(part.ids, True)
            for prompt, part in zip(prompts, self._tokenize(prompts), strict=True)
        ]

    def _tokenize(self, prompts: Sequence[str]) -> list[TokenizedPrompt]:
        prompts = [prompt[: self.max_chars] for prompt in prompts]
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
        """The longest start of `prompt` of at most `chars` characters that ends before a break."""
        if len(prompt) <= chars or self._until_break is None:
            return prompt
        found = self._until_break.match(prompt, 0, chars + 1)
        return "" if found is None else prompt[: found.end()]


def _until_break(spec: Mapping[str, Any]) -> re.Pattern[str] | None:
    """Matches a text up to its last break: a character that surely begins a new word.

    White space always does, punctuation and Chinese characters where the tokenizer sets each of
    them apart; not a character inside of an added token, which is matched as a whole. None: words
    of this tokenizer may look across white space.
    """
    steps = _flatten(spec.get("pre_tokenizer"), "pretokenizers")
    normalizers = _flatten(spec.get("normalizer"), "normalizers")
    added = spec.get("added_tokens") or []
    inside = {c for token in added for c in token["content"][1:]}
    names = {step["type"] for step in steps}
    if (
        not names
        or not names <= _WORD_BY_WORD
        or not {step["type"] for step in normalizers} <= _LOCAL_NORMALIZERS
        or any(c.isspace() for token in added for c in token["content"])
    ):
        return None
    breaks = r" \n\t"
    if any(token.get("single_word") for token in added):  # It depends on what follows it.
        return re.compile(f".*(?=[{breaks}])", re.DOTALL)
    if "BertPreTokenizer" in names:
        breaks += re.escape("".join(sorted(_PUNCTUATION - inside)))
    if any(step.get("handle_chinese_chars") for step in normalizers) and not any(
        "\u3400" <= c <= "\u9fff" for c in inside
    ):
        breaks += _CHINESE
    return re.compile(f".*(?=[{breaks}])", re.DOTALL)


def _flatten(step: Mapping[str, Any] | None, members: str) -> list[Mapping[str, Any]]:
    """A step, or those of a sequence of steps."""
    if step is None:
        return []
    if step["type"] == "Sequence":
        return [part for member in step[members] for part in _flatten(member, members)]
    return [step]


def _pad_id(spec: Mapping[str, Any]) -> int:
    """The tokenizer's padding id; 0 where it has none, as the attention mask hides it anyway."""
    if spec.get("padding"):
        return int(spec["padding"]["pad_id"])
    named = {token["content"]: token["id"] for token in spec.get("added_tokens") or []}
    return int(named.get("[PAD]", named.get("<pad>", 0)))
