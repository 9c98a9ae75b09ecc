"""vLLM's engine in this process, opened and driven.

Each request gets exactly its `output_tokens`, end-of-sequence tokens ignored, so that schedulers
are compared on the same work; or, with real prompts, the model's answer up to its own end. Open one
engine per process: a second one breaks the first.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from importlib.util import find_spec
from itertools import product
from math import nan
from pathlib import Path
from typing import Any, Final

import numpy as np

from lengthwise.errors import ConfigError, UnsupportedByEngine
from lengthwise.settings import Count, settings
from scheduler_adapters.engines.engine_clock import ClockKind, EngineClock, clock_kind, make_clock
from scheduler_adapters.engines.random_model import VOCABULARY, make_tiny_model, write_config
from scheduler_adapters.engines.vllm_v1 import TESTED
from scheduler_adapters.engines.vllm_v1.additional_config import SETTINGS, configured_policy
from scheduler_adapters.planner.late_scores import LateScore
from scheduler_adapters.planner.request_annotations import REQUEST_KEY, annotations_of
from scheduler_adapters.policy import Policy
from scheduler_adapters.timeline.observer import EngineObserver, overriding
from scheduler_adapters.timeline.steps import Chunk, StepRecord
from scheduler_adapters.timeline.timeline import Timeline, timeline_from_token_times
from scheduler_adapters.workload.requests import Requests

STOCK: Final = "stock"
ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    # On CPU: without these two the worker binds itself to the first core, even if it is in use.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    # The engine core in this process: no child to start, and its scheduler can be read.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
"""Environment variables of vLLM; a variable that is set keeps its value."""


@settings
class OfflineConfig:
    """One engine and the scheduler inside it."""

    scheduler: str = STOCK
    """"stock": vLLM's own; else a policy of ours by name (fcfs, pars) or import path."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the policy, such as {"starve_after_s": 60}."""
    max_num_seqs: Count = 8
    """Most requests that run at once; further requests wait."""
    max_num_batched_tokens: Count = 512
    """Token budget of a step."""
    kv_cache_mib: Count = 64
    """Memory for KV blocks of 32 tokens; a token of the tiny model takes 1 KiB, of 7b 512."""
    model: Path | None = None
    """Folder of a model; none: a random Llama is made for the run."""
    shape: str = "tiny"
    """Shape of the random Llama: tiny (1.2 M parameters), small (14 M), 7b (Llama-2-7B)."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of vLLM's engine, in addition to ours or in place of them: {"enforce_eager": false}
    for CUDA graphs, {"dtype": "float32"}."""

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, below max_num_seqs "
                f"{self.max_num_seqs}; a step must have a token for each running request"
            )


@contextmanager
def open_driver(config: OfflineConfig, **engine_args: Any) -> Iterator[VllmDriver]:
    """Open an engine as `open_engine` does, warmed up."""
    with open_engine(config, **engine_args) as engine:
        # The first steps load code and allocate: they belong to no request's latency.
        _add_request(engine, "warm-up", [1, 2], 4)
        while engine.has_unfinished_requests():
            engine.step()
        yield VllmDriver(engine)


@contextmanager
def open_engine(config: OfflineConfig, **engine_args: Any) -> Iterator[Any]:
    """Open vLLM's `LLMEngine` in this process, with a random model unless `config` has one."""
    set_environment()
    if find_spec("vllm") is None:
        raise UnsupportedByEngine("vLLM is not installed; install vllm " + TESTED)
    arguments = {
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "enforce_eager": True,
        "block_size": 32,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "kv_cache_memory_bytes": config.kv_cache_mib << 20,
        "use_tqdm_on_load": False,
        **_scheduler_args(config),
        **engine_args,
        **config.engine,
    }
    with tempfile.TemporaryDirectory(prefix="lengthwise-") as folder:
        arguments = _model_args(config, Path(folder)) | arguments
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch, about vLLM's code
            from vllm import EngineArgs, LLMEngine

            engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
        try:
            yield engine
        finally:
            engine.engine_core.shutdown()


