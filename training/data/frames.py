"""Frames: texts around a prompt that leave the length of its answer as it is.

A served request holds more than a task: a system text, earlier turns, courtesies, and the task may
stand in any of these. A framed prompt has the label of the plain prompt. An answer to two tasks is
at least as long as that to the longer one. Only claims speak of length: such words are cheap to
add, and a request must not be served earlier for them.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from lengthwise.tables.prompt_text import scored_text
from training.data.records import Dataset, fingerprint

_ASSENT: Final = (
    *("ok", "Ok.", "okay", "yes", "Yes, please.", "yes please", "sure", "go ahead", "Go ahead."),
    *("please do", "Do it.", "Continue.", "please continue", "start", "Go on.", "thanks, go on"),
    *("?", "...", "Hi", "Hello", "as above", "do what I said", "Now.", "sounds good", "y"),
)
"""Newest messages whose task stands elsewhere."""
_SYSTEM: Final = (
    *("You are a helpful assistant.", "You are an AI assistant made to help people."),
    *("You are a careful and honest assistant. Follow the user's instructions.", "Be polite."),
    *("Today is Monday. You answer questions of customers.", "You are an expert in many fields."),
)
_BEFORE: Final = (
    *("Please help me with this:", "I have a question.", "Here is my task:", "Could you do this?"),
    *("Hello, I hope you are well.", "Thanks for your help so far.", "One more thing:"),
    *("I was talking to a friend about this yesterday.", "My day was fine, how was yours?"),
    *("The weather is nice here.", "This is for a project of mine.", "Read carefully."),
)
_AFTER: Final = (
    *("Thank you.", "Thanks in advance!", "I appreciate it.", "Please and thank you."),
    *("That is all for now.", "I look forward to it.", "Have a nice day.", "Cheers, Alex"),
)
_LEADS: Final = (
    *("Answer", "Respond", "Write", "Please reply", "Say it", "Give the result", "Keep it"),
)
_LIMITS: Final = (
    *("in a single word", "in no more than five words", "with just a number", "in one short line"),
    *("using one letter", "as short as you can", "in under 20 words", "with true or false"),
    *("without any explanation", "in one sentence", "at most three words long", "very short"),
    *("with only the name", "with no details", "in two words", "as a single digit", "quickly"),
)
_ENDS: Final = (".", " please.", ", nothing else.", ":", "!")
"""Claims of short answers are a lead, a limit and an end."""


def frames(
    prompts: Sequence[str], lengths: ArrayLike, part: float, seed: int
) -> Iterator[tuple[int, str]]:
    """Yield the positions of about `part` of the prompts, in order, and each in a frame.

    `lengths` are those of the answers. A frame's second task has a shorter answer, mostly by far.
    """
    random = np.random.default_rng(seed)
    by_length = np.argsort(lengths, kind="stable")
    place = np.empty(len(prompts), np.int64)
    place[by_length] = np.arange(len(prompts))
    for at in np.flatnonzero(random.random(len(prompts)) < part).tolist():
        shorter = prompts[int(by_length[int(random.random() ** 3 * (place[at] + 1))])]
        prompt = prompts[at]
        yield at, scored_text(_framed(prompt, shorter, random)) or prompt


def framed(prompts: Dataset, lengths: ArrayLike, part: float, seed: int) -> Dataset:
    """Return the texts of prompts, of which about `part` stand in a frame (`frames`)."""
    texts = prompts.select_columns(["prompt"])
    if part == 0:
        return texts
    lengths_N = np.asarray(lengths, np.float64)
    drawn = frames(texts["prompt"], lengths_N, part, seed)
    following = next(drawn, None)

    def write(batch: dict[str, list[str]], places: list[int]) -> dict[str, list[str]]:
        nonlocal following
        while following is not None and following[0] <= places[-1]:
            batch["prompt"][following[0] - places[0]] = following[1]
            following = next(drawn, None)
        return batch

    name = fingerprint(texts._fingerprint, lengths_N.tobytes(), part, seed)
    return texts.map(write, batched=True, with_indices=True, new_fingerprint=name)


def _framed(prompt: str, shorter: str, random: np.random.Generator) -> str:
    def some(texts: tuple[str, ...], least: int, most: int) -> list[str]:
        count = random.integers(least, most + 1)
        return [texts[n] for n in random.permutation(len(texts))[:count]]

    def turn() -> str:
        return " ".join((*some(_BEFORE, 0, 6), prompt, *some(_AFTER, 0, 3)))

    def claim() -> str:
        return " ".join((*some(_LEADS, 1, 1), *some(_LIMITS, 1, 1))) + some(_ENDS, 1, 1)[0]

    system = some(_SYSTEM, 0, 1)
    shapes = (
        lambda: [turn()],
        lambda: [prompt, *some(_SYSTEM, 1, 2)],
        lambda: [*some(_ASSENT, 1, 1), *system, prompt],  # in the system's text, or a turn
        lambda: [*some(_ASSENT, 1, 1), *system, shorter, turn()],
        lambda: [f"{shorter} {prompt}"],
        lambda: [f"{prompt} {shorter}"],
        lambda: [prompt, *system, shorter],
        lambda: [f"{claim()} {prompt}"],
        lambda: [f"{prompt} {claim()}"],
    )
    return "\n\n".join(shapes[random.integers(len(shapes))]())
