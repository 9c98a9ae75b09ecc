"""The figures of the bench from what was measured."""

from __future__ import annotations

from scoring_service.bench.measures import batch_invariance, median_ratio, offline, score_bare
from scoring_service.bench.workload import PromptMaker


def test_ratios_are_of_the_same_round_and_the_median_counts():
    assert median_ratio([2.0, 30.0, 8.0], [1.0, 10.0, 2.0]) == 3.0
    assert median_ratio([2.0], []) is None


def test_the_bare_model_runs_every_prompt(tiny_model):
    assert offline(tiny_model, ["yes", "long essay", "poem"], 2).per_s > 0
    score_bare(tiny_model, "yes")


def test_a_score_does_not_depend_on_its_batch(server, tiny_bundle):
    from tokenizers import Tokenizer

    make = PromptMaker(Tokenizer.from_file(str(tiny_bundle.tokenizer_path)), 32)
    assert batch_invariance(server.target, make, 16) <= 1e-5
