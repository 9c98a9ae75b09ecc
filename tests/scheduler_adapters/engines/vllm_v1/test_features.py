"""What operators switch on in vLLM works with our schedulers, or is refused before a model loads.

Where no whole engine is needed, the schedulers are vLLM's and ours, and what stands in for the
model gives each token by request and position.
"""

import copy
import random
import re
import time
import tomllib
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import fields, replace
from importlib import import_module
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from lengthwise.errors import ConfigError, UnsupportedByEngine
from scheduler_adapters.engines.random_model import make_tiny_model
from scheduler_adapters.engines.vllm_v1.features import (
    REFUSALS,
    read_configuration,
    require_early,
    require_features,
)
from scheduler_adapters.engines.vllm_v1.in_process import (
    OfflineConfig,
    open_engine,
    scheduler_of,
    set_environment,
)
from scheduler_adapters.planner.capabilities import plans_steps
from scheduler_adapters.planner.request_annotations import LIMITS, SCORE
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.prefill_first import Orca
from scheduler_adapters.policies.rad import RAD
from scheduler_adapters.policies.round_robin import RoundRobin
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.policies.shortest_predicted import pars_paper as pars
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policy import POLICIES, Policy, load_policy
from scheduler_adapters.views import UNLIMITED, LoadView, StepRule
from tests.scheduler_adapters.commands.vllm_server import write_tokenizer

real = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


def of_policy(policy: Policy) -> str:
    return policy.name


def marked(test: Callable[..., Any]) -> Callable[..., Any]:
    for mark in real:
        test = mark(test)
    return test


# --- refusals


def configuration(**changes: Any) -> Any:
    """The part of a `VllmConfig` that is looked at, with one setting changed."""
    scheduling = {"max_num_batched_tokens": 2048, "enable_chunked_prefill": True}
    scheduling |= {"long_prefill_token_threshold": 0}
    made: dict[str, Any] = {
        "scheduler_config": SimpleNamespace(**scheduling),
        "parallel_config": SimpleNamespace(pipeline_parallel_size=1),
        "model_config": SimpleNamespace(is_encoder_decoder=False, max_model_len=1024),
        "speculative_config": None,
    }
    for name, value in changes.items():
        part, _, inner = name.partition("__")
        if inner:
            setattr(made[part], inner, value)
        else:
            made[part] = value
    return SimpleNamespace(**made)


CASES: dict[str, tuple[Policy, dict[str, Any]]] = {
    "diffusion models": (pars(), {"diffusion_config": object()}),
    "speculative decoding": (SLAI(max_tokens=2048), {"speculative_config": object()}),
    "pipeline parallelism": (RAD(), {"parallel_config__pipeline_parallel_size": 2}),
    "context parallelism": (RAD(), {"parallel_config__decode_context_parallel_size": 2}),
    "prefills on some steps only": (RAD(), {"scheduler_config__prefill_schedule_interval": 2}),
    "encoder-decoder models": (RAD(), {"model_config__is_encoder_decoder": True}),
    "encoder disaggregation": (RAD(), {"ec_transfer_config": object()}),
    "whole prompts": (Orca(), {"model_config__max_model_len": 2049}),
    "chunked prefill off": (RAD(), {"scheduler_config__enable_chunked_prefill": False}),
    "limit of long prefills": (Orca(), {"scheduler_config__long_prefill_token_threshold": 9}),
}


@pytest.mark.parametrize("feature", REFUSALS)
def test_a_refusal_names_policy_option_reason_and_remedy(feature):
    policy, changes = CASES[feature]
    require_features(configuration(), policy)
    refusal = REFUSALS[feature]
    with pytest.raises(UnsupportedByEngine) as refused:
        require_features(configuration(**changes), policy)
    said = str(refused.value)
    assert said.startswith(f"policy {policy.name!r} cannot be served with {refusal.option}: ")
    assert refusal.why in said
    assert refusal.instead in said
    if refusal.planning_only:
        assert said.endswith("as fcfs and pars do")
        for policy in (FCFS(), pars()):
            require_features(configuration(**changes), policy)


