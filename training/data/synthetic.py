"""Synthetic prompts with lengths of known predictability.

A prompt is a task, a topic and a manner. The task sets the log of the expected length; the manner
shifts it, more for longer tasks (a capital's name stays short "in great detail"); Gaussian noise on
the log gives the observed length. The tau_b of the expected lengths is the best attainable one. For
users without data, and for tests.
"""

import itertools
from typing import Final

import numpy as np

from scoring_service.agreement import tau_b
from training.data.records import PromptResponse

MODEL: Final = "synthetic"
NOISE_SD: Final = 0.35
"""Of the log length: close to that of one model's repeated answers to a prompt."""

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


def generate(num_prompts: int, *, seed: int = 0) -> tuple[list[PromptResponse], float]:
    """Return distinct prompts with noisy lengths, and the attainable tau_b on these records."""
    rng = np.random.default_rng(seed)
    pairs = [f"{a} and {b}" for a, b in itertools.permutations(TOPICS, 2)]
    combinations = len(TASKS) * len(pairs) * len(MANNERS)
    chosen = rng.choice(combinations, size=num_prompts, replace=False)
    task, rest = np.divmod(chosen, len(pairs) * len(MANNERS))
    topic, manner = np.divmod(rest, len(MANNERS))
    tasks, manners = list(TASKS), list(MANNERS)
    base = np.array(list(TASKS.values()))[task]
    strength = np.clip((base - 1) / 3, 0.1, 1.5)
    expected = base + strength * np.array(list(MANNERS.values()))[manner]
    lengths = np.maximum(1, np.rint(np.exp(rng.normal(expected, NOISE_SD)))).astype(int)
    records = [
        PromptResponse(
            prompt=f"{tasks[task[n]]} {pairs[topic[n]]} {manners[manner[n]]}.",
            output_tokens=int(lengths[n]),
            model=MODEL,
        )
        for n in range(num_prompts)
    ]
    return records, tau_b(expected, lengths)
