"""What operators switch on in vLLM works with our schedulers, without a whole engine.

The schedulers are vLLM's and ours, and what stands in for the model gives each token by request and
position.
"""

import copy
import random
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.rad import RAD
from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policy import Policy
from scheduler_adapters.views import UNLIMITED, LoadView, StepRule
from tests.scheduler_adapters.engines.vllm_v1.driving import (
    NEWEST_FIRST,
    SEATS,
    Served,
    request,
    scheduler_parts,
    starts_under_pars,
)

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

BUDGET = 512


def under(*policies: Policy) -> pytest.MarkDecorator:
    """Run the test under each of these policies."""
    return pytest.mark.parametrize("policy", policies, ids=lambda policy: policy.name)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """What vLLM makes a scheduler of: a configuration, and a memory of 64 blocks."""
    return scheduler_parts(
        tmp_path_factory.mktemp("model"),
        blocks=64,
        max_num_batched_tokens=BUDGET,
        enable_prefix_caching=False,
    )


@pytest.fixture
def made(parts):
    """Make our scheduler, of the engine's parts, with changed settings; without a policy vLLM's."""
    from scheduler_adapters.engines.vllm_v1.rank_scheduler import RankScheduler
    from scheduler_adapters.engines.vllm_v1.versions import Scheduler

    def make(
        policy: Policy | None,
        *,
        lora_config: Any = None,
        parallel: Mapping[str, Any] | None = None,
        other_parts: Mapping[str, Any] | None = None,
        **scheduling: Any,
    ) -> Any:
        config = copy.copy(parts["vllm_config"])
        config.lora_config = lora_config
        for part, changes in (("scheduler", scheduling), ("parallel", parallel or {})):
            changed = copy.copy(getattr(config, f"{part}_config"))
            for name, value in changes.items():
                setattr(changed, name, value)
            setattr(config, f"{part}_config", changed)
        taken = parts | {"vllm_config": config} | (other_parts or {})
        if policy is None:
            return Scheduler(**taken)
        scheduler = RankScheduler(**taken)
        scheduler.lengthwise_start(policy)
        return scheduler

    return make


@under(pars(), SLAI(max_tokens=BUDGET))
def test_no_token_is_kept_for_a_whole_prompt_that_does_not_fit(made, policy):
    scheduler = made(policy, enable_chunked_prefill=False)
    served = Served(scheduler, *(request(f"decode {n}", 8, 60) for n in range(4)))
    served.step()
    for number in range(2):
        scheduler.add_request(request(f"prompt {number}", 300, 3))
    steps = [served.step(), served.step()]
    decodes = {f"decode {n}": 1 for n in range(4)}
    assert steps == [{"prompt 0": 300} | decodes, {"prompt 1": 300, "prompt 0": 1} | decodes]


THRESHOLD = "long_prefill_token_threshold"
ADAPTIVE = "long_prefill_token_threshold_adaptive"


def test_the_operators_limit_of_long_prefills_stands(made):
    def first_step(policy: Policy, prompts: list[int], **scheduling: Any) -> list[int]:
        scheduler = made(policy, **scheduling)
        step = Served(scheduler, *(request(str(n), p, 2) for n, p in enumerate(prompts))).step()
        assert scheduler.scheduler_config.long_prefill_token_threshold == scheduling[THRESHOLD]
        return list(step.values())

    prompts = [400, 50, 50, 50]
    sarathi = Sarathi(max_tokens=BUDGET)
    for policy in (sarathi, FCFS()):
        assert first_step(policy, prompts, **{THRESHOLD: 200}) == [200, 50, 50, 50]
    assert first_step(RAD(chunk=256), prompts, **{THRESHOLD: 200}) == [200]
    assert first_step(RAD(chunk=64), prompts, **{THRESHOLD: 200}) == [64]
    if not hasattr(made(sarathi).scheduler_config, ADAPTIVE):
        return  # these versions of vLLM limit a lone prompt, too
    assert first_step(sarathi, [400], **{THRESHOLD: 200}) == [400]
    adaptive = {ADAPTIVE: True, THRESHOLD: 9}
    assert first_step(sarathi, prompts, **adaptive) == [128, 50, 50, 50]
    assert first_step(RAD(chunk=64), prompts, **adaptive) == [64]


