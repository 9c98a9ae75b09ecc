"""Token counts of a request by the sums of its own row, or by a tokenizer.

Providers disagree on what a name includes. Reasoning stands inside the output, beside it, or in the
total only; cached input stands inside the prompt or beside it. A total decides.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from lengthwise.errors import ConfigError

INSIDE_TOTAL: Final = "total less prompt"
CACHED_BESIDE: Final = "cached input beside the prompt"


class TokenCounts(NamedTuple):
    """Tokens of a request; None for an unknown number."""

    prompt: int | None
    output: int | None
    """Reasoning and answer together."""
    reasoning: int | None
    rule: str = ""
    """Deviation from the plain columns, for a report; "" for none."""
    doubt: str = ""
    """Reason why the counts contradict each other; "" for none."""


def settle(
    prompt: int | None,
    output: int | None,
    reasoning: int | None = None,
    total: int | None = None,
    cached: int | None = None,
    *,
    parts_beside: bool = False,
    cached_beside: bool = False,
) -> TokenCounts:
    """Return the counts of a row, which add up to its total.

    Args:
        cached: input tokens that may stand beside the prompt.
        parts_beside, cached_beside: without a total, reasoning or cached input are added.
    """
    more_out, more_in, rule, doubt = reasoning or 0, cached or 0, "", ""
    if output is None and reasoning and parts_beside:
        output, more_out = reasoning, 0
    if prompt is not None and more_in > prompt:  # a part is no more than the whole
        cached_beside, whole = True, prompt + more_in
        total = total + more_in if total and total < whole else total
    if total and prompt is not None and output is not None:
        ways = [(prompt + i, output + o) for i in (0, more_in) for o in (0, more_out)]
        taken = next((way for way in ways if sum(way) == total), None)
        if taken is not None:
            rule = CACHED_BESIDE if taken[0] > prompt else ""
            rule = "reasoning beside the output" if taken[1] > output else rule
            prompt, output = taken
        elif total > prompt + output and not more_out:
            reasoning, output, rule = total - prompt - output, total - prompt, INSIDE_TOTAL
        else:
            parts = f"prompt {prompt}, output {output}, reasoning {more_out}, cached {more_in}"
            doubt = f"token counts are not the total ({parts} of {total})"
    elif total and output is None and prompt is not None and total >= prompt:
        output, rule = total - prompt, INSIDE_TOTAL
    elif total and prompt is None and output is not None and total >= output:
        prompt, rule = total - output, "total less output"
    elif not total:
        if prompt is not None and cached_beside and more_in:
            prompt, rule = prompt + more_in, CACHED_BESIDE
        output = output if output is None or not parts_beside else output + more_out
    if not doubt and output is not None and (reasoning or 0) > output:
        doubt = f"more reasoning than output ({reasoning} of {output} tokens)"
    return TokenCounts(prompt, output, reasoning, rule, doubt)


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
    made.no_padding()
    return lambda text: len(made.encode(text, add_special_tokens=False))
