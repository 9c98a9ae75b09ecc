"""vLLM's waiting queues in rank order, and the limits of a request's length."""

import json
import time
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler_adapters.planner.request_annotations import id_mark
from scheduler_adapters.planner.request_tracker import RequestTracker
from scheduler_adapters.policies.shortest_predicted import pars

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


def test_only_requests_with_kv_blocks_stand_in_the_second_queue():
    """In 0.26 to 0.30 the engine puts there whatever could not start in an earlier step."""
    from vllm import SamplingParams
    from vllm.v1.request import RequestStatus

    from scheduler_adapters.engines.vllm_v1.rank_queue import RankQueue

    tracker = RequestTracker(pars())
    ranked = RankQueue(tracker)
    holders = RankQueue(tracker, ranked)

    def waiting(score: float, computed: int) -> Any:
        params = SamplingParams(max_tokens=999, extra_args={"lengthwise_score": score})
        return SimpleNamespace(
            request_id=str(score), arrival_time=time.time(), num_prompt_tokens=9,
            sampling_params=params, num_computed_tokens=computed, status=RequestStatus.WAITING,
            priority=0, prompt_token_ids=[1],
        )  # fmt: skip

    holders.add_request(waiting(3.0, 7))
    holders.prepend_requests(iter([waiting(5.0, 0), waiting(2.0, 1), waiting(4.0, 0)]))
    assert [one.request_id for one in holders] == ["2.0", "3.0"]
    assert [one.request_id for one in ranked] == ["4.0", "5.0"]
    beam = waiting(6.0, 0)
    beam.request_id, beam.sampling_params.extra_args = f"a{id_mark('ab', 'vip')}-beam-1", None
    ranked.add_request(beam)
    assert (beam.lengthwise.view.client, beam.lengthwise.view.user_class) == ("ab", "vip")


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    ("sent", "grammar", "limits"),
    [
        ({}, None, (0, 50)),
        ({"max_tokens": None}, None, (0, inf)),
        ({"min_tokens": 20}, None, (20, 50)),
        ({"ignore_eos": True}, None, (50, 50)),
        ({"ignore_eos": True, "max_tokens": None}, None, (inf, inf)),
        ({"logit_bias": {5: -100}}, None, (50, 50)),
        ({"allowed_token_ids": [5]}, None, (50, 50)),
        ({}, {"regex": "(a ){4000}"}, (50, 50)),
        ({}, {"grammar": "root ::= 'a'"}, (50, 50)),
        ({}, {"structural_tag": "{}"}, (50, 50)),
        ({}, {"choice": ["yes", "no"]}, (0, 50)),
        ({}, {"choice": ["yes " * 4000]}, (50, 50)),
        ({}, {"json_object": True}, (0, 50)),
        ({}, {"json": SCHEMA}, (0, 50)),
        ({}, {"json": json.dumps(SCHEMA)}, (0, 50)),
        ({}, {"json": SCHEMA | {"minLength": 9}}, (50, 50)),
        ({}, {"json": json.dumps(SCHEMA | {"pattern": "a{9}"})}, (50, 50)),
    ],
)
def test_what_may_force_a_length_counts_as_long_as_it_may_be(sent, grammar, limits):
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    from scheduler_adapters.engines.vllm_v1.rank_queue import limits_of

    made = None if grammar is None else StructuredOutputsParams(**grammar)
    params = SamplingParams(**{"max_tokens": 50} | sent, structured_outputs=made)
    assert limits_of(params) == limits
    assert limits_of(None) == (0, inf)