@under(pars(), SLAI(), RoundRobin())
def test_no_more_requests_run_than_the_operator_wants(made, policy):
    requests = (request(str(number), 8, 6) for number in range(9))
    name = "max_num_active_seqs"
    if not hasattr(made(policy).scheduler_config, name):
        name = "max_num_seqs"  # the only limit of older versions
    assert max(map(len, Served(made(policy, **{name: 3}), *requests).finish())) == 3


@under(pars(), FCFS())
def test_a_throttled_step_starts_no_prompt_while_others_decode(made, policy):
    """As `--prefill-schedule-interval` has it in data parallelism."""
    scheduler = made(policy)
    served = Served(scheduler, request("decodes", 8, 9))
    served.step()
    scheduler.add_request(request("prompt", 8, 9))
    assert list(served.step(True)) == ["decodes"]
    assert list(served.step()) == ["decodes", "prompt"]


@under(pars(), FCFS())
def test_pipelined_batches_lose_no_token(made, policy):
    served = Served(made(policy), *(request(str(n), 8 + 30 * n, 9) for n in range(12)))
    served.finish(in_flight=2)
    assert served.answers == {str(n): list(range(3, 12)) for n in range(12)}


@under(pars(), SLAI(), RAD(chunk=64), RoundRobin())
def test_the_next_turn_of_a_session_is_prefilled_too(made, policy):
    scheduler = made(policy)
    served = Served(scheduler, request("other", 8, 40), request("session", 64, 3, resumable=True))
    for _ in range(6):
        served.step()
    assert len(served.answers["session"]) == 3
    for _ in range(3):
        assert "session" not in served.step()
    scheduler.add_request(request("session", 120, 3, resumable=True))
    steps = []
    while len(served.answers["session"]) < 6:
        steps.append(served.step().get("session", 0))
        assert len(steps) < 12
    assert max(steps) >= 64
    scheduler.add_request(request("session", 1, 1))  # the end of it
    assert "other" in scheduler.requests
    served.finish()
    assert not scheduler.requests


def test_a_session_between_two_turns_takes_no_place_in_a_step(made):
    from vllm.v1.request import RequestStatus

    idle = request("idle", 8, 2)
    idle.status = RequestStatus.WAITING_FOR_STREAMING_REQ
    assert Served(made(RAD()), idle, request("other", 20, 2)).step() == {"other": 20}


@under(pars(), SLAI(), RoundRobin(quantum_tokens=5), RAD())
def test_waits_for_a_grammar_or_adapter_hold_up_no_others(made, policy):
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.request import RequestStatus
    from vllm.v1.structured_output.backend_types import StructuredOutputGrammar
    from vllm.v1.structured_output.request import StructuredOutputRequest

    scheduler = made(policy, lora_config=SimpleNamespace(max_loras=1))
    compiling = request("compiling", 8, 2)
    compiling.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    structured = StructuredOutputRequest(params=StructuredOutputsParams(choice=["a"]))
    compiling.structured_output_request = structured
    structured.grammar = grammar = Future[Any]()  # type: ignore[assignment]
    first, second = (request(f"lora {n}", 8, 30, lora_request=adapter(n)) for n in (1, 2))
    served = Served(scheduler, first, compiling, second, request("plain", 8, 30))
    assert {name for _ in range(6) for name in served.step()} == {"lora 1", "plain"}
    compiled = Mock(spec=StructuredOutputGrammar)  # 0.28 asserts that it is one
    compiled.accept_tokens.return_value, compiled.is_terminated.return_value = True, False
    grammar.set_result(compiled)
    served.finish()
    assert [len(served.answers[n]) for n in ("compiling", "lora 2")] == [2, 30]


def adapter(number: int) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest(f"lora {number}", number, "/nowhere")


def test_adapters_of_residents_left_out_count(made):
    """vLLM asserts that a step has no more than max_loras, and counts those of the step only."""

    class OneThenAll(FCFS):
        def step_rule(self, load: LoadView) -> StepRule:
            return UNLIMITED if load.step % 2 else StepRule(max_decodes=1)

    scheduler = made(OneThenAll(), lora_config=SimpleNamespace(max_loras=2))
    requests = (request(str(n), 8, 20, lora_request=adapter(1 + n % 3)) for n in range(9))
    served = Served(scheduler, *requests)
    served.finish()
    assert {len(tokens) for tokens in served.answers.values()} == {20}


