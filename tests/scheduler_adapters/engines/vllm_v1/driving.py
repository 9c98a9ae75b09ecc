"""Schedulers stepped without a model, and requests answered by whole engines."""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import Any

from scheduler_adapters.engines.random_model import write_config
from scheduler_adapters.engines.vllm_v1.in_process import set_environment
from scheduler_adapters.planner.request_annotations import LIMITS, SCORE
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policy import Policy

SEATS = 8
VARIED: dict[str, Any] = {
    "repetition_penalty": 50.0,
    "allowed_token_ids": list(range(3, 99)),
    "ignore_eos": True,
    "detokenize": False,
}
"""Sampling of answers that differ and share tokens; a random model would repeat itself."""


def scheduler_parts(folder: Path, *, blocks: int, **arguments: Any) -> dict[str, Any]:
    """What vLLM makes a scheduler of, with a memory of so many blocks of 32 tokens."""
    set_environment()
    import torch
    from vllm import EngineArgs
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    config = EngineArgs(
        model=str(write_config(folder, "tiny")),
        skip_tokenizer_init=True,
        max_model_len=512,
        block_size=32,
        max_num_seqs=SEATS,
        additional_config={"lengthwise": {"policy": "fcfs", "think_end": [7]}},
        **arguments,
    ).create_engine_config()
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=32, num_kv_heads=2, head_size=64, dtype=torch.bfloat16)
    groups = [KVCacheGroupSpec(["0"], spec)]
    return {
        "vllm_config": config,
        "kv_cache_config": KVCacheConfig(blocks, kv_cache_tensors=[], kv_cache_groups=groups),
        "structured_output_manager": StructuredOutputManager(config),
        "block_size": 32,
        "hash_block_size": 32,
    }


def request(name: str, prompt: int, tokens: int, *, score: float | None = None, **more: Any) -> Any:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    hints = {} if score is None else {SCORE: score, LIMITS: (0, inf)}
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, extra_args=hints)
    return Request(name, [5] * prompt, params, None, arrival_time=time.time(), **more)


class Served:
    """A scheduler, stepped, and the answers.

    The token at each position after the prompt is 3 for the first, 4 for the second, and so on.
    """

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
        here = [self.scheduler.requests[name] for name in output.num_scheduled_tokens]
        tokens = [
            [] if one.is_prefill_chunk else [3 + one.num_computed_tokens - one.num_prompt_tokens]
            for one in here
        ]
        pools = any(one.pooling_params for one in here)
        self.flying.append((output, tokens, pools))

    def update(self) -> dict[str, int]:
        from vllm.v1.outputs import ModelRunnerOutput

        (output, tokens, pools), scheduler = self.flying.popleft(), self.scheduler
        names = list(output.num_scheduled_tokens)
        ran = ModelRunnerOutput(
            names,
            {name: at for at, name in enumerate(names)},
            [[] if pools else new for new in tokens],
            pooler_output=[[0.5] if new and pools else None for new in tokens],
        )
        for outputs in scheduler.update_from_output(output, ran).values():
            for one in outputs.outputs:
                self.answers[one.request_id] += one.new_token_ids
        if (planner := getattr(scheduler, "_lengthwise_planner", None)) is not None:
            running = {each.request_id for each in scheduler.running}
            assert {each.request_id for each in planner.residents} == running
        return dict(output.num_scheduled_tokens)

    def finish(self, in_flight: int = 1) -> list[dict[str, int]]:
        """Serve all with so many steps in flight; the tokens of each step by request."""
        steps: list[dict[str, int]] = []
        while self.scheduler.get_num_unfinished_requests() or self.flying:
            if self.scheduler.get_num_unfinished_requests():
                self.schedule()
            if len(self.flying) == in_flight or not self.scheduler.get_num_unfinished_requests():
                steps.append(self.update())
            assert len(steps) < 5000
        return steps


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