def test_the_policys_own_step_limits_whole_prompts_too():
    whole = configuration(scheduler_config__enable_chunked_prefill=False)
    require_features(whole, SLAI(max_tokens=1024))
    with pytest.raises(UnsupportedByEngine, match="and the policy's max_tokens"):
        require_features(whole, SLAI(max_tokens=512))
    both = configuration(
        scheduler_config__enable_chunked_prefill=False,
        scheduler_config__long_prefill_token_threshold=9,
    )
    with pytest.raises(UnsupportedByEngine, match="--long-prefill-token-threshold"):
        require_features(both, SLAI(max_tokens=1024))


ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs/vllm-features.md").read_text()


def test_the_page_has_a_test_or_a_refusal_for_every_feature():
    rows = [line.strip("|\n ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
    cells = {feature: (ordering, planning) for feature, ordering, planning in rows[1:]}
    assert cells.keys() >= REFUSALS.keys()
    files = (path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    tests = {name for text in files for name in re.findall(r"^def (test_\w+)", text, flags=re.M)}
    for feature, (ordering, planning) in cells.items():
        refusal = REFUSALS.get(feature)
        said = refusal and f"{refusal.option}: {refusal.why}; {refusal.instead}"
        assert ("refused" in planning) == (refusal is not None), feature
        assert ("refused" in ordering) == (refusal is not None and not refusal.planning_only)
        for cell in (ordering, planning):
            named = set(re.findall(r"`(test_\w+)`", cell))
            assert named <= tests, feature
            assert not cell.startswith("works") or named, feature
            assert "refused" not in cell or f": {said}" in cell, feature


def test_the_page_says_which_policies_only_order_the_queue():
    lists = re.findall(r"(?:queue|step) \(([a-z, \n-]+)\)", PAGE.partition("|")[0])
    ordering, planning = ([name.strip() for name in names.split(",")] for names in lists)
    assert sorted(ordering + planning) == sorted(POLICIES)
    assert [plans_steps(load_policy(name)) for name in ordering] == [False] * len(ordering)
    assert [plans_steps(load_policy(name)) for name in planning] == [True] * len(planning)


def test_what_is_installed_tells_vllm_of_the_refusals():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["vllm.general_plugins"]["lengthwise"].partition(":")
    assert getattr(import_module(module), name) is require_early


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    set_environment()
    return make_tiny_model(tmp_path_factory.mktemp("model"))


OPTIONS = ["--skip-tokenizer-init", "--enforce-eager", "--max-model-len=512"]


@marked
@pytest.mark.parametrize(
    ("feature", "policy", "options"),
    [
        ("speculative decoding", SLAI(),
         ['--speculative-config={"method": "ngram", "num_speculative_tokens": 2}']),
        ("pipeline parallelism", SLAI(), ["--pipeline-parallel-size=2"]),
        ("prefills on some steps only", RAD(), ["--prefill-schedule-interval=2"]),
        ("chunked prefill off", RAD(), ["--no-enable-chunked-prefill"]),
        ("whole prompts", SLAI(max_tokens=256), ["--no-enable-chunked-prefill"]),
        ("limit of long prefills", Orca(), ["--long-prefill-token-threshold=9"]),
    ],
)  # fmt: skip
def test_an_option_is_found_in_vllms_own_configuration(model, feature, policy, options):
    plain = read_configuration([f"--model={model}", *OPTIONS])
    require_features(plain, policy)
    with pytest.raises(UnsupportedByEngine) as refused:
        require_features(read_configuration([f"--model={model}", *OPTIONS, *options]), policy)
    assert REFUSALS[feature].option in str(refused.value)


@marked
def test_options_that_vllm_refuses_are_told_in_a_sentence(model):
    with pytest.raises(ConfigError, match=r"max_model_len.*behind the --") as refused:
        read_configuration([f"--model={model}", "--max-model-len=99999999"])
    assert "\n" not in str(refused.value)
    assert "input_value" not in str(refused.value)


@marked
def test_vllm_refuses_only_for_our_scheduler(model, monkeypatch):
    from vllm import EngineArgs
    from vllm.config import VllmConfig

    from scheduler_adapters.engines.vllm_v1.rank_scheduler import RankScheduler

    monkeypatch.setattr(VllmConfig, "__post_init__", VllmConfig.__post_init__)
    require_early()
    once = VllmConfig.__post_init__
    require_early()
    assert VllmConfig.__post_init__ is once

    def made_with(scheduler_cls: Any, **settings: Any) -> Any:
        return EngineArgs(
            model=str(model),
            skip_tokenizer_init=True,
            max_model_len=512,
            enable_chunked_prefill=False,
            scheduler_cls=scheduler_cls,
            additional_config={"lengthwise": settings} if settings else {},
        ).create_engine_config()

    ours = "scheduler_adapters.engines.vllm_v1"
    for refused, settings in (
        (f"{ours}.rad", {}),
        (f"{ours}.scheduler", {"policy": "rad"}),
        (RankScheduler, {"policy": "rad"}),
    ):
        with pytest.raises(UnsupportedByEngine, match=r"'rad' .* --no-enable-chunked-prefill"):
            made_with(refused, **settings)
    for served in (None, "vllm.v1.core.sched.scheduler.Scheduler", f"{ours}.pars"):
        made_with(served)


# --- vLLM's and our schedulers, and what stands in for a model


BUDGET, SEATS, MAX_MODEL_LEN = 512, 8, 512


CONFIG = OfflineConfig(
    scheduler="pars", max_num_seqs=SEATS, max_num_batched_tokens=BUDGET, kv_cache_mib=2
)
ARGUMENTS = {"max_model_len": MAX_MODEL_LEN, "enable_prefix_caching": False}


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """vLLM under PARS, with a tokenizer."""
    set_environment()
    model = make_tiny_model(tmp_path_factory.mktemp("model"))
    write_tokenizer(model)
    with open_engine(replace(CONFIG, model=model), skip_tokenizer_init=False, **ARGUMENTS) as made:
        yield made


@pytest.fixture
def parts(engine):
    """What vLLM makes the engine's scheduler of."""
    live = scheduler_of(engine)
    names = ("vllm_config", "kv_cache_config", "structured_output_manager", "block_size")
    return {name: getattr(live, name) for name in (*names, "hash_block_size")}


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


def request(name: str, prompt: int, tokens: int, *, score: float | None = None, **more: Any) -> Any:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    hints = {} if score is None else {SCORE: score, LIMITS: (0, inf)}
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, extra_args=hints)
    return Request(name, [5] * prompt, params, None, arrival_time=time.time(), **more)


class Served:
    """A scheduler, stepped: who ran with how many tokens, and what everybody was answered."""

    def __init__(self, scheduler: Any, *requests: Any) -> None:
        self.scheduler = scheduler
        self.answers: dict[str, list[int]] = defaultdict(list)
        self.flying: deque[Any] = deque()
        """Steps that are scheduled and have not ended."""
        for each in requests:
            scheduler.add_request(each)

    def step(self, throttle_prefills: bool = False) -> dict[str, int]:
        self.schedule(throttle_prefills)
        return self.update()

    def schedule(self, throttle_prefills: bool = False) -> None:
        output = self.scheduler.schedule(throttle_prefills)
        here = {name: self.scheduler.requests[name] for name in output.num_scheduled_tokens}
        ended = [name for name, each in here.items() if not each.is_prefill_chunk]
        self.flying.append((output, here, ended))

    def update(self) -> dict[str, int]:
        from vllm.v1.outputs import ModelRunnerOutput

        (output, here, ended), scheduler = self.flying.popleft(), self.scheduler
        names = list(here)
        pools = any(each.pooling_params for each in here.values())
        ran = ModelRunnerOutput(
            names,
            {name: at for at, name in enumerate(names)},
            [[3 + len(self.answers[n])] if n in ended and not pools else [] for n in names],
            pooler_output=[[0.5] if name in ended and pools else None for name in names],
        )
        for outputs in scheduler.update_from_output(output, ran).values():
            for one in outputs.outputs:
                self.answers[one.request_id] += one.new_token_ids
        if (planner := getattr(scheduler, "_lengthwise_planner", None)) is not None:
            running = {each.request_id for each in scheduler.running}
            assert {each.request_id for each in planner.residents} == running
        return dict(output.num_scheduled_tokens)

    def finish(self) -> list[dict[str, int]]:
        steps = []
        while self.scheduler.get_num_unfinished_requests():
            steps.append(self.step())
            assert len(steps) < 5000
        return steps


@marked
@pytest.mark.parametrize("policy", [pars(), SLAI(max_tokens=BUDGET)], ids=of_policy)
def test_no_token_is_kept_for_a_whole_prompt_that_does_not_fit(made, policy):
    scheduler = made(policy, enable_chunked_prefill=False)
    served = Served(scheduler, *(request(f"decode {n}", 8, 60) for n in range(4)))
    served.step()
    for number in range(2):
        scheduler.add_request(request(f"prompt {number}", 300, 3))
    steps = [served.step(), served.step()]
    decodes = {f"decode {n}": 1 for n in range(4)}
    assert steps == [{"prompt 0": 300} | decodes, {"prompt 1": 300, "prompt 0": 1} | decodes]


@marked
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
    adaptive = {ADAPTIVE: True}
    assert first_step(sarathi, prompts, **{THRESHOLD: 9}, **adaptive) == [128, 50, 50, 50]
    assert first_step(RAD(chunk=64), prompts, **{THRESHOLD: 9}, **adaptive) == [64]


THRESHOLD = "long_prefill_token_threshold"
ADAPTIVE = "long_prefill_token_threshold_adaptive"


@marked
@pytest.mark.parametrize("policy", [pars(), SLAI(), RoundRobin()], ids=of_policy)
def test_no_more_requests_run_than_the_operator_wants(made, policy):
    requests = (request(str(number), 8, 6) for number in range(9))
    name = "max_num_active_seqs"
    if not hasattr(made(policy).scheduler_config, name):
        name = "max_num_seqs"  # the only limit of older versions
    assert max(map(len, Served(made(policy, **{name: 3}), *requests).finish())) == 3


@marked
@pytest.mark.parametrize("policy", [pars(), FCFS()], ids=of_policy)
def test_a_throttled_step_starts_no_prompt_while_others_decode(made, policy):
    """As `--prefill-schedule-interval` has it in data parallelism."""
    scheduler = made(policy)
    served = Served(scheduler, request("decodes", 8, 9))
    served.step()
    scheduler.add_request(request("prompt", 8, 9))
    assert list(served.step(True)) == ["decodes"]
    assert list(served.step()) == ["decodes", "prompt"]


@marked
@pytest.mark.parametrize("policy", [pars(), FCFS()], ids=of_policy)
def test_pipelined_batches_lose_no_token(made, policy):
    served = Served(made(policy), *(request(str(n), 8 + 30 * n, 9) for n in range(12)))
    while served.scheduler.requests:
        served.schedule()
        if len(served.flying) == 2:
            served.update()
    assert served.answers == {str(n): list(range(3, 12)) for n in range(12)}


@marked
@pytest.mark.parametrize("policy", [pars(), SLAI(), RAD(chunk=64), RoundRobin()], ids=of_policy)
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


@marked
def test_a_session_between_two_turns_takes_no_place_in_a_step(made):
    from vllm.v1.request import RequestStatus

    idle = request("idle", 8, 2)
    idle.status = RequestStatus.WAITING_FOR_STREAMING_REQ
    assert Served(made(RAD()), idle, request("other", 20, 2)).step() == {"other": 20}


@marked
def test_waits_for_a_grammar_or_adapter_hold_up_no_others(made):
    from vllm.v1.request import RequestStatus
    from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

    for policy in (pars(), SLAI(), RoundRobin(quantum_tokens=5), RAD()):
        scheduler = made(policy, lora_config=SimpleNamespace(max_loras=1))
        grammar: Future[Any] = Future()
        compiling = request("compiling", 8, 2)
        compiling.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        compiling.structured_output_request = _structured(grammar)
        first, second = (request(f"lora {n}", 8, 30, lora_request=adapter(n)) for n in (1, 2))
        served = Served(scheduler, first, compiling, second, request("plain", 8, 30))
        steps = [served.step() for _ in range(6)]
        names = {name for step in steps for name in step}
        assert names == {"lora 1", "plain"}, policy.name
        compiled = Mock(spec=StructuredOutputGrammar)  # 0.28 asserts that it is one
        compiled.accept_tokens.return_value, compiled.is_terminated.return_value = True, False
        grammar.set_result(compiled)
        served.finish()
        assert [len(served.answers[n]) for n in ("compiling", "lora 2")] == [2, 30]


def adapter(number: int) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest(f"lora {number}", number, "/nowhere")


def _structured(grammar: Future[Any]) -> Any:
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.structured_output.request import StructuredOutputRequest

    made = StructuredOutputRequest(params=StructuredOutputsParams(choice=["a"]))
    made.grammar = grammar  # type: ignore[assignment]
    return made


@marked
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


@marked
@pytest.mark.parametrize("policy", [pars(), RoundRobin(quantum_tokens=5), RAD()], ids=of_policy)
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


@marked
@pytest.mark.parametrize(
    "policy", [pars(), SLAI(max_decodes=2), RAD(tile=3, chunk=32), RoundRobin(quantum_tokens=4)],
    ids=of_policy,
)  # fmt: skip
def test_an_abort_in_any_state_leaves_nothing_behind(made, policy):
    from vllm.v1.request import RequestStatus

    scheduler, dice = made(policy), random.Random(0)
    blocks = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    served = Served(scheduler)
    for number in range(150):
        for copies in range(dice.randint(0, 2)):
            scheduler.add_request(
                request(f"{number} {copies}", dice.randint(1, 400), dice.randint(1, 60),
                        resumable=dice.random() < 0.2)
            )  # fmt: skip
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


@marked
@pytest.mark.parametrize("policy", [pars(), SLAI(), RAD(chunk=64)], ids=of_policy)
def test_pooling_requests_end_with_their_prompt(made, policy):
    from vllm import PoolingParams
    from vllm.v1.request import Request

    scheduler, prompts = made(policy), [300, 20, 150]
    embed, at_s = PoolingParams(task="embed"), time.time()
    pooled = [
        Request(str(n), [5] * size, None, embed, arrival_time=at_s)
        for n, size in enumerate(prompts)
    ]
    served = Served(scheduler, *pooled)
    steps = served.finish()
    computed = [sum(step.get(str(n), 0) for step in steps) for n in range(3)]
    assert computed == prompts
    assert not scheduler.requests


def media(name: str, *places: int, length: int = 100) -> list[Any]:
    """Images, or whatever an encoder reads, of `length` tokens at these places of a prompt."""
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    def spec(offset: int) -> Any:
        place = PlaceholderRange(offset=offset, length=length)
        of = {"data": None, "modality": "image", "identifier": f"{name} {offset}"}
        return MultiModalFeatureSpec(mm_position=place, **of)

    return [spec(offset) for offset in places]


@marked
@pytest.mark.parametrize("policy", [pars(), SLAI(), Sarathi(max_tokens=256)], ids=of_policy)
def test_prompts_with_images_keep_to_the_encoders_budget(made, policy):
    from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

    scheduler = made(policy)
    scheduler.max_num_encoder_input_tokens = 150
    scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=200)
    names = [str(number) for number in range(6)]
    served = Served(
        scheduler, *(request(name, 240, 6, mm_features=media(name, 10, 120)) for name in names)
    )
    served.finish()
    assert {name: len(tokens) for name, tokens in served.answers.items()} == dict.fromkeys(names, 6)
    assert not scheduler.requests


def starts_under_pars(
    make: Callable[[Policy | None], Any], features: Mapping[int, list[Any]] | None = None
) -> list[int]:
    """The order in which PARS starts 12 requests; FCFS takes the steps of vLLM's scheduler."""

    def run(policy: Policy | None) -> list[dict[str, int]]:
        requests = (
            request(str(n), 60, 6 + n, score=-n, mm_features=(features or {}).get(n))
            for n in range(12)
        )
        served = Served(make(policy), *requests)
        steps = served.finish()
        assert served.answers == {str(n): list(range(3, 9 + n)) for n in range(12)}
        return steps

    assert run(FCFS()) == run(None)
    return [int(name) for name in dict.fromkeys(name for step in run(pars()) for name in step)]


NEWEST_FIRST = [*reversed(range(12))]


@marked
def test_an_encoder_decoder_model_keeps_vllms_own_steps(made, parts):
    from vllm.v1.core.encoder_cache_manager import EncoderDecoderCacheManager
    from vllm.v1.kv_cache_interface import CrossAttentionSpec, KVCacheGroupSpec

    config = parts["kv_cache_config"]
    own = config.kv_cache_groups[0].kv_cache_spec
    spec = CrossAttentionSpec(**{f.name: getattr(own, f.name) for f in fields(CrossAttentionSpec)})
    groups = [*config.kv_cache_groups, KVCacheGroupSpec(["cross"], spec)]

    def make(policy: Policy | None) -> Any:
        scheduler = made(
            policy, other_parts={"kv_cache_config": replace(config, kv_cache_groups=groups)}
        )
        scheduler.is_encoder_decoder = True
        scheduler.max_num_encoder_input_tokens = 700
        scheduler.encoder_cache_manager = EncoderDecoderCacheManager(cache_size=700)
        return scheduler

    # 10 of 64 blocks for what the encoder read, so that fewer run than there are seats.
    read = {n: media(str(n), 0, length=300) for n in range(12)}
    assert starts_under_pars(make, read) == NEWEST_FIRST


@marked
def test_media_encoded_elsewhere_start_by_rank_once_present(made):
    from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase
    from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

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
        scheduler = made(policy)
        scheduler.ec_connector = Encoder(scheduler)
        scheduler.max_num_encoder_input_tokens = 1000
        scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=2000)
        return scheduler

    seen = {n: media(str(n), 10, length=40) for n in range(12)}
    assert starts_under_pars(make, seen) == [10, 8, 6, 4, 2, 0, 11, 9, 7, 5, 3, 1]