@under(pars(), RoundRobin(quantum_tokens=5), RAD())
def test_a_pause_drains_or_holds_and_evicts_nobody(made, policy):
    from vllm.v1.core.sched.interface import PauseState

    scheduler = made(policy)
    # They fill the memory but for 7 blocks, and leave one by one.
    residents = [request(f"old {n}", 200, 14 + n) for n in range(SEATS)]
    served = Served(scheduler, *residents)
    for _ in range(12):
        served.step()
    assert len(scheduler.running) == SEATS
    for number in range(4):
        scheduler.add_request(request(f"new {number}", 300, 5))
    scheduler.set_pause_state(PauseState.PAUSED_ALL)
    assert served.step() == {}
    scheduler.set_pause_state(PauseState.PAUSED_NEW)
    drained = served.finish()
    for each in residents:  # it runs in every step until its last
        runs = [each.request_id in step for step in drained]
        assert runs == sorted(runs, reverse=True)
    assert all(drained)
    assert [len(served.answers[f"old {n}"]) for n in range(SEATS)] == [*range(14, 14 + SEATS)]
    assert sum(each.num_preemptions for each in residents) == 0
    scheduler.set_pause_state(PauseState.UNPAUSED)
    served.finish()
    assert {len(served.answers[f"new {n}"]) for n in range(4)} == {5}


