"""The figures of the bench from what was measured."""

import os
import threading
import time

import numpy as np
import pytest
from tokenizers import Tokenizer

from benchmarks.speed.service_measures import PromptMaker, closed_loop, cpu_s, median_ratio, offline


def test_ratios_are_of_the_same_round_and_the_median_counts():
    assert median_ratio([2.0, 30.0, 8.0], [1.0, 10.0, 2.0]) == 3.0
    assert median_ratio([2.0], []) is None


def test_every_prompt_runs_once_offline():
    prompts, ran = [*range(7)], list[int]()
    assert offline(ran.append, prompts, 2) >= 0
    assert sorted(ran) == prompts


def test_a_closed_loop_asks_every_prompt_once():
    asked, lock = [], threading.Lock()

    def ask(prompt):
        with lock:
            asked.append(prompt)

    prompts = [str(n) for n in range(50)]
    assert closed_loop(os.getpid(), [ask] * 4, prompts) >= 0
    assert sorted(asked) == sorted(prompts)


def test_a_failed_request_fails_the_loop():
    with pytest.raises(ZeroDivisionError):
        closed_loop(os.getpid(), [lambda prompt: 1 / 0], ["a"])


def test_cpu_time_of_a_process_is_its_own():
    before_s = time.process_time()
    while time.process_time() < before_s + 0.05:
        pass
    assert before_s + 0.05 <= cpu_s(os.getpid()) <= time.process_time()


def test_prompts_have_the_lengths_asked_for_and_repeat_by_seed(tiny_bundle):
    tokenizer = Tokenizer.from_file(str(tiny_bundle.tokenizer_path))
    make, again = PromptMaker(tokenizer, 128, seed=3), PromptMaker(tokenizer, 128, seed=3)
    prompts = make.lognormal(2000)
    assert prompts == again.lognormal(2000) != PromptMaker(tokenizer, 128, seed=4).lognormal(2000)

    def lengths(prompts):
        return [len(tokenizer.encode(prompt).ids) for prompt in prompts]

    assert np.mean(lengths(prompts)) == pytest.approx(34, rel=0.1)
    assert lengths(map(make.of_length, (4, 20, 128))) == [4, 20, 128]
    assert set(lengths(make.uniform(200, 5, 7))) == {5, 6, 7}
