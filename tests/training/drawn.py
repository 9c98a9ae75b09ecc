"""Prompts of tasks, topics and manners whose drawn lengths can be learnt, for tests."""

from itertools import product
from typing import Final

import numpy as np

from lengthwise.agreement import tau_b
from tests.training.prompts import PromptResponse

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


def generate(count: int, *, seed: int = 0, samples: int = 1) -> tuple[list[PromptResponse], float]:
    """Answers to distinct prompts, all first ones first, and the tau_b that the words allow."""
    rng, known = np.random.default_rng(seed), {}
    everything = list(product(TASKS, TOPICS, TOPICS, MANNERS))
    for place in rng.choice(len(everything), size=count, replace=False):
        task, one, two, manner = everything[place]
        expected = TASKS[task] + min(TASKS[task] / 3, 1.5) * MANNERS[manner]
        known[f"{task} {one} and {two} {manner}."] = expected
    logs = np.array([*known.values()]) + rng.normal(0, 0.6, count)
    lengths = np.exp(logs + rng.normal(0, 0.4, (samples, count))).clip(3, 512).astype(int)
    records = [
        PromptResponse(prompt=prompt, output_tokens=int(tokens), model="drawn", sample=sample)
        for sample, row in enumerate(lengths)
        for prompt, tokens in zip(known, row, strict=True)
    ]
    return records, tau_b([*known.values()], lengths[0])