@under(pars(), SLAI(max_decodes=2), RAD(tile=3, chunk=32), RoundRobin(quantum_tokens=4))
def test_an_abort_in_any_state_leaves_nothing_behind(made, policy):
    from vllm.v1.request import RequestStatus

    scheduler, dice = made(policy), random.Random(0)
    blocks = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    served = Served(scheduler)
    for number in range(100):
        for copies in range(dice.randint(0, 2)):
            sizes, resumes = (dice.randint(1, 400), dice.randint(1, 60)), dice.random() < 0.2
            scheduler.add_request(request(f"{number} {copies}", *sizes, resumable=resumes))
        served.step()
        for name in dice.sample(sorted(scheduler.requests), k=len(scheduler.requests) // 6):
            scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        if number % 5 == 4 and not scheduler._lengthwise_holders:
            assert scheduler.reset_prefix_cache(reset_running_requests=True)
    scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
    served.step()
    assert not scheduler.requests
    assert not len(scheduler.waiting)
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == blocks


@under(pars(), SLAI(), RAD(chunk=64))
def test_pooling_requests_end_with_their_prompt(made, policy):
    from vllm import PoolingParams
    from vllm.v1.request import Request

    scheduler, prompts = made(policy), [300, 20, 150]
    embed, at_s = PoolingParams(task="embed"), time.time()
    pooled = [
        Request(str(n), [5] * size, None, embed, arrival_time=at_s)
        for n, size in enumerate(prompts)
    ]
    steps = Served(scheduler, *pooled).finish()
    assert [sum(step.get(str(n), 0) for step in steps) for n in range(3)] == prompts
    assert not scheduler.requests


def media(name: str, *places: int, length: int = 100) -> list[Any]:
    """Images, or whatever an encoder reads, of `length` tokens at these places of a prompt."""
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    def spec(offset: int) -> Any:
        place = PlaceholderRange(offset=offset, length=length)
        of = {"data": None, "modality": "image", "identifier": f"{name} {offset}"}
        return MultiModalFeatureSpec(mm_position=place, **of)

    return [spec(offset) for offset in places]


def with_encoder(scheduler: Any, kind: str, *, budget: int, cache: int) -> Any:
    """The scheduler with an encoder's budget of a step, and with its cache, both in tokens."""
    from vllm.v1.core import encoder_cache_manager

    scheduler.max_num_encoder_input_tokens = budget
    scheduler.encoder_cache_manager = getattr(encoder_cache_manager, kind)(cache_size=cache)
    return scheduler


@under(pars(), SLAI(), Sarathi(max_tokens=256))
def test_prompts_with_images_keep_to_the_encoders_budget(made, policy):
    scheduler = with_encoder(made(policy), "EncoderCacheManager", budget=150, cache=200)
    names = [str(number) for number in range(6)]
    served = Served(
        scheduler, *(request(name, 240, 6, mm_features=media(name, 10, 120)) for name in names)
    )
    served.finish()
    assert {name: len(tokens) for name, tokens in served.answers.items()} == dict.fromkeys(names, 6)
    assert not scheduler.requests


def test_an_encoder_decoder_model_keeps_vllms_own_steps(made, parts):
    from vllm.v1.kv_cache_interface import CrossAttentionSpec, KVCacheGroupSpec

    config = parts["kv_cache_config"]
    own = config.kv_cache_groups[0].kv_cache_spec
    spec = CrossAttentionSpec(**{f.name: getattr(own, f.name) for f in fields(CrossAttentionSpec)})
    groups = [*config.kv_cache_groups, KVCacheGroupSpec(["cross"], spec)]
    other_parts = {"kv_cache_config": replace(config, kv_cache_groups=groups)}

    def make(policy: Policy | None) -> Any:
        scheduler = made(policy, other_parts=other_parts)
        scheduler.is_encoder_decoder = True
        return with_encoder(scheduler, "EncoderDecoderCacheManager", budget=700, cache=700)

    # 10 of 64 blocks for what the encoder read, so that fewer run than there are seats.
    read = {n: media(str(n), 0, length=300) for n in range(12)}
    assert starts_under_pars(make, read) == NEWEST_FIRST


def test_media_encoded_elsewhere_start_by_rank_once_present(made):
    from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase

    class Encoder(ECConnectorBase):  # type: ignore[misc]
        """The odd requests' media come with the sixth step."""

        def __init__(self, scheduler: Any) -> None:
            self.scheduler = scheduler

        def ensure_cache_available(self, request: Any, num_computed_tokens: int) -> bool:
            return int(request.request_id) % 2 == 0 or bool(self.scheduler.current_step >= 6)

        def has_cache_item(self, *_: Any) -> bool:
            return True

        def update_state_after_alloc(self, *_: Any) -> None: ...
        def build_connector_meta(self, *_: Any) -> None: ...
        def start_load_caches(self, *_: Any, **__: Any) -> None: ...
        def save_caches(self, *_: Any, **__: Any) -> None: ...

    def make(policy: Policy | None) -> Any:
        scheduler = with_encoder(made(policy), "EncoderCacheManager", budget=1000, cache=2000)
        scheduler.ec_connector = Encoder(scheduler)
        return scheduler

    seen = {n: media(str(n), 10, length=40) for n in range(12)}
    assert starts_under_pars(make, seen) == [10, 8, 6, 4, 2, 0, 11, 9, 7, 5, 3, 1]


def test_context_parallelism_keeps_vllms_own_steps(made, parts):
    def make(policy: Policy | None) -> Any:
        sizes = {name: 2 * parts[name] for name in ("block_size", "hash_block_size")}
        scheduler = made(policy, parallel={"decode_context_parallel_size": 2}, other_parts=sizes)
        assert scheduler.dcp_world_size == 2
        return scheduler

    assert starts_under_pars(make) == NEWEST_FIRST
    scheduler = make(pars())
    Served(scheduler, request("long", 480, 2)).step()
    (blocks,) = scheduler.kv_cache_manager.get_block_ids("long")
    assert len(blocks) == 8  # of 32 tokens on each of two ranks


@under(SLAI(max_decodes=3, offset=0.0, default_tbt_s=1e6), RAD(chunk=64), RoundRobin())
def test_a_data_parallel_rank_plans_as_a_lone_engine(made, policy):
    def steps(**changes: Any) -> list[dict[str, int]]:
        requests = (request(str(n), 40 + 9 * n, 12) for n in range(14))
        return Served(made(copy.copy(policy), **changes), *requests).finish()

    rank = {"data_parallel_size": 2, "data_parallel_rank": 1, "data_parallel_index": 1}
    assert steps(parallel=rank, other_parts={"include_finished_set": True}) == steps()