def set_environment() -> None:
    """Set the variables of `ENVIRONMENT` that are unset; OpenMP reads them as torch is imported."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # vLLM logs during its import, before it reads its log level.
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"].upper())


def scheduler_of(engine: Any) -> Any:
    """Return the scheduler of an engine made by `open_engine`."""
    return engine.engine_core.engine_core.scheduler


def _scheduler_args(config: OfflineConfig) -> dict[str, Any]:
    if config.scheduler == STOCK:
        if config.settings:
            raise ConfigError(
                f"settings are {dict(config.settings)}; the stock scheduler takes none"
            )
        return {}
    additional_config = {SETTINGS: {"policy": config.scheduler, **config.settings}}
    configured_policy(additional_config)  # wrong settings fail here, before the engine
    return {
        "scheduler_cls": "scheduler_adapters.engines.vllm_v1.scheduler",
        "additional_config": additional_config,
    }


def _model_args(config: OfflineConfig, folder: Path) -> dict[str, Any]:
    if config.model is None and config.shape == "7b":  # 13.5 GB are not written and read again
        return {"model": str(write_config(folder, config.shape)), "load_format": "dummy"}
    return {"model": str(config.model or make_tiny_model(folder, shape=config.shape))}


class VllmDriver:
    """vLLM's engine in this process, with its scheduler; idle between two calls.

    `shared_tokens`: length of a common prefix of the prompts.
    """

    def __init__(self, engine: Any, *, shared_tokens: int = 0) -> None:
        from scheduler_adapters.engines.vllm_v1.planner_view import VllmView

        self.engine = engine
        view = VllmView(scheduler_of(engine))
        names = ("max_num_seqs", "max_tokens", "block_tokens")
        self.limits: Mapping[str, Any] = {
            **{name: getattr(view, name) for name in names},
            "kv_blocks": view.total_blocks,
            "watermark_fraction": 0.0,
        }
        self._shared_tokens = shared_tokens
        self.answers: list[list[int]] = []
        """Tokens of each request served last."""

    def clock(self, wanted: ClockKind | None) -> tuple[ClockKind, EngineClock]:
        """Return a clock for this engine and its kind; None: the engine's usual kind.

        Raises ConfigError for a clock that cannot measure the engine.
        """
        kind = clock_kind(self.engine.vllm_config.device_config.device_type, wanted)
        return kind, make_clock(kind)

    def serve(
        self,
        requests: Requests,
        *,
        clock: EngineClock,
        seed: int,
        policy: Policy | None = None,
        observers: Sequence[EngineObserver] = (),
        prompts: list[list[int]] | None = None,
    ) -> Timeline:
        """Serve the requests as they arrive by `clock`, which is restarted.

        Each request gets its number of output tokens. Cached KV blocks and the policy's load are
        reset first. `seed` draws the prompts; `policy` None is the policy of the opened engine.
        Real `prompts`, as token ids, are answered greedily to the model's own end, or up to
        `output_tokens`; the timeline has the length of each answer.
        """
        ends = prompts is not None
        if prompts is None:
            prompts = random_prompts(requests, seed, shared_tokens=self._shared_tokens)
        self.answers = [[] for _ in prompts]
        self.engine.reset_prefix_cache()
        clock.restart()
        scheduler = scheduler_of(self.engine)
        if (tracker := getattr(scheduler, "lengthwise_tracker", None)) is not None:
            scheduler.lengthwise_start(policy or tracker.policy, observers=observers)
            scheduler.lengthwise_tracker.clock = clock
        with _watched_steps(scheduler, clock, overriding(observers, "measured")) as (first_s, took):
            return _serve(
                self.engine,
                requests,
                prompts,
                clock,
                first_s,
                took,
                ends=ends,
                answers=self.answers,
            )


@contextmanager
def _watched_steps(
    scheduler: Any, clock: EngineClock, observers: Sequence[EngineObserver]
) -> Iterator[tuple[dict[str, float], Callable[[float], None]]]:
    """Yield the times of first schedules by request id, and a function that takes a turn's seconds.

    The function reports to the observers the step whose outcome the turn of the engine has brought.
    An asynchronous engine has scheduled the next step by then.
    """
    # Sizes are read inside the engine and durations outside: so vLLM's own scheduler is measured in
    # the same way as ours.
    first_s: dict[str, float] = {}
    scheduled: deque[StepRecord] = deque()
    ended: list[StepRecord] = []
    schedule, update = scheduler.schedule, scheduler.update_from_output

    def noted(*args: Any, **kwargs: Any) -> Any:
        began_s = clock()
        output = schedule(*args, **kwargs)
        first_s.update((new.req_id, began_s) for new in output.scheduled_new_reqs)
        if observers and output.num_scheduled_tokens:
            scheduled.append(_size(scheduler, output.num_scheduled_tokens))
        return output

    def updated(output: Any, *args: Any, **kwargs: Any) -> Any:
        if observers and output.num_scheduled_tokens:
            ended.append(scheduled.popleft())
        return update(output, *args, **kwargs)

    def took(seconds: float) -> None:
        for size, observer in product(ended, observers):
            observer.measured(replace(size, seconds=seconds))
        ended.clear()

    scheduler.schedule, scheduler.update_from_output = noted, updated
    try:
        yield first_s, took
    finally:
        del scheduler.schedule, scheduler.update_from_output


def _size(scheduler: Any, scheduled: Mapping[str, int]) -> StepRecord:
    num_decodes = decode_context = 0
    prefills: list[Chunk] = []
    for request_id, tokens in scheduled.items():
        request = scheduler.requests[request_id]
        before = request.num_computed_tokens - tokens  # the engine has counted the step already
        if before >= request.num_prompt_tokens and tokens == 1:
            num_decodes += 1
            decode_context += before + 1
        else:
            prefills.append((before, tokens))
    return StepRecord.of(num_decodes, decode_context, prefills)


def _add_request(
    engine: Any,
    name: str,
    prompt: list[int],
    output_tokens: int,
    *,
    ends: bool = False,
    **extra: Any,
) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(
        temperature=0.0,
        max_tokens=output_tokens,
        min_tokens=0 if ends else output_tokens,
        ignore_eos=not ends,
        # Without a tokenizer the engine does not know the token.
        stop_token_ids=[engine.vllm_config.model_config.hf_config.eos_token_id] if ends else None,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args=extra.pop("extra_args", None),
    )
    engine.add_request(name, {"prompt_token_ids": prompt}, params, **extra)


def _serve(
    engine: Any,
    requests: Requests,
    prompts: list[list[int]],
    clock: EngineClock,
    first_s: Mapping[str, float],
    took: Callable[[float], None],
    *,
    ends: bool,
    answers: list[list[int]],
) -> Timeline:
    count, added = len(requests), 0
    token_s: list[list[float]] = [[] for _ in range(count)]
    held: list[Any] = []  # the engine's own requests
    tracker: Any = getattr(scheduler_of(engine), "lengthwise_tracker", None)
    late = deque(late_scores_of(requests) if tracker is not None else ())
    began_s = clock()
    while added < count or engine.has_unfinished_requests():
        if not engine.has_unfinished_requests():
            clock.wait_until(requests.arrival_s[added])
            began_s = clock()
        while added < count and requests.arrival_s[added] <= clock():
            _add_request(
                engine,
                str(added),
                prompts[added],
                int(requests.output_tokens[added]),
                ends=ends,
                arrival_time=time.time() - (clock() - requests.arrival_s[added]),
                extra_args=annotations_of(requests, added),
            )
            held.append(next(reversed(scheduler_of(engine).requests.values())))
            added += 1
        while late and late[0][0] <= clock():
            row = late.popleft()[1]
            key = annotations_of(requests, row)[REQUEST_KEY]
            tracker.late_scores.inbox.append(LateScore(key, float(requests.score[row])))
        clock.note_speed()
        outputs = engine.step()
        now_s = clock()
        took(now_s - began_s)
        began_s = now_s
        for output in outputs:
            row, ids = int(output.request_id), output.outputs[0].token_ids
            token_s[row] += [now_s] * len(ids)
            answers[row] += ids
    if ends:
        requests = replace(requests, output_tokens=np.array(list(map(len, answers))))
    return timeline_from_token_times(
        requests,
        token_s,
        scheduled_s=[first_s.get(request.request_id, nan) for request in held],
        preemptions=[request.num_preemptions for request in held],
    )


def random_prompts(requests: Requests, seed: int, *, shared_tokens: int = 0) -> list[list[int]]:
    """Return prompts of random token ids; no prompt finds another's KV blocks.

    `shared_tokens`: length of a common prefix, which never includes a prompt's last token.
    """
    random = np.random.default_rng(seed)
    prompts = [random.integers(3, VOCABULARY, size).tolist() for size in requests.prompt_tokens]
    shared = random.integers(3, VOCABULARY, shared_tokens).tolist()
    for prompt in prompts:
        size = min(shared_tokens, len(prompt) - 1)
        prompt[:size] = shared[:size]
    return prompts


def late_scores_of(requests: Requests) -> list[tuple[float, int]]:
    """Return (arrival time, row) of each score that arrives after its request, in order."""
    known_s = requests.arrival_s + requests.score_delay_s
    is_late = (requests.score_delay_s > 0) & np.isfinite(known_s) & ~np.isnan(requests.score)
    return sorted((float(known_s[row]), int(row)) for row in np.flatnonzero(is_late))


def longest_context(requests: Requests) -> int:
    """Return one more than the tokens of the longest request, prompt and output."""
    return int(np.max(requests.prompt_tokens + requests.output_tokens, initial=1)) + 1
