"""Errors of simulated latencies against those of real vLLM, request by request.

LLMServingSim published the timings of 300 requests on each of four servers (ShareGPT lengths,
Poisson at 10 requests/s, vLLM 0.19). Each is replayed with the layer profile of the same GPU and
model, and with the limits of that server. Nothing here is fitted to the timings.

TTFT and E2E count from the arrival at the front end, as in the simulator. Its clock is not the
engine's: the two are aligned at the request that went from one to the other fastest.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.presets import preset
from scheduler_adapters.simulator.simulate import EngineKind, simulate
from scheduler_adapters.validation.errors import METRICS, Error, error, latencies
from scheduler_adapters.views import LoadView, StepRule
from scheduler_adapters.workload.data_folder import DataDir, data_file
from scheduler_adapters.workload.requests import Floats, Requests, make_requests
from scheduler_adapters.workload.table_files import read_table

FOLDER = "llmservingsim/vllm_request_timings"
TARGETS = {"ttft": 0.15, "tpot": 0.06, "e2e": 0.06}
"""Mean absolute percentage errors, as fractions, that a good simulator stays below."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """Timings of one server, and the settings it ran with (the recording's own metadata)."""

    file: str
    preset: str
    max_num_seqs: int
    max_tokens: int = 2048
    """vLLM's `max_num_batched_tokens`."""
    num_ranks: int = 1
    """Data-parallel engines, each with its own limits, simulated as one instance."""


RECORDINGS = tuple(
    Recording(file=f"{file}.csv", preset=f"{name}:layers", max_num_seqs=seats, num_ranks=ranks)
    for file, name, seats, ranks in (
        ("RTX4090_Llama-3.1-8B", "llama-3.1-8b@rtx-4090", 256, 1),
        ("RTXPRO6000_Llama-3.1-8B", "llama-3.1-8b@rtx-pro-6000", 128, 1),
        ("RTXPRO6000_Qwen3-32B", "qwen3-32b@2x-rtx-pro-6000", 128, 1),
        ("RTXPRO6000_Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b@2x-rtx-pro-6000", 128, 2),
    )
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fidelity:
    """The errors of one recording, replayed."""

    preset: str
    engine: str
    """"vllm": with vLLM's planning ahead and prefix cache; "plain": what `simulate` runs."""
    num_requests: int
    num_unfinished: int
    num_preemptions: int
    ttft: Error
    tpot: Error
    e2e: Error

    @property
    def on_target(self) -> bool:
        """Return whether every request finished and each metric is within `TARGETS`."""
        errors = [getattr(self, name).mape_fraction <= most for name, most in TARGETS.items()]
        return all(errors) and self.num_unfinished == 0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Timings:
    """Requests as they were served for real; columns of N values, in order of arrival."""

    requests: Requests
    latencies: Mapping[str, Floats]
    """Each of METRICS, seconds."""


def read_timings(file: str, data_dir: DataDir = None) -> Timings:
    """One file of `FOLDER`.

    Raises:
        ConfigError: no data folder is named.
        DataError: it lacks the file, or the file a column, or a row is impossible.
    """
    path = data_file(f"{FOLDER}/{file}", data_dir)
    stamps = ("arrival_time", "queued_ts", "first_token_ts", "last_token_ts")
    table = read_table(path, ("request_id", "input_toks", "output_toks", *stamps))
    table = table.sort_values("arrival_time", kind="stable")
    arrival, queued, first, last = table[list(stamps)].to_numpy(np.float64).T
    output_tokens = table.output_toks.to_numpy(np.float64)
    requests = make_requests(
        request_id=table.request_id.to_numpy(),
        prompt_tokens=table.input_toks.to_numpy(),
        output_tokens=output_tokens,
        arrival_s=arrival - arrival[0],
        path=path,
    )
    lag_s = queued - arrival
    ttft_s = first - queued + lag_s - lag_s.min()
    gaps = output_tokens - 1
    tpot_s = np.where(gaps > 0, (last - first) / np.maximum(gaps, 1), np.nan)
    measured = {"ttft": ttft_s, "tpot": tpot_s, "e2e": ttft_s + last - first}
    return Timings(requests=requests, latencies=measured)


def replay(
    recording: Recording, data_dir: DataDir = None, *, engine: EngineKind = "vllm"
) -> Fidelity:
    """Serve the recording's requests in virtual time and compare.

    Raises as `read_timings` does.
    """
    timings = read_timings(recording.file, data_dir)
    latency, kv_blocks = preset(recording.preset, data_dir)
    instance = Instance(
        latency=latency,
        kv_blocks=kv_blocks,
        max_num_seqs=recording.max_num_seqs * recording.num_ranks,
        max_tokens=recording.max_tokens * recording.num_ranks,
        watermark_fraction=0.0,  # vLLM V1 admits without a reserve of blocks
    )
    policy = _ServerFCFS(recording.max_tokens)
    timeline = simulate(timings.requests, policy, instance, loop="python", kind=engine)
    simulated = latencies(timeline)
    return Fidelity(
        preset=recording.preset,
        engine=engine,
        num_requests=len(timings.requests),
        num_unfinished=int(np.isnan(timeline.finished_s).sum()),
        num_preemptions=int(timeline.preemptions.sum()),
        **{name: error(simulated[name], timings.latencies[name]) for name in METRICS},
    )


class _ServerFCFS(FCFS):
    """First come, first served; no chunk is larger than one engine's budget."""

    name = "server-fcfs"

    def __init__(self, chunk: int) -> None:
        self.rule = StepRule(chunk=chunk)

    def step_rule(self, load: LoadView) -> StepRule:
        return self.rule
