"""Synthetic prompts with lengths as predictable as those of a real model.

A prompt is a task, two topics and a manner. Four parts sum to the log of its length: each word's,
that of task and manner together, the prompt's, and noise. Their shares and the quantiles of the
lengths are those of Vicuna-7B's answers to Alpaca prompts.
"""

import itertools
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.agreement import tau_b
from training.data.records import PromptResponse

MODEL: Final = "synthetic"
SAMPLES: Final = 2
"""Answers per prompt of the data set."""
SHARES: Final = {"words": 0.49, "together": 0.17, "prompt": 0.18, "answer": 0.16}
"""Parts of the variance. They give TF-IDF + ridge on 4,000 prompts a tau_b of .52, the best ranker
by words .61, and the same prompt's other answer .64."""
QUANTILES: Final = (
    *((0.0, 3), (0.01, 8), (0.02, 9), (0.05, 12), (0.1, 17), (0.2, 27), (0.3, 48), (0.4, 80)),
    *((0.5, 106), (0.6, 130), (0.7, 158), (0.8, 205), (0.9, 278), (0.95, 337), (0.98, 412)),
    *((0.99, 477), (1.0, 512)),
)
"""Of the lengths, in tokens."""

TASKS: Final = {
    "Name the capital city most connected with": 1.8, "Give a one-word synonym for": 1.2,
    "Classify the sentiment of a remark about": 1.5, "Translate into French the phrase about": 2.6,
    "Summarize the history of": 4.6, "List ten facts about": 4.9,
    "Explain the main idea behind": 4.4, "Compare two views on": 5.0,
    "Write a short poem about": 4.7, "Write an essay about": 6.0,
    "Plan a week of lessons on": 5.9, "Write a Python program that simulates": 5.5,
    "Tell a long story about": 6.3, "Describe a photograph of": 3.9,
}  # fmt: skip
TOPICS: Final = (
    "glaciers", "railways", "bees", "chess", "tea", "volcanoes", "violins", "deserts", "satellites",
    "bread", "lighthouses", "whales", "markets", "bridges", "gardens", "comets", "libraries",
    "castles", "rivers", "forests", "clocks", "maps", "kites", "harbours", "mirrors", "olives",
    "paper", "glass", "wool", "salt", "copper", "rain", "owls", "horses", "coral", "moss",
)  # fmt: skip
MANNERS: Final = {
    "in one sentence": -1.2, "as briefly as possible": -1.5, "for a child": -0.2,
    "in plain words": -0.1, "with two examples": 0.3, "step by step": 0.6, "in great detail": 1.0,
    "as a table": 0.2, "for an expert": 0.4, "and justify every claim": 0.8,
}  # fmt: skip


def generate(
    num_prompts: int, *, seed: int = 0, samples: int = 1
) -> tuple[list[PromptResponse], float]:
    """Return answers to distinct prompts, and the best tau_b that the words allow on the first.

    All first answers come first, then all second ones.
    """
    rng = np.random.default_rng(seed)
    pairs = [f"{a} and {b}" for a, b in itertools.permutations(TOPICS, 2)]
    combinations = len(TASKS) * len(pairs) * len(MANNERS)
    chosen = rng.choice(combinations, size=num_prompts, replace=False)
    task, rest = np.divmod(chosen, len(pairs) * len(MANNERS))
    topic, manner = np.divmod(rest, len(MANNERS))
    tasks, manners = list(TASKS), list(MANNERS)
    words, together = _parts()
    expected = (words + together)[task, manner]
    own = rng.normal(0, np.sqrt(SHARES["prompt"]), num_prompts)
    noise = rng.normal(0, np.sqrt(SHARES["answer"]), (samples, num_prompts))
    lengths = _as_lengths(expected + own + noise)
    records = [
        PromptResponse(
            prompt=f"{tasks[task[n]]} {pairs[topic[n]]} {manners[manner[n]]}.",
            output_tokens=int(row[n]),
            model=MODEL,
            sample=number,
        )
        for number, row in enumerate(lengths)
        for n in range(num_prompts)
    ]
    return records, tau_b(expected, lengths[0])


def _parts() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the parts of task and manner, by themselves and together, (tasks, manners)."""
    base, shift = np.array(list(TASKS.values())), np.array(list(MANNERS.values()))
    strength = np.clip((base - 1) / 3, 0.1, 1.5)
    whole = base[:, None] + strength[:, None] * shift
    whole -= whole.mean()
    words = whole.mean(axis=1, keepdims=True) + whole.mean(axis=0, keepdims=True)
    together = whole - words
    return (
        words * np.sqrt(SHARES["words"]) / words.std(),
        together * np.sqrt(SHARES["together"]) / together.std(),
    )


def _as_lengths(values: NDArray[np.float64]) -> NDArray[np.int64]:
    ranks = values.ravel().argsort(kind="stable").argsort(kind="stable")
    shares, tokens = zip(*QUANTILES, strict=True)
    logs = np.interp((ranks + 0.5) / values.size, shares, np.log(tokens))
    return np.asarray(np.rint(np.exp(logs)), np.int64).reshape(values.shape)
