"""Run requests through vLLM in this process and record when each of their tokens came.

    python -m scheduler_adapters.engines.vllm_v1.offline --requests requests.jsonl \\
        --scheduler pars --max-num-seqs 4 --out timeline.jsonl

Each request gets exactly its `output_tokens` (end-of-sequence is ignored), so schedulers are
compared on the same work. One engine per process: a second one breaks the first one's groups.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np

from scheduler_adapters.engines.engine_clock import ClockKind, EngineClock, make_clock
from scheduler_adapters.engines.tiny_model import VOCABULARY, make_tiny_model
from scheduler_adapters.engines.vllm_v1.additional_config import SETTINGS, configured_policy
from scheduler_adapters.planner.hints import HintCounts, hints_of
from scheduler_adapters.timeline.metrics import summarize
from scheduler_adapters.timeline.timeline import (
    Timeline,
    timeline_from_token_times,
    write_timeline,
)
from scheduler_adapters.workload.requests import Requests
from scheduler_adapters.workload.traces import read_trace
from scoring_service.command_line import make_parser, underscored
from scoring_service.errors import ConfigError, LengthwiseError, UnsupportedByEngine

STOCK: Final = "stock"
ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    # On CPU: without these two the worker binds itself to the first core, whoever else is on it.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    # The engine core in this process: no child to start, and its scheduler can be looked at.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
"""What vLLM reads from the environment; a variable that is set already keeps its value."""


@dataclass(frozen=True, kw_only=True)
class OfflineConfig:
    """One engine and the scheduler inside it."""

    scheduler: str = STOCK
    """"stock" is vLLM's own; else a policy of ours by name (fcfs, pars, ...) or import path."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the policy takes, e.g. {"starve_after_s": 60}."""
    max_num_seqs: int = 8
    """Requests that run at once; below the number of requests it makes a queue."""
    max_num_batched_tokens: int = 512
    """Token budget of a step."""
    kv_cache_mib: int = 64
    """Memory for KV blocks of 32 tokens; a token of the tiny model takes 1 KiB."""
    model: Path | None = None
    """Folder of a model; left out, a random Llama of 1.2 M parameters is made for the run."""
    clock: ClockKind = "wall"
    """"cpu" counts this process's CPU seconds and skips idle time: on a shared machine it compares
    schedulers, where wall time compares neighbours. "steady" is "cpu" on a machine that stays as
    fast as at first."""
    seed: int = 0
    """Of the random prompts."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "kv_cache_mib"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; use a number >= 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, below max_num_seqs "
                f"{self.max_num_seqs}; a step must have a token for each running request"
            )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one engine did with the requests."""

    timeline: Timeline
    token_ids: Sequence[Sequence[int]]
    """The tokens each request got, in the order of the requests."""
    hint_counts: HintCounts | None
    """Requests with and without a usable score; None under the stock scheduler."""

    @property
    def tokens_sha256(self) -> str:
        """Equal for two schedulers exactly if neither changed what any request was answered."""
        return hashlib.sha256(json.dumps(self.token_ids).encode()).hexdigest()


def run(requests: Requests, config: OfflineConfig) -> Outcome:
    """Serve `requests` as they arrive, on the config's clock, with random prompts of their lengths.

    Raises:
        UnsupportedByEngine: no usable vLLM here, or it cannot run the policy.
        ConfigError: no such policy, or settings that are not the policy's.
    """
    with open_engine(config, max_model_len=longest_context(requests)) as engine:
        warm_up(engine)
        prompts = random_prompts(requests, config.seed)
        timeline, token_ids = serve(engine, requests, prompts, make_clock(config.clock))
        ranker = getattr(scheduler_of(engine), "lengthwise", None)
        return Outcome(
            timeline=timeline,
            token_ids=token_ids,
            hint_counts=None if ranker is None else ranker.hint_counts,
        )


@contextmanager
def open_engine(config: OfflineConfig, **engine_args: Any) -> Iterator[Any]:
    """vLLM's `LLMEngine` in this process, with the tiny model where `config` names none."""
    set_environment()
    if find_spec("vllm") is None:
        raise UnsupportedByEngine("vLLM is not installed; install vllm, tested with 0.32.0")
    chosen = _scheduler_args(config)
    with tempfile.TemporaryDirectory(prefix="lengthwise-") as folder:
        model = config.model or make_tiny_model(Path(folder) / "model")
        engine = _make_engine(config, model, {**chosen, **engine_args})
        try:
            yield engine
        finally:
            engine.engine_core.shutdown()


def set_environment() -> None:
    """`ENVIRONMENT`, where it is not set already; OpenMP reads it when torch is first imported."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # While it is imported, vLLM logs before it reads what level to log.
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"].upper())


def scheduler_of(engine: Any) -> Any:
    """The live scheduler of an engine that `open_engine` made."""
    return engine.engine_core.engine_core.scheduler


def _scheduler_args(config: OfflineConfig) -> dict[str, Any]:
    """How vLLM is told which scheduler to make; wrong settings fail here, before the engine."""
    if config.scheduler == STOCK:
        if config.settings:
            raise ConfigError(
                f"settings are {dict(config.settings)}; the stock scheduler takes none"
            )
        return {}
    additional_config = {SETTINGS: {"policy": config.scheduler, **config.settings}}
    configured_policy(additional_config)
    return {
        "scheduler_cls": "scheduler_adapters.engines.vllm_v1.scheduler",
        "additional_config": additional_config,
    }


def _make_engine(config: OfflineConfig, model: Path, engine_args: Mapping[str, Any]) -> Any:
    arguments = {
        "model": str(model),
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "enforce_eager": True,
        "block_size": 32,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "kv_cache_memory_bytes": config.kv_cache_mib << 20,
        "use_tqdm_on_load": False,
        "disable_log_stats": False,  # the time a request was first scheduled comes with them
        **engine_args,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of torch, about vLLM's code
        from vllm import EngineArgs, LLMEngine

        return LLMEngine.from_engine_args(EngineArgs(**arguments))


def longest_context(requests: Requests) -> int:
    return int(np.max(requests.prompt_tokens + requests.output_tokens, initial=1)) + 1


def random_prompts(requests: Requests, seed: int) -> list[list[int]]:
    """Random token ids, all different, so that no prompt finds another one's KV blocks cached."""
    random = np.random.default_rng(seed)
    return [random.integers(3, VOCABULARY, size).tolist() for size in requests.prompt_tokens]


