"""Lengths, systems and runs of the PARS figures."""

import logging
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np

from lengthwise.errors import ConfigError, DataError
from scheduler_adapters.commands.reproduce import ReproduceConfig
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.facts import GPUS, MODELS
from scheduler_adapters.simulator.latency.first_principles import kv_blocks
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.latency_metrics import summarize
from scheduler_adapters.workload.arrivals import LENGTH_STREAM, ORDER_STREAM, poisson_arrivals_s
from scheduler_adapters.workload.data_folder import data_file
from scheduler_adapters.workload.requests import Ints, Requests, make_requests
from scheduler_adapters.workload.score_sources import open_prompt_scorer, synthetic_scores
from scheduler_adapters.workload.table_files import read_table
from scheduler_adapters.workload.traces import read_trace

log = logging.getLogger(__name__)

_MODEL, _GPU = "llama-3-8b", "a100-40g"
_TOKEN_BUDGET = 2048
NUM_REQUESTS = 2000
_LONGEST = 16_384
"""Tokens of the longest response."""


@dataclass(frozen=True)
class Lengths:
    """Output lengths of one model, and the tau-b of each predictor in the paper."""

    median_tokens: int
    sigma: float
    """Of the logarithm."""
    tau_b: dict[str, float]
    file: str = ""
    """In the data folder, where lengths were recorded."""
    columns: tuple[str, ...] = ()
    """Their sum is the output length."""

    def draw(self, count: int, random: np.random.Generator) -> Ints:
        """Draw output lengths (count,), recorded ones where there are some."""
        recorded = self.recorded()
        if recorded is not None:
            return random.choice(recorded, count)
        drawn = random.lognormal(np.log(self.median_tokens), self.sigma, count)
        return np.clip(drawn, 1, _LONGEST).astype(np.int64)

    def recorded(self) -> Ints | None:
        """Return all recorded lengths; None where there are none."""
        if not self.file:
            return None
        try:
            table = read_table(data_file(self.file))
        except (ConfigError, DataError) as error:
            _say_once(f"lengths are drawn, not the recorded ones: {error}")
            return None
        tokens = table[list(self.columns)].sum(axis=1).to_numpy()
        if "reasoning_visible" in table:
            tokens = tokens[table["reasoning_visible"].to_numpy()]
        return np.clip(tokens[tokens > 0], 1, _LONGEST).astype(np.int64)


@cache
def _say_once(text: str) -> None:
    log.warning(text)


