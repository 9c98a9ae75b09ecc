"""Prompt text -> token ids, in time proportional to the ids that are kept.

Most tokenizers work word by word. There a text may be split before white space, punctuation or a
Chinese character: the ids of its parts are its ids. So only a start and an end are tokenized. Of a
prompt with too many tokens the middle is left out.

About `max_chars` characters of a prompt are read, half of them from its end, runs of blanks
shortened. If these hold fewer tokens than the model reads, they alone are scored, and the prompt is
marked as truncated. Words of up to 63 characters, one space apart, are tokens enough.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from tokenizers import Encoding, Tokenizer

from lengthwise.bundle import ModelBundle
from lengthwise.conversation import described
from lengthwise.errors import BundleError
from lengthwise.tables.prompt_text import CutText, shortened

# For these, white space ends a word, and no rule reaches across it.
_WORD_BY_WORD: Final = frozenset({"BertPreTokenizer", "Whitespace", "WhitespaceSplit"})
_LOCAL_NORMALIZERS: Final = frozenset(
    {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents"}
)
_CHARS_PER_TOKEN: Final = 5.5
"""Characters of the first prefix; English has about 5 per WordPiece token, spaces included."""
_MAX_CHARS_PER_TOKEN: Final = 64
_LEAST_MAX_CHARS: Final = 4096
_PUNCTUATION: Final = frozenset(r"""!"#$%&'()*+,-./:;<=>?@[\]^_`{|}~""")
_MIN_GROWTH: Final = 1.25
_MAX_GROWTH: Final = 4.0


class TokenizedPrompt(NamedTuple):
    """The part of one prompt that the model reads."""

    ids: Sequence[int]
    truncated: bool
    """True where the prompt has more tokens than the model reads."""


class PromptTokenizer:
    """Tokenizer of a bundle; cuts prompts to `max_tokens` ids, special tokens included.

    With `describes` a prompt that is no description is described as the user's only message.
    Threads may share it. Raises BundleError if the file is not a tokenizer.
    """

    def __init__(self, path: Path, max_tokens: int, *, describes: bool = False) -> None:
        self._describes = describes
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
        """Most characters read of a prompt, an even number."""
        breaks = _breaks(spec)
        self._break = None if breaks is None else re.compile(f"[{breaks}]")
        self._until_break = None if breaks is None else re.compile(f".*(?=[{breaks}])", re.DOTALL)
        self._tokenizer.no_padding()
        self._whole = Tokenizer.from_str(self._tokenizer.to_str())
        self._whole.no_truncation()
        self._tokenizer.enable_truncation(max_tokens)

    @classmethod
    def of(cls, bundle: ModelBundle) -> Self:
        """Return the tokenizer of a bundle."""
        return cls(
            bundle.tokenizer_path,
            bundle.manifest.max_prompt_tokens,
            describes=bundle.manifest.description is not None,
        )

    def kept(self, prompt: str) -> str:
        """Return the part of a prompt that is read."""
        if self._describes:
            prompt = getattr(prompt, "description", "") or described(prompt)
        is_short = len(prompt) <= self.max_chars and not isinstance(prompt, CutText)
        return prompt if is_short else shortened(prompt, self.max_chars)

    def tokenize(self, prompts: Sequence[str]) -> list[TokenizedPrompt]:
        """Return the token ids of each prompt, at most the first and last `max_tokens` / 2."""
        chars = int(self.max_tokens * _CHARS_PER_TOKEN)
        prompts = [self.kept(prompt) for prompt in prompts]
        starts = [self._prefix(prompt, chars) for prompt in prompts]
        # Even for one prompt: unlike `encode`, this releases the interpreter lock.
        return list(map(self._finish, prompts, starts, self._tokenizer.encode_batch_fast(starts)))

    def _finish(self, prompt: str, start: str, encoding: Encoding) -> TokenizedPrompt:
        """Lengthen the start of the prompt until it holds more tokens than are kept."""
        chars = int(self.max_tokens * _CHARS_PER_TOKEN)
        while len(encoding) < self.max_tokens or not encoding.overflowing:
            if len(start) == len(prompt):
                return TokenizedPrompt(encoding.ids, isinstance(prompt, CutText))
            # As much as the tokens so far make likely to suffice, in few steps.
            growth = 1.2 * self.max_tokens / len(encoding) if len(encoding) else _MAX_GROWTH
            chars = int(chars * min(max(growth, _MIN_GROWTH), _MAX_GROWTH))
            start = self._prefix(prompt, chars)
            encoding = self._tokenizer.encode_batch_fast([start])[0]
        return TokenizedPrompt(_joined(encoding, self._last(prompt, _num_last(encoding))), True)

    def _last(self, prompt: str, count: int) -> list[int]:
        """Return the last ids of a prompt."""
        chars = int(count * _CHARS_PER_TOKEN) + 1
        while True:
            found = self._break and self._break.search(prompt, max(0, len(prompt) - chars))
            start = found.start() if found and chars < len(prompt) else 0
            if start or self._break is None or chars >= len(prompt):
                ids = self._whole.encode_batch_fast([prompt[start:]], add_special_tokens=False)[0]
                if len(ids) >= count or not start:
                    return ids.ids[len(ids) - count :]
            chars = int(chars * _MAX_GROWTH)

    def _prefix(self, prompt: str, chars: int) -> str:
        if len(prompt) <= chars or self._until_break is None:
            return prompt
        found = self._until_break.match(prompt, 0, chars + 1)
        return "" if found is None else prompt[: found.end()]


