"""Frames around training prompts keep every task and name no length."""

import numpy as np
import pytest
from datasets import Dataset

from benchmarks.studies.frames import CLAIMS, SHORT
from training.config import TrainConfig
from training.data import frames
from training.recipes import recipe


def framed(prompts: list[str], lengths: list[int], part: float, seed: int) -> list[str]:
    drawn = dict(frames.frames(prompts, lengths, part, seed))
    return [drawn.get(at, prompt) for at, prompt in enumerate(prompts)]


PROMPTS = [f"task {number}." for number in range(400)]
LENGTHS = np.random.default_rng(0).permutation(400).tolist()


def test_each_frame_keeps_its_task_and_a_second_one_is_shorter():
    found = framed(PROMPTS, LENGTHS, 0.3, seed=1)
    assert 90 < sum(a != b for a, b in zip(found, PROMPTS, strict=True)) < 150
    for number, text in enumerate(found):
        assert PROMPTS[number] in text
        others = [LENGTHS[n] for n, prompt in enumerate(PROMPTS) if prompt in text]
        assert max(others, default=LENGTHS[number]) == LENGTHS[number]
    assert found == framed(PROMPTS, LENGTHS, 0.3, seed=1) != framed(PROMPTS, LENGTHS, 0.3, seed=2)
    assert framed(PROMPTS, LENGTHS, 0.0, seed=1) == PROMPTS


def test_frames_are_written_into_a_dataset():
    prompts = Dataset.from_dict({"prompt": PROMPTS})
    found = frames.framed(prompts, LENGTHS, 0.3, seed=1)["prompt"][:]
    assert found == framed(PROMPTS, LENGTHS, 0.3, seed=1)
    assert frames.framed(prompts, LENGTHS, 0.0, seed=1)["prompt"][:] == PROMPTS


@pytest.mark.parametrize("word", ["brief", "short", "long", "word", "sentence", "detail", "essay"])
def test_no_frame_speaks_of_length(word):
    texts = (*frames._ASSENT, *frames._SYSTEM, *frames._BEFORE, *frames._AFTER)
    assert not [text for text in texts if word in text.lower()]


def test_no_frame_that_is_measured_is_learnt():
    found = framed(PROMPTS * 25, LENGTHS * 25, 0.9, seed=1)
    assert not [text for text in found for said in (*CLAIMS, SHORT) if said in text]


def test_recipes_for_serving_frame_prompts_and_others_do_not():
    assert recipe("demo").data.framed == recipe("best").data.framed
    assert TrainConfig().data.framed == recipe("pars").data.framed == 0
