"""A ranker bundle inside transformers' continuous batching, on the CPU."""

from contextlib import closing

import pytest
from transformers import GenerationConfig

from scheduler_adapters.engines.bundle_scoring import BundleScoring, BundleSettings
from scheduler_adapters.engines.transformers_batching.rank_scheduler import require_ours, use_policy
from scheduler_adapters.planner.request_annotations import AnnotationCounts
from scheduler_adapters.policies.shortest_predicted import pars
from tests.scheduler_adapters.engines.chat_templates import byte_tokenizer
from tests.scheduler_adapters.engines.transformers_batching.test_rank_scheduler import (
    make_manager,
    results_of,
)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def test_a_bundle_ranks_a_burst_before_its_first_step(model, tiny_bundle):
    tokenizer = byte_tokenizer(None)
    words = ["long essay", "yes", "poem", "short", "essay", "no"]
    settings = BundleSettings(bundle=str(tiny_bundle.path), deadline_s=30.0)
    with closing(BundleScoring(settings, tokenizer)) as scoring:
        name = use_policy(pars(), {}, scoring=scoring)
        open_ends = GenerationConfig(do_sample=False, eos_token_id=[*range(512)])
        manager = make_manager(model, name, generation=open_ends)
        for word in words:
            manager.add_request(tokenizer.encode(word), request_id=word, max_new_tokens=900)
        manager.start()
        counts = require_ours(manager).tracker.annotation_counts
        order = [*results_of(manager, len(words))]
        manager.stop(block=True)
    assert order == ["yes", "no", "short", "poem", "essay", "long essay"]
    assert counts == AnnotationCounts(scored=6)
