"""Prompts of prescribed lengths, the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer

from scoring_service.bench.workload import PromptMaker


@pytest.fixture
def tokenizer(tiny_bundle):
    return Tokenizer.from_file(str(tiny_bundle.tokenizer_path))


def test_prompts_have_the_lengths_that_were_asked_for(tokenizer):
    make = PromptMaker(tokenizer, 128, seed=3)
    for length in (4, 20, 128):
        assert len(tokenizer.encode(make.of_length(length)).ids) == length
    lengths = [len(tokenizer.encode(prompt).ids) for prompt in make.lognormal(2000)]
    assert np.mean(lengths) == pytest.approx(34, rel=0.1)
    assert {len(tokenizer.encode(p).ids) for p in make.uniform(200, 5, 7)} == {5, 6, 7}


def test_a_seed_makes_the_same_prompts_again(tokenizer):
    first, again, other = (PromptMaker(tokenizer, 128, seed=seed) for seed in (3, 3, 4))
    assert first.lognormal(5) == again.lognormal(5) != other.lognormal(5)
