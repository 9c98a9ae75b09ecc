"""transformers' continuous batching in this process, with a model of random weights.

Each request gets exactly its output tokens, without end-of-sequence tokens, so that policies are
compared on the same work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from operator import itemgetter
from typing import Any, Final

import numpy as np
from tqdm import tqdm

from lengthwise.errors import ConfigError, SchedulingError
from scheduler_adapters.engines.driver import (
    EngineDriver,
    EngineLimits,
    ServedRun,
    TokenTimes,
    late_scores_of,
    longest_context,
    random_prompts,
)
from scheduler_adapters.engines.engine_clock import ClockKind, EngineClock, WallClock
from scheduler_adapters.engines.random_model import find_device, make_random_model
from scheduler_adapters.planner.request_annotations import SCORE, annotations_of
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policy import Policy
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.workload.requests import Requests

_PAGE_TOKENS: Final = 32
# Of a GPU's free memory: attention over all residents needs copies of their keys.
_KV_FRACTION: Final = 0.6
# The share of the KV blocks that admissions leave free, by the engine's own default.
_SAFETY_MARGIN: Final = 0.15


@dataclass(frozen=True, kw_only=True)
class BatchingConfig:
    """The model and the limits of one engine."""

    shape: str = "tiny"
    """Shape of the random model: tiny (1.2 M parameters), small (14 M), 7b (Llama-2-7B)."""
    device: str | None = None
    """cpu, cuda or cuda:N; none: the first GPU, else the CPU."""
    max_num_seqs: int = 64
    """Most requests that run at once."""
    max_tokens: int = 512
    """Token budget of a step."""
    attention: str | None = None
    """Attention of the model, by its name in transformers, such as sdpa, paged|eager, or
    flash_attention_2 with the package flash-attn; none: the engine's choice."""
    seed: int = 0
    """Seed of the draw, classes, scores, prompts and weights."""


def open_driver(config: BatchingConfig, requests: Requests) -> TransformersDriver:
    """Make the model and an engine with room for these requests, and warm it up.

    Raises ConfigError: no such shape, device or attention, or too little memory.
    """
    device = find_device(config.device)
    longest = longest_context(requests)
    model = make_random_model(config.shape, device, max_tokens=longest, seed=config.seed)
    if config.attention is not None:
        try:
            model.set_attn_implementation(config.attention)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"attention is {config.attention!r}: {error}") from error
    num_blocks = kv_blocks(model.config, device, longest - 1, config.max_num_seqs)
    driver = TransformersDriver(model, config, num_blocks)
    few = requests.take(np.arange(min(len(requests), 2 * config.max_num_seqs)))
    few = replace(few, output_tokens=np.minimum(few.output_tokens, 4))
    driver.serve(few, clock=WallClock(), seed=config.seed)
    return driver