@marked
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


@marked
@pytest.mark.parametrize(
    "policy",
    [SLAI(max_decodes=3, offset=0.0, default_tbt_s=1e6), RAD(chunk=64), RoundRobin()],
    ids=of_policy,
)
def test_a_data_parallel_rank_plans_as_a_lone_engine(made, policy):
    def steps(**changes: Any) -> list[dict[str, int]]:
        requests = (request(str(n), 40 + 9 * n, 12) for n in range(14))
        return Served(made(copy.copy(policy), **changes), *requests).finish()

    rank = {"data_parallel_size": 2, "data_parallel_rank": 1, "data_parallel_index": 1}
    assert steps(parallel=rank, other_parts={"include_finished_set": True}) == steps()


# --- whole engines


def answers(engine: Any, *requests: tuple[str, list[int], dict[str, Any]]) -> dict[str, Any]:
    """What each request (name, prompt, parameters) is answered, in the order in which they end."""
    from vllm import SamplingParams

    for name, prompt, more in requests:
        params = SamplingParams(temperature=0, **more)
        engine.add_request(name, {"prompt_token_ids": prompt}, params)
    made = {}
    for _ in range(5000):  # a fault must not hang the tests
        if not engine.has_unfinished_requests():
            break
        for output in engine.step():
            if output.finished:
                made[output.request_id] = output.outputs[0]
    assert not engine.has_unfinished_requests()
    return made


