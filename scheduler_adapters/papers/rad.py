"""RAD: the capacity bound of Theorem 1, and the systems that keep it (`rad.toml`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, exp, inf
from typing import Any

import numpy as np

from scheduler_adapters.papers.runs import Experiment, ReproduceConfig
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.prefill_first import PrefillFirst, RequestLevel
from scheduler_adapters.policies.rad import RAD, RADTwin
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.staircase import tiles_of
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.latency_metrics import statistic, summarize, token_gaps
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.workload.arrivals import LENGTH_STREAM, poisson_arrivals_s
from scheduler_adapters.workload.requests import Floats, Ints, Requests, make_requests

PROFILE = "llama-3-8b@a100-80g:staircase"
NUM_REQUESTS = 4000
ABOVE, BELOW = 1.05, 0.8
MOST_BACKLOG = 2000
_SPREAD = 0.8
"""Standard deviation of the logarithm of lengths."""


@dataclass(frozen=True, kw_only=True)
class Mix:
    """Log-normal lengths in tokens: medians, and the longest."""

    prompt: int
    longest_prompt: int
    output: int
    longest_output: int

    def draw(self, count: int, tile: int, seed: int) -> tuple[Ints, Ints]:
        """Prompt lengths (count,), multiples of `tile`, and output lengths (count,)."""
        random = np.random.default_rng((seed, LENGTH_STREAM))
        prompt = random.lognormal(np.log(self.prompt), _SPREAD, count)
        output = random.lognormal(np.log(self.output), _SPREAD, count)
        whole = np.ceil(np.clip(prompt, 1, self.longest_prompt) / tile) * tile
        return whole.astype(np.int64), np.clip(output, 1, self.longest_output).astype(np.int64)


CHATS = Mix(prompt=500, longest_prompt=4096, output=200, longest_output=2048)
SHORT_CHATS = Mix(prompt=250, longest_prompt=1024, output=100, longest_output=512)
SHORT_ANSWERS = Mix(prompt=2000, longest_prompt=4096, output=8, longest_output=32)


class TileSetting:
    """A device with tiles of `tile` tokens, a mix of requests, and the theorem's bounds for them.

    `cycle` is n, the requests that RAD starts per cycle; None: twice the number that the theorem
    needs. The time of one full tile per token is that of the A100, for any `tile`.
    """

    def __init__(self, mix: Mix, *, tile: int = 128, cycle: int | None = None) -> None:
        self.mix, self.tile = mix, tile
        # The theorem assumes room for a tile of the longest requests: memory is not its subject.
        limits = {"max_num_seqs": 4096, "max_tokens": 4096, "kv_blocks": 10**6}
        preset = Instance.preset(PROFILE, **limits)
        tiles = tiles_of(preset.latency, PROFILE)
        share = tile / tiles.tile_columns
        self.latency = latency = replace(
            tiles,
            tile_columns=tile,
            linear_pass_s=tiles.linear_pass_s * share,
            tile_pair_s=tiles.tile_pair_s * share,
            vector_tile_s=tiles.vector_tile_s * share,
        )
        self.instance = replace(preset, latency=latency)
        self.longest = mix.longest_prompt + mix.longest_output
        self.mean_work_s = latency.mean_work_s(*self._draw(NUM_REQUESTS, 0))
        # T-max: the longest prompt and response, token by token and alone.
        longest_work_s = self.longest * (latency.linear_pass_s + latency.per_token_s)
        longest_work_s += latency.decode_attention_s(np.arange(1, self.longest + 1))
        self.longest_waste_s = (tile - 1) * longest_work_s
        """(t_col - 1) T-max: the longest time of a cycle beyond the work of its requests."""
        self.least_cycle = ceil(self.longest_waste_s / ((1 - BELOW) * self.mean_work_s))
        self.cycle = cycle or 2 * self.least_cycle

    def _draw(self, count: int, seed: int) -> tuple[Ints, Ints]:
        return self.mix.draw(count, self.latency.chunk_tokens, seed)

    def requests(self, share: float, count: int, *, seed: int = 0, backlog: int = 0) -> Requests:
        """Return `backlog` requests at 0 s, then `count` at `share` of Theorem 1's highest rate.

        The score is the output length, for the policies that take one.
        """
        prompt, output = self._draw(backlog + count, seed)
        later_s = poisson_arrivals_s(count, rate_per_s=share / self.mean_work_s, seed=seed)
        return make_requests(
            prompt_tokens=prompt,
            output_tokens=output,
            scores=output,
            arrival_s=np.concatenate([np.zeros(backlog), later_s]),
        )

    def policies(self) -> dict[str, Callable[[], Policy]]:
        """RAD and its twin with the settings of this device, and the other systems."""
        chunk = self.latency.chunk_tokens
        return {
            "RAD": partial(RAD, max_started=self.cycle, tile=self.tile, chunk=chunk),
            "RAD's twin": partial(RADTwin, max_started=self.cycle, tile=self.tile, chunk=chunk),
            "FCFS": FCFS,
            "Sarathi": Sarathi,
            "vLLM prefill-first": PrefillFirst,
            "request-level": RequestLevel,
            "PARS": pars,
            "SLAI": SLAI,
        }

    def run(self, system: str, requests: Requests) -> Timeline:
        """Return the timeline of the requests under one system."""
        return simulate(requests, self.policies()[system](), self.instance)

    def decode_waste_s(self) -> float:
        """Return a tighter bound: the longest response in full steps, after the last start."""
        step_s = self.latency.step_s(self.tile, self.tile * self.longest, ())
        return self.mix.longest_output * step_s

    def empty_at_most(self) -> float:
        """Return the largest share of the time at load .8 that any scheduler can be empty."""
        _, output = self._draw(NUM_REQUESTS, 0)
        stay_s = float(output.mean()) * self.latency.linear_pass_s
        return exp(-BELOW / self.mean_work_s * stay_s)


def backlog(timeline: Timeline, at_s: Floats) -> Ints:
    """Return the number of requests in the system at instants (K,)."""
    arrived = np.searchsorted(timeline.requests.arrival_s, at_s, "right")
    return np.asarray(arrived - np.searchsorted(np.sort(timeline.finished_s), at_s, "right"))


def idle_spans(arrival_s: Floats, left_s: Floats) -> tuple[Floats, Floats]:
    """Return the times at which the system became empty, and the seconds until the next arrival.

    `arrival_s` (N,) is sorted; `left_s` (N,) need not be. The end of the run does not count.
    """
    leaves_s, next_s = np.sort(left_s)[:-1], arrival_s[1:]
    ends = leaves_s < next_s
    return leaves_s[ends], (next_s - leaves_s)[ends]


class Drain:
    """Runs of one system that start with a backlog, one per seed, and the bounds on them."""

    def __init__(
        self,
        config: ReproduceConfig,
        device: TileSetting,
        system: str,
        *,
        share: float,
        waste_s: float,
    ) -> None:
        self.size = size = int(min(device.cycle, MOST_BACKLOG) * config.scale)
        cycle_s = device.cycle * device.mean_work_s + waste_s
        self.horizon_s = 2 * size / (device.cycle / cycle_s - BELOW / device.mean_work_s)
        self.fluid_s = size * device.mean_work_s / (1 - BELOW)
        self.limits = f"tiles of {device.tile}, n = {device.cycle} (theorem: {device.least_cycle})"
        count = ceil(self.horizon_s * share / device.mean_work_s)
        self.timelines = [
            device.run(system, device.requests(share, count, seed=seed, backlog=size))
            for seed in range(2 * config.num_seeds)
        ]

    def first_s(self, left: str) -> list[float]:
        """Return the first time at which all requests so far had `left`, by seed; inf for never."""
        moments = [idle_spans(t.requests.arrival_s, getattr(t, left))[0] for t in self.timelines]
        return [float(at_s[0]) if len(at_s) else inf for at_s in moments]


class RadExperiment(Experiment):
    """Runs of chats at a share of the bound, and runs that start with a backlog."""

    once = ("drain",)

    def __init__(self, config: ReproduceConfig) -> None:
        super().__init__(config)
        self.chats = TileSetting(CHATS, cycle=8192)
        self.small_tiles = TileSetting(SHORT_CHATS, tile=8)
        self.short_answers = TileSetting(SHORT_ANSWERS)

    def measure(self, system: str, share: float, *, seed: int) -> Timeline:
        """Return the timeline of chats at a share of Theorem 1's highest rate."""
        count = int(NUM_REQUESTS * self.config.scale)
        requests = self.chats.requests(share, count, seed=seed)
        if share > 1:
            # Arrivals are stretched to the rate exactly, for a load as near to 1 as 1.05.
            stretch = count / requests.arrival_s[-1] * self.chats.mean_work_s / share
            requests = replace(requests, arrival_s=requests.arrival_s * stretch)
        return self.chats.run(system, requests)

    def drain(self, device: str, system: str, share: float) -> Drain:
        """Return the runs that start with a backlog on one of the devices."""
        tiles: TileSetting = getattr(self, device)
        waste_s = tiles.decode_waste_s() if device == "chats" else tiles.longest_waste_s
        return Drain(self.config, tiles, system, share=share, waste_s=waste_s)

    def growth(self, system: str) -> dict[str, Any]:
        """Return the growth of the backlog above the bound, in requests per second."""
        timeline, bound = self.run(system, ABOVE, seed=0), 1 / self.chats.mean_work_s
        at_s = np.linspace(0, timeline.requests.arrival_s[-1], 400)
        slope = float(np.polyfit(at_s, backlog(timeline, at_s), 1)[0])
        rates = {"rate": ABOVE * bound, "bound": bound, "excess": (ABOVE - 1) * bound}
        return {"value": slope, **rates}

    def least_time(self) -> dict[str, Any]:
        """Return the time of RAD's steps / the least time of the same requests."""
        timeline = self.run("RAD", ABOVE, seed=0)
        lengths = timeline.requests.prompt_tokens, timeline.requests.output_tokens
        busy_s = float(np.diff(timeline.tick_s, prepend=0.0).sum())
        work_s = self.chats.latency.mean_work_s(*lengths)
        return {"value": busy_s / (len(timeline.requests) * work_s)}

    def emptying(self, device: str, system: str, left: str = "finished_s") -> dict[str, Any]:
        """Return the first time after a backlog at which all requests so far had `left`."""
        drain = self.drain(device, system, BELOW)
        most_empty = getattr(self, device).empty_at_most()
        first_s = drain.first_s(left)
        empty = float(np.mean([_empty_share(timeline) for timeline in drain.timelines]))
        found = {"drain": drain, "first": _each(first_s), "empty": empty, "most_empty": most_empty}
        return {"holds": max(first_s) <= drain.horizon_s, **found}

    def overload(self) -> dict[str, Any]:
        """Return how often RAD is empty above the bound, and its backlog at the end."""
        over = self.drain("small_tiles", "RAD", ABOVE)
        times = [len(idle_spans(t.requests.arrival_s, t.finished_s)[0]) for t in over.timelines]
        ends = [int(backlog(t, t.requests.arrival_s[-1:])[0]) for t in over.timelines]
        holds = not any(times) and min(ends) > over.size
        return {"holds": holds, "drain": over, "times": _each(times), "ends": _each(ends)}

    def cycles(self) -> dict[str, Any]:
        """Return the length of a cycle, which ends when all started requests are finished."""
        device, drain = self.small_tiles, self.drain("small_tiles", "RAD", BELOW)
        lengths_s = [np.diff(_cycle_ends_s(one), prepend=0.0) for one in drain.timelines]
        mean_s, longest_s = np.concatenate(lengths_s).mean(), max(map(max, lengths_s))
        work_s = device.cycle * device.mean_work_s
        bound_s = work_s + device.longest_waste_s
        found = {"drain": drain, "longest_s": longest_s, "work_s": work_s, "bound_s": bound_s}
        return {"holds": mean_s <= bound_s, "mean_s": mean_s, **found}

    def twins(self, name: str) -> dict[str, Any]:
        """Return a figure of the twin in RAD's appendix, and of RAD."""
        runs = [self.run(system, BELOW, seed=0) for system in ("RAD's twin", "RAD")]
        if name == "mean TTFT":
            twin, rad = (summarize(timeline).ttft_s.mean for timeline in runs)
        else:
            twin, rad = (1e3 * statistic(*token_gaps(timeline)).p99 for timeline in runs)
        return {"value": rad - twin, "twin": twin, "rad": rad}


def _each(values: Sequence[float]) -> str:
    return " / ".join(f"{value:.0f}" for value in values)


def _empty_share(timeline: Timeline) -> float:
    """Share of the time without a request, from the first such moment to the last arrival."""
    arrival_s = timeline.requests.arrival_s
    at_s, idle_s = idle_spans(arrival_s, timeline.finished_s)
    return float(idle_s.sum() / (arrival_s[-1] - at_s[0])) if len(at_s) else 0.0


def _cycle_ends_s(timeline: Timeline) -> Floats:
    """Ends of steps after which every started request is finished, while requests arrive."""
    at_s = timeline.tick_s[timeline.tick_s <= timeline.requests.arrival_s[-1]]
    started = np.searchsorted(np.sort(timeline.scheduled_s), at_s, "left")
    finished = np.searchsorted(np.sort(timeline.finished_s), at_s, "right")
    return np.asarray(at_s[started == finished])
