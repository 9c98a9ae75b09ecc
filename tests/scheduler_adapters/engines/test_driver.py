"""The parts of a driver that every engine shares."""

import numpy as np

from scheduler_adapters.engines.driver import longest_context, random_prompts
from scheduler_adapters.workload.requests import make_requests

REQUESTS = make_requests(prompt_tokens=[5, 9], output_tokens=[3, 4], request_id=["a", "b"])


def test_prompts_are_seeded_and_as_long_as_the_requests_say():
    prompts = random_prompts(REQUESTS, 0, vocabulary=50)
    assert [len(prompt) for prompt in prompts] == [5, 9]
    assert all(3 <= token < 50 for prompt in prompts for token in prompt)
    assert prompts == random_prompts(REQUESTS, 0, 50) != random_prompts(REQUESTS, 1, 50)
    alike = random_prompts(REQUESTS, 0, 50, shared_tokens=2)
    shared = max(alike, key=len)[:2]
    for same, own in zip(alike, prompts, strict=True):
        size = min(2, len(own) - 1)
        assert same == shared[:size] + own[size:]


def test_the_longest_context_has_room_for_one_more_token():
    assert longest_context(REQUESTS) == 14
    assert longest_context(REQUESTS.take(np.arange(0))) == 2
