"""Requests in a closed loop and at a fixed rate, all accounted for; CPU and memory of a process."""

import os
import threading
import time

import numpy as np
import pytest
from tokenizers import Tokenizer

from scoring_service.bench.load import PromptMaker, closed_loop, cpu_s, open_loop, rss_bytes
from scoring_service.server.worker import EndRequest


def test_a_closed_loop_asks_every_prompt_once():
    asked, lock = [], threading.Lock()

    def ask(prompt):
        with lock:
            asked.append(prompt)

    prompts = [str(n) for n in range(50)]
    load = closed_loop(os.getpid(), [ask] * 4, prompts)
    assert sorted(asked) == sorted(prompts)
    assert load.per_s > 0


def test_a_failed_request_fails_the_loop():
    with pytest.raises(ZeroDivisionError):
        closed_loop(os.getpid(), [lambda prompt: 1 / 0], ["a"])


def test_an_open_loop_knows_what_became_of_each_request(server):
    prompts = ["yes", "", "long essay"] * 5
    outcomes = open_loop(server.target, prompts, per_s=1e4, timeout_s=60)
    assert (outcomes.sent, len(outcomes.answered_s)) == (15, 10)
    assert outcomes.failed == {"InvalidPrompt": 5}
    assert outcomes.landed_s >= outcomes.wall_s


def test_an_open_loop_that_is_stopped_sends_no_more(server):
    stop = EndRequest()
    stop.make()
    assert open_loop(server.target, ["yes"] * 9, per_s=1, timeout_s=60, stop=stop).sent == 0


def test_cpu_time_of_a_process_is_its_own():
    before_s = time.process_time()
    while time.process_time() < before_s + 0.05:
        pass
    assert before_s + 0.05 <= cpu_s(os.getpid()) <= time.process_time()
    assert rss_bytes(os.getpid()) > 10e6


def test_prompts_have_the_lengths_that_were_asked_for_and_a_seed_repeats_them(tiny_bundle):
    tokenizer = Tokenizer.from_file(str(tiny_bundle.tokenizer_path))
    make, again = PromptMaker(tokenizer, 128, seed=3), PromptMaker(tokenizer, 128, seed=3)
    prompts = make.lognormal(2000)
    assert prompts == again.lognormal(2000) != PromptMaker(tokenizer, 128, seed=4).lognormal(2000)

    def lengths(prompts):
        return [len(tokenizer.encode(prompt).ids) for prompt in prompts]

    assert np.mean(lengths(prompts)) == pytest.approx(34, rel=0.1)
    assert lengths(map(make.of_length, (4, 20, 128))) == [4, 20, 128]
    assert set(lengths(make.uniform(200, 5, 7))) == {5, 6, 7}
