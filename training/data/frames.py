"""Frames: texts around a prompt that leave the length of its answer as it is.

A served request holds more than a task: a system text, earlier turns, courtesies, and the task may
stand in any of these. A framed prompt has the label of the plain prompt. An answer to two tasks is
at least as long as that to the longer one. Only `_CLAIMS` speak of length: such words are cheap to
add, and a request must not be served earlier for them.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from lengthwise.tables.prompt_text import scored_text

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
_CLAIMS: Final = (
    *("Answer in a single word.", "One word only.", "Say just yes or no.", "Be very brief."),
    *("No more than five words, please.", "Keep it to one line.", "Your reply must be one number."),
    *("A short answer is enough.", "Only the result, nothing else.", "Respond with one letter."),
)
_QUESTIONS: Final = (
    *("Who wrote Hamlet?", "What is 2 + 2?", "Name a colour.", "Is water wet?", "What day is it?"),
    *("How many legs has a spider?", "What is the largest ocean?", "When did the war end?"),
)


def framed(prompts: Sequence[str], lengths: Sequence[float], part: float, seed: int) -> list[str]:
    """Return the prompts, of which about `part` are drawn and stand in a frame.

    `lengths` are those of the answers. A second task in a frame is one of a shorter answer.
    """
    random = np.random.default_rng(seed)
    found, by_length = list(prompts), np.argsort(lengths, kind="stable")
    place = np.empty(len(found), np.int64)
    place[by_length] = np.arange(len(found))
    for at in np.flatnonzero(random.random(len(found)) < part).tolist():
        shorter = prompts[by_length[random.integers(place[at] + 1)]]
        found[at] = scored_text(_framed(prompts[at], shorter, random)) or prompts[at]
    return found


def _framed(prompt: str, shorter: str, random: np.random.Generator) -> str:
    def some(texts: tuple[str, ...], least: int, most: int) -> list[str]:
        count = random.integers(least, most + 1)
        return [texts[n] for n in random.permutation(len(texts))[:count]]

    def turn() -> str:
        return " ".join((*some(_BEFORE, 0, 4), prompt, *some(_AFTER, 0, 3)))

    system = some(_SYSTEM, 0, 1)
    shapes = (
        lambda: [turn()],
        lambda: [prompt, *some(_SYSTEM, 1, 2)],
        lambda: [*some(_ASSENT, 1, 1), *system, prompt],  # in the system's text, or a turn
        lambda: [*some(_ASSENT, 1, 1), *system, shorter, turn()],
        lambda: [f"{shorter} {prompt}"],
        lambda: [f"{prompt} {shorter}"],
        lambda: [prompt, *system, shorter],
        lambda: [" ".join((*some(_CLAIMS, 1, 1), prompt))],
        lambda: [" ".join((prompt, *some(_CLAIMS, 1, 1)))],
        lambda: [" ".join((*some(_QUESTIONS, 1, 1), prompt))],
        lambda: [" ".join((prompt, *some(_QUESTIONS, 1, 1)))],
        lambda: [" ".join(prompt)],  # letters with spaces between them
    )
    return "\n\n".join(shapes[random.integers(len(shapes))]())