_SHORT_TAU_B = {"PARS": 0.75, "listwise": 0.67, "pointwise": 0.64, "cross-model PARS": 0.65}
_LONG_TAU_B = {"PARS": 0.61, "listwise": 0.50, "pointwise": 0.30, "cross-model PARS": 0.51}
SHORT, LONG = "short outputs", "long outputs"
TRAINED = "trained ranker"
SHORT_MODEL, LONG_MODEL = "short log-normal outputs", "long log-normal outputs"
LLAMA, GPT4 = "Llama-3-8B on AlpacaEval", "GPT-4 on AlpacaEval"
_ALPACA = "alpaca-vicuna7b/alpaca_vicuna7b_lengths.parquet"
_MISGUIDED = "reasoning/MisguidedAttention_lengths.parquet"
_ALPACA_EVAL = "alpaca-eval/alpaca_eval_tokens_wide.parquet"
WORKLOADS: Final = {
    SHORT_MODEL: Lengths(160, 1.1, _SHORT_TAU_B),
    LONG_MODEL: Lengths(1100, 0.75, _LONG_TAU_B),
    SHORT: Lengths(160, 1.1, _SHORT_TAU_B, _ALPACA, ("vicuna_tokens_t0_7",)),
    LONG: Lengths(1100, 0.75, _LONG_TAU_B, _MISGUIDED, ("reasoning_tokens", "answer_tokens")),
    LLAMA: Lengths(461, 0.9, _SHORT_TAU_B, _ALPACA_EVAL, ("Meta-Llama-3-8B-Instruct",)),
    GPT4: Lengths(290, 1.2, _SHORT_TAU_B, _ALPACA_EVAL, ("gpt4",)),
}
"""Medians as an earlier prototype had them; the spreads are fitted to its oracle's mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedBurst:
    """Figures of one run; seconds."""

    mean_s: float
    """E2E / output tokens, mean over requests."""
    p90_s: float
    wait_s: float
    """From arrival to the first step, mean over requests."""
    longest_wait_s: float


class ParsExperiment:
    """Runs of the systems, each made once; the memory of `num_gpus` holds weights and KV."""

    def __init__(self, config: ReproduceConfig, *, num_gpus: int = 1) -> None:
        self.config = config
        self.instance = replace(
            Instance.preset(f"{_MODEL}@{_GPU}", max_num_seqs=256, max_tokens=_TOKEN_BUDGET),
            kv_blocks=kv_blocks(_GPU, MODELS[_MODEL], GPUS[_GPU], num_gpus=num_gpus),
        )
        self.longest_step_s = self.instance.latency.step_s(
            self.instance.max_num_seqs,
            self.instance.kv_blocks * self.instance.block_tokens,
            [(0, _TOKEN_BUDGET)],
        )
        """At most; a longer wait for a first step is a wait in the queue."""
        self.measure = cache(self._measure)
        self.scored = cache(self._scored)
        self.saturation_per_s = cache(self._saturation_per_s)

    def runs(
        self,
        workload: str,
        system: str,
        *,
        guard: bool = True,
        load: float | None = None,
        seats: int = 256,
    ) -> list[ServedBurst]:
        """Return one run per seed."""
        seeds = range(self.config.num_seeds)
        return [self.measure(workload, system, guard, load, seats, seed) for seed in seeds]

    def latency(self, workload: str, system: str, **setting: Any) -> tuple[float, float]:
        """Return mean and P90 of E2E / tokens in seconds, means over the seeds."""
        runs = self.runs(workload, system, **setting)
        mean_s, p90_s = np.mean([(run.mean_s, run.p90_s) for run in runs], axis=0)
        return float(mean_s), float(p90_s)

    def _measure(
        self, workload: str, system: str, guard: bool, load: float | None, seats: int, seed: int
    ) -> ServedBurst:
        requests = self._requests(workload, seed)
        if load is not None:
            rate_per_s = load * self.saturation_per_s(workload)
            arrival_s = poisson_arrivals_s(len(requests), rate_per_s=rate_per_s, seed=seed)
            requests = replace(requests, arrival_s=arrival_s)
        requests = self._scored_for(system, workload, requests, seed)
        policy = pars(starve_after_s=120.0 if guard else None)
        instance = replace(self.instance, max_num_seqs=seats)
        timeline = simulate(requests, policy, instance, loop="compiled")
        latency_s = summarize(timeline).normalized_latency_s
        wait_s = timeline.scheduled_s - requests.arrival_s
        return ServedBurst(
            mean_s=latency_s.mean,
            p90_s=latency_s.p90,
            wait_s=float(np.mean(wait_s)),
            longest_wait_s=float(np.max(wait_s)),
        )

    def _scored_for(self, system: str, workload: str, requests: Requests, seed: int) -> Requests:
        lengths = requests.output_tokens
        if system in ("FCFS", "Oracle"):
            return requests.with_scores(0.0 if system == "FCFS" else lengths)
        if workload == TRAINED:
            return requests
        tau_b = WORKLOADS[workload].tau_b[system]
        return requests.with_scores(synthetic_scores(lengths, tau_b=tau_b, seed=seed))

    def _requests(self, workload: str, seed: int) -> Requests:
        if workload == TRAINED:
            order = np.random.default_rng((seed, ORDER_STREAM)).permutation(len(self.scored()))
            return replace(self.scored().take(order), arrival_s=np.zeros(len(order)))
        count = int(NUM_REQUESTS * self.config.scale)
        random = np.random.default_rng((seed, LENGTH_STREAM))
        prompt = random.lognormal(np.log(40), 0.8, count)
        return make_requests(
            prompt_tokens=np.clip(prompt, 1, 2048).astype(np.int64),
            output_tokens=WORKLOADS[workload].draw(count, random),
        )

    def _scored(self) -> Requests:
        """The trace in the order of a trained ranker."""
        assert self.config.scored is not None
        scores = self.config.scores
        scorer = None if scores == "trace" else open_prompt_scorer(scores)
        requests = read_trace(self.config.scored, limit=NUM_REQUESTS, scorer=scorer)
        if num_unscored := int(np.isnan(requests.score).sum()):
            raise DataError(
                f"{num_unscored} requests have no score; give a column "
                "'score', or --scores bundle:PATH and a column 'prompt'",
                path=self.config.scored,
            )
        return requests

    def _saturation_per_s(self, workload: str) -> float:
        """Requests per second that FCFS serves while there is always work: the first half."""
        requests = self._requests(workload, 0)
        finished_s = simulate(requests, FCFS(), self.instance, loop="compiled").finished_s
        return float(len(finished_s) / 2 / np.median(finished_s))
