"""Our policies inside transformers' continuous batching, on the CPU, with a tiny random model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scheduler_adapters.engines.tiny_model import make_tiny_model
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policy import Policy
from scoring_service.errors import UnsupportedByEngine

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

LENGTHS = [40, 5, 30, 10, 50, 3]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    path: Path = make_tiny_model(tmp_path_factory.mktemp("transformers") / "model")
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(path, attn_implementation="paged|sdpa").eval()


def serve(
    model: Any, scheduler_type: str, *, ours: bool = True
) -> tuple[list[str], dict[str, Any]]:
    """Names in order of completion, and what each was answered; one request runs at a time."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    from scheduler_adapters.engines.transformers_batching import require_ours

    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=-1),
        continuous_batching_config=ContinuousBatchingConfig(
            scheduler_type=scheduler_type,
            page_size=32,
            num_blocks=64,
            max_batch_tokens=64,
            max_requests_per_batch=1,
            use_cuda_graph=False,
            use_async_batching=False,
        ),
    )
    for number, size in enumerate(LENGTHS):
        prompt = [7 + number, 11, 13]
        manager.add_request(prompt, request_id=str(size), max_new_tokens=size)
    manager.start()
    answers: dict[str, Any] = {}
    while len(answers) < len(LENGTHS):
        result = manager.get_result(timeout=60)
        assert result is not None
        assert result.error is None
        answers[result.request_id] = list(result.generated_tokens)
    if ours:
        assert not require_ours(manager)._tracked
    else:
        with pytest.raises(UnsupportedByEngine, match="FIFOScheduler"):
            require_ours(manager)
    manager.stop(block=True)
    return list(answers), answers


def scheduler_type(policy: Policy) -> str:
    from scheduler_adapters.engines.transformers_batching import use_policy

    return use_policy(policy, {str(n): {"lengthwise_score": float(n)} for n in LENGTHS})


def test_the_queue_is_served_in_the_policys_order_and_answers_stay_the_same(model: Any) -> None:
    stock_order, stock = serve(model, "fifo", ours=False)
    fcfs_order, under_fcfs = serve(model, scheduler_type(FCFS()))
    pars_order, under_pars = serve(model, scheduler_type(pars()))
    assert stock_order == fcfs_order == [str(n) for n in LENGTHS]
    assert pars_order == [str(n) for n in sorted(LENGTHS)]
    assert stock == under_fcfs == under_pars


def test_starving_requests_are_served_by_arrival(model: Any) -> None:
    order, _ = serve(model, scheduler_type(pars(starve_after_s=0.0)))
    assert order == [str(n) for n in LENGTHS]


def test_a_policy_that_plans_steps_is_refused() -> None:
    with pytest.raises(UnsupportedByEngine, match="plans steps"):
        scheduler_type(SLAI())
