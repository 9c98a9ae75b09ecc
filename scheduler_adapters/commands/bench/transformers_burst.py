"""`bench-transformers`: a burst of requests through transformers under several schedulers.

The model has random weights and the shape of a real one; each request gets exactly the output
tokens that its response had (end-of-sequence is off), so schedulers are compared on the same work.
Beside what was measured stands what the simulator predicts from the steps under the first of them.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from tqdm import tqdm

from scheduler_adapters.commands.bench.transformers_report import Report
from scheduler_adapters.commands.setup import (
    check_folder,
    check_policies,
    load_named,
    policy_of,
)
from scheduler_adapters.engines.random_model import device_name, find_device, make_random_model
from scheduler_adapters.engines.transformers_batching import packed_attention
from scheduler_adapters.planner.hints import hints_of
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import LatencyModel
from scheduler_adapters.timeline.live_log import TimelineLog
from scheduler_adapters.timeline.steps import StepRecord
from scheduler_adapters.timeline.timeline import read_timeline
from scheduler_adapters.validation.graph_fit import GRAPHS
from scheduler_adapters.validation.prediction import Served
from scheduler_adapters.workload.data_folder import data_file
from scheduler_adapters.workload.requests import Requests, make_requests
from scheduler_adapters.workload.tables import read_table
from scheduler_adapters.workload.workload import WorkloadConfig, synthetic_requests
from scoring_service.errors import (
    ConfigError,
    DataError,
    SchedulingError,
    UnsupportedByEngine,
)
from scoring_service.strict_json import to_json

log = logging.getLogger(__name__)

LENGTHS: Final = "alpaca-vicuna7b/alpaca_vicuna7b_lengths.parquet"
_TOKENS_PER_WORD: Final = 4 / 3
_PAGE_TOKENS: Final = 32
_KV_FRACTION: Final = 0.6
"""Of the free memory of a GPU; attention over all residents needs copies of their keys."""
_SAFETY_MARGIN: Final = 0.15
"""The share of the KV blocks that the engine keeps from newcomers, by its own default."""
_CLASS_STREAM: Final = 11


@dataclass(frozen=True, kw_only=True)
class BurstConfig:
    """Which requests, which schedulers, which model."""

    policies: list[str] = field(default_factory=lambda: ["fcfs", "pars", "slai", "oracle"])
    """Names of policies, which `simulate --help` lists, or import paths. The step times of the
    simulator are fitted to the first one's run."""
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What policies take, by name, e.g. {"slai": {"max_tokens": 256}}. A made-up name says whose
    settings they are: {"slai-late": {"policy": "slai", "offset": 10.0}}."""
    trace: Path | None = None
    """.csv, .parquet or .jsonl with prompt_tokens, output_tokens and, where there are any, score,
    user_class, tbt_s, prompt; none: lengths of Vicuna-7B's responses in $LENGTHWISE_DATA, else
    synthetic. Arrival times are not used: all requests come at once."""
    num_requests: int | None = None
    """At most this many requests, drawn at random; none: 2,000 on a GPU, and on a CPU 200, a
    minute or two of the tiny shape under four policies."""
    max_context: int = 4096
    """Longer prompts and outputs are cut to a half of this each."""
    scores: str | None = None
    """Where scores come from, as in `simulate`: synthetic (of quality tau_b), trace, oracle,
    constant, or, for a trace with a column prompt, bundle:PATH or service:HOST:PORT; none: the
    trace's column score where there is one, else synthetic."""
    tau_b: float = 0.6
    """Kendall tau-b of synthetic scores with the true lengths."""
    paying_share: float = 0.5
    """Share of requests of the class "paying", drawn at random, where the trace has no classes."""
    paying_tbt_s: float = 0.1
    """Target time between tokens of the class "paying"."""
    free_tbt_s: float = 0.5
    """Target time between tokens of the class "free"."""
    shape: str = "tiny"
    """Shape of the random model: tiny (1.2 M parameters), small (14 M), 7b (Llama-2-7B)."""
    device: str | None = None
    """cpu, cuda or cuda:N; none: the first GPU, else the CPU."""
    max_num_seqs: int = 64
    """Requests that run at once."""
    max_tokens: int = 512
    """Token budget of a step."""
    out: Path | None = None
    """Folder for the timeline (POLICY.jsonl, times of all tokens) and the steps (POLICY.steps.csv)
    under each policy, summary.csv, and simulated beside measured (agreement.csv, agreement.svg)."""
    attention: str | None = None
    """How transformers attends: paged|torch_varlen, the flash kernel of torch, which needs a GPU
    and transformers 5.13 to 5.17; sdpa or paged|eager, which mask and attend to all residents;
    none: the first where it can be had, else what the engine chooses."""
    cuda_graphs: bool | None = None
    """Replay steps as CUDA graphs, with tokens padded to few sizes; none: where the attention is
    paged|torch_varlen (measured on an H100: 27 ms a step of 64 seats instead of 43)."""
    seed: int = 0
    """Of the draw, classes, scores, prompts and weights."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def __post_init__(self) -> None:
        for name in ("num_requests", "max_num_seqs", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; use a number >= 1")
        check_policies(self.policies, self.settings)
        check_folder(self.out)
        if self.max_context < 2:
            raise ConfigError(f"max_context is {self.max_context}; use 2 tokens or more")
        if not 0 <= self.paying_share <= 1:
            raise ConfigError(f"paying_share is {self.paying_share}; use a number in [0, 1]")
        _ = self.setup  # which refuses what it does not know

    @property
    def setup(self) -> WorkloadConfig:
        """Where requests and scores come from, as `simulate` has it."""
        return WorkloadConfig(
            trace=self.trace,
            num_requests=sys.maxsize,
            scores=self.scores,
            tau_b=self.tau_b,
            seed=self.seed,
        )

    @property
    def most_requests(self) -> int:
        """`num_requests`, or what the device serves in minutes."""
        return self.num_requests or (2000 if find_device(self.device).startswith("cuda") else 200)


def burst(config: BurstConfig) -> None:
    """Serve a burst with transformers' continuous batching, once under each scheduler.

    A random model of the given shape answers requests of real lengths, all there at 0 s; the table
    says what each scheduler made of them. A second one says what the simulator makes of the same
    requests when it knows the engine's steps under the first policy only, and how far it is from
    what was measured, request by request (MAPE), and in the mean (bias). Needs a GPU for anything
    but the tiny shape.

    Examples:
      python -m scheduler_adapters bench-transformers --num_requests 40 --max_num_seqs 4
      python -m scheduler_adapters bench-transformers --shape 7b --out burst-7b
      python -m scheduler_adapters bench-transformers --trace with_prompts.parquet \\
          --scores bundle:run/bundle
      python -m scheduler_adapters bench-transformers --shape 7b --policies '[fcfs, slai]' \\
          --settings '{slai: {max_tokens: 512}}' --trace requests.parquet

    A policy that runs twice tells how far the engine is from itself: '[fcfs, pars, again]' with
    --settings '{again: {policy: fcfs}}'.
    """
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.WARNING)
    requests = load_burst(config)
    with ExitStack() as stack:
        folder = config.out
        if folder is None:
            made = tempfile.TemporaryDirectory(prefix="lengthwise-burst-")
            folder = Path(stack.enter_context(made))
        report = Report(config.settings, config.out)
        for name, run in serve_burst(requests, config, folder):
            report.add(name, run)
    if config.json:
        about = {
            "shape": config.shape,
            "device": device_name(find_device(config.device)),
            "num_requests": len(requests),
            "max_num_seqs": config.max_num_seqs,
            "max_tokens": config.max_tokens,
            "scores": config.setup.score_source(requests),
            "seed": config.seed,
            "fitted_on": config.policies[0],
            "num_steps_fitted": report.fit and report.fit.steps.num_steps,
            "step_mape_fraction": report.fit and report.fit.steps.mape_fraction,
            "num_captures_fitted": report.fit and report.fit.num_captures,
            "capture_s": report.fit and report.fit.capture_s,
        }
        print(to_json({**about, "runs": report.rows}))
    else:
        print(report.text())


def load_burst(config: BurstConfig) -> Requests:
    """The requests, all at 0 s, with classes, and with scores where they come with the trace.

    Raises:
        DataError: the trace cannot be read.
        ScoringError: not one of its prompts could be scored.
    """
    requests = _lengths(config)
    random = np.random.default_rng((config.seed, _CLASS_STREAM))
    if len(requests) > config.most_requests:
        rows = random.permutation(len(requests))[: config.most_requests]
        requests = requests.take(np.sort(rows))
    half = config.max_context // 2
    requests = replace(
        requests,
        arrival_s=np.zeros(len(requests)),
        prompt_tokens=np.minimum(requests.prompt_tokens, half),
        output_tokens=np.minimum(requests.output_tokens, half),
        request_id=np.arange(len(requests)).astype(str),
    )
    if not requests.user_class.astype(bool).any():
        pays = random.random(len(requests)) < config.paying_share
        requests = replace(
            requests,
            user_class=np.where(pays, "paying", "free"),
            tbt_s=np.where(pays, config.paying_tbt_s, config.free_tbt_s),
        )
    return requests


def _lengths(config: BurstConfig) -> Requests:
    if config.trace is not None:
        return config.setup.load()
    try:
        columns = ("prompt", "vicuna_tokens_t0_7")
        table = read_table(data_file(LENGTHS), columns)
    except (ConfigError, DataError) as error:
        log.warning("synthetic lengths take the place of measured ones: %s", error)
        return synthetic_requests(config.most_requests, seed=config.seed)
    words = np.array([len(prompt.split()) for prompt in table["prompt"]])
    return make_requests(
        prompt_tokens=np.maximum(1, words * _TOKENS_PER_WORD).astype(np.int64),
        output_tokens=np.maximum(1, table["vicuna_tokens_t0_7"].to_numpy()),
    )


def serve_burst(
    requests: Requests, config: BurstConfig, folder: Path
) -> Iterator[tuple[str, Served]]:
    """Policy after policy, and what happened under it, which is written to `folder` as well.

    Raises:
        UnsupportedByEngine: a policy wants what this engine cannot do.
        ConfigError: no such policy, shape or device, or the model does not fit.
    """
    from scheduler_adapters.engines.transformers_batching.rank_scheduler import use_policy

    for name in config.policies:  # what cannot run is refused before a model is made
        use_policy(load_named(name, config.settings), {})
    device = find_device(config.device)
    attention = _attention(config.attention, device)
    if config.cuda_graphs and not device.startswith("cuda"):
        raise ConfigError("cuda_graphs is true, and the device is no GPU; leave it out")
    if config.cuda_graphs is None:
        config = replace(config, cuda_graphs=attention == packed_attention.NAME)
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    model = make_random_model(config.shape, device, max_tokens=longest + 1, seed=config.seed)
    if attention is not None:
        model.set_attn_implementation(attention)
    num_blocks = _num_blocks(model.config, device, longest, config.max_num_seqs)
    prompts = _random_prompts(requests, model.config.vocab_size, config.seed)
    folder.mkdir(parents=True, exist_ok=True)
    few = requests.take(np.arange(min(len(requests), 2 * config.max_num_seqs)))
    few = replace(few, output_tokens=np.minimum(few.output_tokens, 4))
    warm_up = folder / "warm-up.jsonl"
    _serve(model, "fcfs", few, prompts, config, num_blocks, warm_up)
    warm_up.unlink()
    for name in config.policies:
        scored = config.setup.scored(
            requests, by_oracle=policy_of(name, config.settings) == "oracle"
        )
        path = folder / f"{name.replace(':', '_').replace('/', '_')}.jsonl"
        run = _serve(model, name, scored, prompts, config, num_blocks, path)
        steps = pd.DataFrame([asdict(step) for step in run.steps])
        steps.to_csv(path.with_suffix(".steps.csv"), index=False)
        yield name, run


def _attention(wanted: str | None, device: str) -> str | None:
    """What the model is to be set to; none: what it is."""
    known = (packed_attention.NAME, "sdpa", "paged|eager")
    if wanted is not None and wanted not in known:
        raise ConfigError(f"attention is {wanted!r}; use one of {', '.join(known)}")
    if wanted in known[1:]:
        return wanted
    if not device.startswith("cuda"):
        if wanted is not None:
            raise ConfigError(f"attention is {wanted!r}, which needs a GPU; use sdpa")
        return None
    try:
        return packed_attention.register()
    except UnsupportedByEngine:
        if wanted is not None:
            raise
        return None


def _num_blocks(config: Any, device: str, longest: int, max_num_seqs: int) -> int:
    """KV blocks for all seats at their longest and the margin, or what the free memory holds."""
    import torch

    needed = -(-longest // _PAGE_TOKENS) + 1
    wanted = ceil(max_num_seqs * needed / (1 - _SAFETY_MARGIN))
    if not device.startswith("cuda"):
        return wanted
    head_size = config.hidden_size // config.num_attention_heads
    kv_heads = config.num_hidden_layers * config.num_key_value_heads
    token_bytes = int(4 * kv_heads * head_size)  # a key and a value in bfloat16
    free_bytes, _ = torch.cuda.mem_get_info(device)
    there = int(_KV_FRACTION * free_bytes) // (_PAGE_TOKENS * token_bytes)
    if there < needed:
        raise ConfigError(
            f"the longest request has {longest} tokens, and beside the model {device} holds the "
            f"KV of {there * _PAGE_TOKENS}; lower max_context"
        )
    return min(wanted, there)


def _random_prompts(requests: Requests, vocabulary: int, seed: int) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(3, vocabulary, size).tolist() for size in requests.prompt_tokens]


def _serve(
    model: Any,
    name: str,
    requests: Requests,
    prompts: Sequence[list[int]],
    config: BurstConfig,
    num_blocks: int,
    path: Path,
) -> Served:
    """One burst under one scheduler, from empty to empty."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    from scheduler_adapters.engines.transformers_batching.border import PAGE_SETTING
    from scheduler_adapters.engines.transformers_batching.rank_scheduler import (
        require_ours,
        use_policy,
    )

    path.unlink(missing_ok=True)
    hints: dict[str, Mapping[str, Any]] = {}
    policy = load_named(name, config.settings)
    steps: list[StepRecord] = []
    timeline = TimelineLog(str(path), start_s=time.monotonic())
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=-1),
        continuous_batching_config=ContinuousBatchingConfig(
            scheduler_type=use_policy(policy, hints, timeline=timeline, steps=steps),
            num_blocks=num_blocks,
            max_batch_tokens=config.max_tokens,
            max_requests_per_batch=config.max_num_seqs,
            safety_margin=_SAFETY_MARGIN,
            allow_block_sharing=False,
            use_async_batching=False,
            **{PAGE_SETTING: _PAGE_TOKENS},
            **(GRAPHS if config.cuda_graphs else {}),
        ),
    )
    try:
        manager.warmup()  # makes the cache: what that takes belongs to nobody's latency
    except MemoryError as error:
        raise ConfigError(
            f"{num_blocks} KV blocks do not fit ({error}); lower max_num_seqs or max_context"
        ) from error
    instance_with = _instance_like(require_ours(manager))
    for row, prompt in enumerate(prompts[: len(requests)]):
        request_id = str(requests.request_id[row])
        hints[request_id] = hints_of(requests, row)
        size = int(requests.output_tokens[row])
        manager.add_request(prompt, request_id=request_id, max_new_tokens=size)
    timeline.start_s = time.monotonic()  # the engine finds all requests there when it starts
    manager.start()
    try:
        _wait_for_all(manager, name, len(requests))
    finally:
        manager.stop(block=True)
        timeline.close()
    return Served(
        requests=requests,
        timeline=read_timeline(path),
        steps=steps,
        has_graphs=bool(config.cuda_graphs),
        instance_with=instance_with,
    )


def _instance_like(scheduler: Any) -> Callable[[LatencyModel], Instance]:
    """How to make a simulated instance with the engine's limits, once step times are known."""
    from scheduler_adapters.engines.transformers_batching.border import TransformersBorder

    border = TransformersBorder(scheduler, ())
    limits = {
        "kv_blocks": border.total_blocks,
        "max_num_seqs": border.max_num_seqs,
        "max_tokens": border.max_tokens,
        "block_tokens": border.block_tokens,
        "watermark_fraction": scheduler.safety_margin,
    }
    return lambda latency: Instance(latency=latency, **limits)


def _wait_for_all(manager: Any, name: str, count: int) -> None:
    with tqdm(total=count, desc=name, unit="request", disable=None) as bar:
        while bar.n < count:
            result = manager.get_result(timeout=1.0)
            if result is not None and result.error is None:
                bar.n += 1
                bar.refresh()
            elif result is not None or not manager.is_running():
                error = "the engine stopped" if result is None else result.error
                raise SchedulingError(f"serving under {name} failed: {error}")