def add_request(
    engine: Any, name: str, prompt: list[int], output_tokens: int, **extra: Any
) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(
        temperature=0.0,
        max_tokens=output_tokens,
        min_tokens=output_tokens,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args=extra.pop("extra_args", None),
    )
    engine.add_request(name, {"prompt_token_ids": prompt}, params, **extra)


def warm_up(engine: Any) -> None:
    """The first steps load code and allocate; they belong to nobody's latency."""
    add_request(engine, "warm-up", [1, 2], 4)
    while engine.has_unfinished_requests():
        engine.step()


def serve(
    engine: Any,
    requests: Requests,
    prompts: list[list[int]],
    clock: EngineClock,
    *,
    stepped: Callable[[float], None] | None = None,
) -> tuple[Timeline, list[list[int]]]:
    """Serve the requests in an idle engine, as they arrive by `clock`, which the policy reads too.

    What the engine knows of earlier requests, their KV blocks and its policy's load, is forgotten.
    `stepped` is told after each step how many seconds it took.

    Returns:
        When each token came, and which: a list of token ids for each request.
    """
    count = len(requests)
    token_ids: list[list[int]] = [[] for _ in range(count)]
    token_s: list[list[float]] = [[] for _ in range(count)]
    scheduled_ts = np.full(count, np.nan)
    preemptions = np.zeros(count, np.int64)
    engine.reset_prefix_cache()
    clock.restart()
    scheduler = scheduler_of(engine)
    if (ranker := getattr(scheduler, "lengthwise", None)) is not None:
        scheduler.lengthwise_start(ranker.policy)
        scheduler.lengthwise.clock = clock
    marks = [(time.monotonic(), 0.0)]  # instants on vLLM's clock and on ours
    added = 0
    while added < count or engine.has_unfinished_requests():
        if not engine.has_unfinished_requests():
            clock.wait_until(requests.arrival_s[added])
            marks.append((time.monotonic(), clock()))
        while added < count and requests.arrival_s[added] <= clock():
            add_request(
                engine,
                str(added),
                prompts[added],
                int(requests.output_tokens[added]),
                arrival_time=time.time() - (clock() - requests.arrival_s[added]),
                extra_args=hints_of(requests, added),
            )
            added += 1
        clock.note_speed()
        outputs = engine.step()
        began_s, now_s = marks[-1][1], clock()
        marks.append((time.monotonic(), now_s))
        if stepped is not None:
            stepped(now_s - began_s)
        for output in outputs:
            row, new = int(output.request_id), output.outputs[0].token_ids
            token_ids[row].extend(new)
            token_s[row].extend([now_s] * len(new))
            scheduled_ts[row] = output.metrics.scheduled_ts
            preemptions[row] = output.metrics.num_preemptions
    engine_s, clock_s = zip(*marks, strict=True)
    timeline = timeline_from_token_times(
        requests,
        token_s,
        scheduled_s=np.interp(scheduled_ts, engine_s, clock_s),
        preemptions=preemptions,
    )
    return timeline, token_ids


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, run, report. Returns the exit code: 2 for bad input."""
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s")
    parser = make_parser("python -m scheduler_adapters.engines.vllm_v1.offline", __doc__)
    parser.add_argument(
        "--requests",
        type=str,
        required=True,
        help="File (.jsonl, .csv, .parquet) with prompt_tokens, output_tokens and, where there "
        "are any, arrival_s, score, user_class, tbt_s.",
    )
    parser.add_argument(
        "--out", type=str | None, help="Write the timeline here (.jsonl or .parquet)."
    )
    parser.add_argument("--json", dest="as_json", action="store_true", help="Print one JSON line.")
    parser.add_class_arguments(OfflineConfig, as_group=False)
    given = sys.argv[1:] if arguments is None else arguments
    values = parser.parse_args(underscored(given)).as_dict()
    path, out, as_json = (values.pop(name) for name in ("requests", "out", "as_json"))
    try:
        _report(path, out, as_json, OfflineConfig(**values))
    except LengthwiseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _report(path: str, out: str | None, as_json: bool, config: OfflineConfig) -> None:
    outcome = run(read_trace(path), config)
    if out is not None:
        write_timeline(outcome.timeline, out)
    summary = summarize(outcome.timeline).to_dict()
    if as_json:
        counts = None if outcome.hint_counts is None else asdict(outcome.hint_counts)
        about = {"scheduler": config.scheduler, "tokens_sha256": outcome.tokens_sha256}
        print(json.dumps({**about, "hints": counts, **summary}))
        return
    for name in ("ttft_s", "e2e_s", "normalized_latency_s"):
        print(f"{config.scheduler:8} {name:20} mean {summary[name]['mean']:.4f}", end=" ")
        print(f"p90 {summary[name]['p90']:.4f}")


if __name__ == "__main__":
    sys.exit(main())