class TransformersDriver(EngineDriver):
    """One model, and a new batching manager for every run."""

    def __init__(self, model: Any, config: BatchingConfig, num_blocks: int) -> None:
        self._model = model
        self._config = config
        self._num_blocks = num_blocks

    def clock(self, wanted: ClockKind | None) -> tuple[ClockKind, EngineClock]:
        if wanted not in (None, "wall"):
            raise ConfigError(
                f"clock is {wanted!r}, but transformers serves in a thread of its own; use wall"
            )
        return "wall", WallClock()

    def serve(
        self,
        requests: Requests,
        *,
        clock: EngineClock,
        seed: int,
        policy: Policy | None = None,
        observers: Sequence[EngineObserver] = (),
    ) -> ServedRun:
        """Serve the requests as `EngineDriver.serve` does, by FCFS if no policy is given.

        Raises:
            UnsupportedByEngine: the engine cannot run the policy.
            SchedulingError: the engine failed.
        """
        from scheduler_adapters.engines.transformers_batching.planner_view import TransformersView
        from scheduler_adapters.engines.transformers_batching.rank_scheduler import (
            require_ours,
            use_policy,
        )

        policy, times = policy or FCFS(), TokenTimes()
        hints: dict[str, Mapping[str, Any]] = {}
        scheduler_type = use_policy(policy, hints, observers=[times, *observers], clock=clock)
        manager = self._make_manager(scheduler_type)
        scheduler = require_ours(manager)
        view = TransformersView(scheduler)
        self.limits = EngineLimits.of(view, watermark_fraction=_SAFETY_MARGIN)
        prompts = random_prompts(requests, seed, self._model.config.vocab_size)

        def add(row: int) -> None:
            request_id = str(requests.request_id[row])
            hints[request_id] = annotations_of(requests, row)
            size = int(requests.output_tokens[row])
            manager.add_request(prompts[row], request_id=request_id, max_new_tokens=size)

        def add_score(row: int) -> None:
            score = float(requests.score[row])
            scheduler.score_arrived(str(requests.request_id[row]), {SCORE: score})

        count, num_first = len(requests), int((requests.arrival_s <= 0).sum())
        for row in range(num_first):
            add(row)
        clock.restart()
        manager.start()
        try:
            events = [(float(requests.arrival_s[row]), row, add) for row in range(num_first, count)]
            events += [(known_s, row, add_score) for known_s, row in late_scores_of(requests)]
            for at_s, row, happen in sorted(events, key=itemgetter(0)):
                clock.wait_until(at_s)
                happen(row)
            answers = _wait_for_all(manager, policy.name, count)
        finally:
            manager.stop(block=True)
        return ServedRun(
            timeline=times.timeline(requests),
            token_ids=[answers[str(request_id)] for request_id in requests.request_id],
        )

    def _make_manager(self, scheduler_type: str) -> Any:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        from scheduler_adapters.engines.transformers_batching.planner_view import PAGE_SETTING

        manager = self._model.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1),
            continuous_batching_config=ContinuousBatchingConfig(
                scheduler_type=scheduler_type,
                num_blocks=self._num_blocks,
                max_batch_tokens=self._config.max_tokens,
                max_requests_per_batch=self._config.max_num_seqs,
                safety_margin=_SAFETY_MARGIN,
                allow_block_sharing=False,
                use_async_batching=False,
                **{PAGE_SETTING: _PAGE_TOKENS},
            ),
        )
        try:
            manager.warmup()  # makes the cache, outside of every request's latency
        except MemoryError as error:
            raise ConfigError(
                f"{self._num_blocks} KV blocks do not fit ({error}); lower max_num_seqs or "
                "max_context"
            ) from error
        return manager


def kv_blocks(config: Any, device: str, longest: int, max_num_seqs: int) -> int:
    """Return the KV blocks for all seats at full length and the margin, or for the free memory.

    Raises ConfigError: the longest request does not fit into the memory.
    """
    import torch

    needed = -(-longest // _PAGE_TOKENS) + 1
    wanted = ceil(max_num_seqs * needed / (1 - _SAFETY_MARGIN))
    if not device.startswith("cuda"):
        return wanted
    head_size = config.hidden_size // config.num_attention_heads
    kv_heads = config.num_hidden_layers * config.num_key_value_heads
    token_bytes = int(4 * kv_heads * head_size)  # a key and a value in bfloat16
    free_bytes, _ = torch.cuda.mem_get_info(device)
    available = int(_KV_FRACTION * free_bytes) // (_PAGE_TOKENS * token_bytes)
    if available < needed:
        raise ConfigError(
            f"the longest request has {longest} tokens, and beside the model {device} holds the "
            f"KV of {available * _PAGE_TOKENS}; lower max_context"
        )
    return min(wanted, available)


def _wait_for_all(manager: Any, name: str, count: int) -> dict[str, list[int]]:
    answers: dict[str, list[int]] = {}
    with tqdm(total=count, desc=name, unit="request", disable=None) as bar:
        while len(answers) < count:
            result = manager.get_result(timeout=1.0)
            if result is not None and result.error is None:
                answers[result.request_id] = list(result.generated_tokens)
                bar.update()
            elif result is not None or not manager.is_running():
                error = "the engine stopped" if result is None else result.error
                raise SchedulingError(f"serving under {name} failed: {error}")
    return answers