@marked
@pytest.mark.parametrize("policy", [pars(), SLAI(max_decodes=3), RAD()], ids=of_policy)
def test_structured_outputs_follow_their_grammar(engine, policy):
    from vllm.sampling_params import StructuredOutputsParams

    scheduler_of(engine).lengthwise_start(policy)
    choices = ["yesno", "longpoem"]
    follows = [None, StructuredOutputsParams(choice=choices)]
    asked = [{"max_tokens": 8, "structured_outputs": follows[n % 2]} for n in range(12)]
    made = answers(engine, *((str(n), [5 + n, 6, 7], more) for n, more in enumerate(asked)))
    assert len(made) == 12
    for name, answer in made.items():
        said = answer.text.replace(" ", "")
        assert (said in choices) == (int(name) % 2 == 1), said
    scheduler_of(engine).lengthwise_start(pars())


@marked
def test_speculative_decoding_keeps_order_and_tokens(engine):
    speculative = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3,
                   "prompt_lookup_min": 1}  # fmt: skip
    requests = []
    for number in range(12):
        more = {"max_tokens": 40 - number, "extra_args": {SCORE: float(40 - number)}}
        requests.append((str(number), [5, 6, 7 + number] * 6, more | {"ignore_eos": True}))
    plain = answers(engine, *requests)
    unguarded = replace(CONFIG, settings={"guard": "none"})
    with open_engine(unguarded, speculative_config=speculative, **ARGUMENTS) as speculating:
        scheduler = scheduler_of(speculating)
        accepted, update = list[int](), type(scheduler).update_from_output

        def watched(output: Any, ran: Any) -> Any:
            accepted.extend(len(tokens) - 1 for tokens in ran.sampled_token_ids if tokens)
            return update(scheduler, output, ran)

        scheduler.update_from_output = watched
        made = answers(speculating, *requests)
        del scheduler.update_from_output
    ours, theirs = ({n: list(a.token_ids) for n, a in of.items()} for of in (made, plain))
    assert ours == theirs
    assert max(accepted) > 0
    # Eight seats: the four longest wait for one.
    assert set(list(made)[-4:]) == {"0", "1", "2", "3"}
