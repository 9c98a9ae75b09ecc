"""The figures of the bench from what was measured."""

from __future__ import annotations

from scoring_service.bench.measures import Turns, batch_invariance, offline, score_bare
from scoring_service.bench.workload import PromptMaker


def test_ratios_are_of_the_same_round_and_the_median_counts():
    turns = Turns()
    for ours, bare in [(2.0, 1.0), (30.0, 10.0), (8.0, 2.0)]:
        turns.add("ours", ours)
        turns.add("bare", bare)
    assert turns.ratio("ours", "bare") == 3.0
    assert turns.medians() == {"ours": 8.0, "bare": 2.0}
    assert turns.ratio("ours", "other") is None


def test_the_bare_model_runs_every_prompt(tiny_model):
    prompts = ["yes", "long essay", "poem"]
    assert offline(tiny_model, prompts, 2).num_requests == 3
    score_bare(tiny_model, "yes")


def test_a_score_does_not_depend_on_its_batch(server, tiny_bundle):
    from tokenizers import Tokenizer

    make = PromptMaker(Tokenizer.from_file(str(tiny_bundle.tokenizer_path)), 32)
    assert batch_invariance(server.target, make, 16) <= 1e-5