def middle_cut(encoding: Encoding) -> list[int]:
    """Return the ids that the model reads of a prompt's truncated encoding."""
    rest = [
        number
        for part in (encoding, *encoding.overflowing)
        for number, is_special in zip(part.ids, part.special_tokens_mask, strict=True)
        if not is_special
    ]
    count = _num_last(encoding) if encoding.overflowing else 0
    return _joined(encoding, rest[len(rest) - count :])


def _num_last(encoding: Encoding) -> int:
    return (len(encoding) - sum(encoding.special_tokens_mask)) // 2


def _joined(start: Encoding, last: Sequence[int]) -> list[int]:
    """Return the ids of a truncated encoding with `last` before its special ones at the end."""
    mask, ids = start.special_tokens_mask, start.ids
    end = len(ids) - (mask[::-1].index(0) if 0 in mask else 0)
    return [*ids[: end - len(last)], *last, *ids[end:]]


def _breaks(spec: Mapping[str, Any]) -> str | None:
    """Return the characters before which a text may be cut, as in a set of a pattern.

    White space is a break, and so are punctuation and Chinese characters where the tokenizer
    separates them, except inside of an added token. None: words may contain white space here.
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
    if any(token.get("single_word") for token in added):  # Its match depends on the text after it.
        return breaks
    if "BertPreTokenizer" in names:
        breaks += re.escape("".join(sorted(_PUNCTUATION - inside)))
    if any(step.get("handle_chinese_chars") for step in normalizers) and not any(
        "\u3400" <= c <= "\u9fff" for c in inside
    ):
        breaks += "\u3400-\u4dbf\u4e00-\u9fff"
    return breaks


def _flatten(step: Mapping[str, Any] | None, members: str) -> list[Mapping[str, Any]]:
    if step is None:
        return []
    if step["type"] == "Sequence":
        return [part for member in step[members] for part in _flatten(member, members)]
    return [step]


def _pad_id(spec: Mapping[str, Any]) -> int:
    if spec.get("padding"):
        return int(spec["padding"]["pad_id"])
    named = {token["content"]: token["id"] for token in spec.get("added_tokens") or []}
    return int(named.get("[PAD]", named.get("<pad>", 0)))
