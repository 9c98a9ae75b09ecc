"""What our schedulers refuse in vLLM, before a model loads, and what needs a whole engine to work.

`test_served_features.py` has what works with vLLM's schedulers alone.
"""

import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
from scheduler_adapters.planner.request_annotations import SCORE
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.prefill_first import Orca
from scheduler_adapters.policies.rad import RAD
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policy import POLICIES, Policy, load_policy
from tests.scheduler_adapters.commands.vllm_server import write_tokenizer
from tests.scheduler_adapters.engines.vllm_v1.driving import answers

real = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


def of_policy(policy: Policy) -> str:
    return policy.name


def marked(test: Callable[..., Any]) -> Callable[..., Any]:
    for mark in real:
        test = mark(test)
    return test


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


CONFIG = OfflineConfig(scheduler="pars", max_num_seqs=8, max_num_batched_tokens=512, kv_cache_mib=2)
ARGUMENTS = {"max_model_len": 512, "enable_prefix_caching": False}


@pytest.fixture(scope="module")
def engine(model):
    """vLLM under PARS, with a tokenizer."""
    write_tokenizer(model)
    with open_engine(replace(CONFIG, model=model), skip_tokenizer_init=False, **ARGUMENTS) as made:
        yield made


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
