"""RAD: the capacity bound of Theorem 1, and the systems that keep it.

Llama-3-8B on an A100-80GB under the paper's staircase of tiles; prompts and outputs log-normal,
prompts whole tiles. Load 1 is one request per mean work (T-bar). Above it every queue grows without
end. Below it RAD must reach the end of any queue, and be empty again and again.

The share of time in which an instance is empty (no request waits or runs) depends on its tiles. A
request stays for as many steps as it has tokens. By the formula of the M/G/infinity queue any
scheduler is empty at most exp(-rate x mean output x shortest step) of the time. For chats on tiles
of 128 tokens that is a moment in a year, so the check there is of the waiting queue. Emptying is
checked where the formula allows it: on a device as fast whose tiles hold 8 tokens, and on the A100
with long prompts and short answers. Both start twice the requests per cycle that the theorem needs.

Set before the first run: the backlog is one cycle (n requests, 2,000 at most). The horizon is twice
the time in which cycles as long as the bound would serve it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, exp, inf

import numpy as np

from scheduler_adapters.papers.rows import PaperFigure, row
from scheduler_adapters.papers.runs import ReproduceConfig
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.prefill_first import PrefillFirst, RequestLevel
from scheduler_adapters.policies.rad import RAD, RADTwin
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policy import Policy
from scheduler_adapters.reporting.page import Section
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
        share: float = BELOW,
        waste_s: float | None = None,
    ) -> None:
        self.size = size = int(min(device.cycle, MOST_BACKLOG) * config.scale)
        waste_s = device.longest_waste_s if waste_s is None else waste_s
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


def bound_rows(chats: TileSetting, count: int) -> Iterator[PaperFigure]:
    """Yield every system above the bound."""
    requests = chats.requests(ABOVE, count)
    # Arrivals are stretched to the rate exactly, for a load as near to 1 as 1.05.
    stretch = len(requests) / requests.arrival_s[-1] * chats.mean_work_s / ABOVE
    requests = replace(requests, arrival_s=requests.arrival_s * stretch)
    timelines = {system: chats.run(system, requests) for system in chats.policies()}
    at_s, bound = np.linspace(0, requests.arrival_s[-1], 400), 1 / chats.mean_work_s
    for system, timeline in timelines.items():
        slope = float(np.polyfit(at_s, backlog(timeline, at_s), 1)[0])
        yield row(
            "growth of the backlog at load 1.05 | "
            f"chats, {ABOVE * bound:.2f} req/s, bound {bound:.2f} | {system}",
            f"above 0; work comes {(ABOVE - 1) * bound:.3f} req/s too fast",
            f"{slope:.3f} req/s",
            slope > 0,
            "above 0",
            note="who serves small requests first counts fewer of them",
        )
    busy_s = float(np.diff(timelines["RAD"].tick_s, prepend=0.0).sum())
    work_s = chats.latency.mean_work_s(requests.prompt_tokens, requests.output_tokens)
    ratio = busy_s / (len(requests) * work_s)
    yield row(
        "time spent / least time for the same requests | chats, load 1.05 | RAD",
        ">= 1, close to 1 for full tiles",
        f"{ratio:.3f}",
        ratio >= 1,
        "not below 1",
    )


def emptying_rows(
    config: ReproduceConfig, chats: TileSetting, small_tiles: TileSetting, rad: Drain
) -> Iterator[PaperFigure]:
    """Yield the first time without a request after a backlog."""
    short_answers = TileSetting(SHORT_ANSWERS)
    for device, drain, mix, system in (
        (small_tiles, rad, "chats", "RAD"),
        (small_tiles, Drain(config, small_tiles, "RAD's twin"), "chats", "RAD's twin"),
        (short_answers, Drain(config, short_answers, "RAD"), "long prompts, short answers", "RAD"),
    ):
        first_s = drain.first_s("finished_s")
        empty = np.mean([_empty_share(timeline) for timeline in drain.timelines])
        yield row(
            f"first time empty after a backlog of {drain.size}, at load 0.8 | "
            f"{mix}, {drain.limits} | {system}",
            "empties, again and again",
            f"{_each(first_s)} s, then empty {empty:.1%} of the time",
            max(first_s) <= drain.horizon_s,
            f"every seed within {drain.horizon_s:.0f} s",
            note=f"{drain.fluid_s:.0f} s if no work were wasted; no scheduler can be empty more "
            f"than {device.empty_at_most():.0%} of the time",
        )
    over = Drain(config, small_tiles, "RAD", share=ABOVE)
    times = [len(idle_spans(t.requests.arrival_s, t.finished_s)[0]) for t in over.timelines]
    ends = [int(backlog(t, t.requests.arrival_s[-1:])[0]) for t in over.timelines]
    yield row(
        f"times empty after a backlog of {over.size}, at load 1.05 | chats, {over.limits} | RAD",
        "never: grows without end",
        f"{_each(times)} times in {over.horizon_s:.0f} s; backlog then {_each(ends)}",
        not any(times) and min(ends) > over.size,
        "never, in every seed, and the backlog is larger at the end",
        note="the same check at a load at which it must fail",
    )
    queue = Drain(config, chats, "RAD", waste_s=chats.decode_waste_s())
    first_s = queue.first_s("scheduled_s")
    yield row(
        f"first time nobody waits after a backlog of {queue.size}, at load 0.8 | "
        f"chats, {queue.limits} | RAD",
        "empties, again and again",
        f"{_each(first_s)} s",
        max(first_s) <= queue.horizon_s,
        f"every seed within {queue.horizon_s:.0f} s",
        note=f"{queue.fluid_s:.0f} s if no work were wasted; n is below the theorem's, which is "
        "out of reach here, and that nobody runs either is true at most "
        f"{chats.empty_at_most():.0e} of the time, whatever the scheduler",
    )


def _each(values: Sequence[float]) -> str:
    return " / ".join(f"{value:.0f}" for value in values)


def _empty_share(timeline: Timeline) -> float:
    """Share of the time without a request, from the first such moment to the last arrival."""
    arrival_s = timeline.requests.arrival_s
    at_s, idle_s = idle_spans(arrival_s, timeline.finished_s)
    return float(idle_s.sum() / (arrival_s[-1] - at_s[0])) if len(at_s) else 0.0


def cycle_row(device: TileSetting, drain: Drain) -> PaperFigure:
    """Return the length of a cycle, which ends when all started requests are finished."""
    lengths_s = [np.diff(_cycle_ends_s(timeline), prepend=0.0) for timeline in drain.timelines]
    mean_s, longest_s = np.concatenate(lengths_s).mean(), max(map(max, lengths_s))
    work_s = device.cycle * device.mean_work_s
    bound_s = work_s + device.longest_waste_s
    return row(
        f"mean cycle, at load 0.8 | chats, {drain.limits} | RAD",
        f"<= {bound_s:.0f} s",
        f"{mean_s:.0f} s, the longest {longest_s:.0f} s",
        mean_s <= bound_s,
        "within the bound of the theorem",
        note=f"the work of n requests is {work_s:.0f} s; a cycle ends early when it is empty",
    )


def _cycle_ends_s(timeline: Timeline) -> Floats:
    """Ends of steps after which every started request is finished, while requests arrive."""
    at_s = timeline.tick_s[timeline.tick_s <= timeline.requests.arrival_s[-1]]
    started = np.searchsorted(np.sort(timeline.scheduled_s), at_s, "left")
    finished = np.searchsorted(np.sort(timeline.finished_s), at_s, "right")
    return np.asarray(at_s[started == finished])


def twin_rows(chats: TileSetting, requests: Requests) -> Iterator[PaperFigure]:
    """Yield RAD and the twin of its appendix."""
    runs = [chats.run(system, requests) for system in ("RAD's twin", "RAD")]
    twin_s, rad_s = (summarize(timeline).ttft_s.mean for timeline in runs)
    yield row(
        "mean TTFT | chats, load 0.8 | RAD's twin",
        "RAD lower",
        f"{twin_s:.2f} -> {rad_s:.2f} s",
        rad_s < twin_s,
        "lower",
    )
    twin_ms, rad_ms = (1e3 * statistic(*token_gaps(timeline)).p99 for timeline in runs)
    yield row(
        "P99 time between tokens | chats, load 0.8 | RAD's twin",
        "RAD higher",
        f"{twin_ms:.1f} -> {rad_ms:.1f} ms",
        rad_ms > twin_ms,
        "higher",
        pre_set=False,
        note="of which percentile is not said; P90 is higher with n = 1,024, not with 8,192",
    )


def reproduce(config: ReproduceConfig) -> tuple[list[PaperFigure], list[Section]]:
    """Measure the checks of the theory."""
    chats, small_tiles = TileSetting(CHATS, cycle=8192), TileSetting(SHORT_CHATS, tile=8)
    count, rad = int(NUM_REQUESTS * config.scale), Drain(config, small_tiles, "RAD")
    rows = [
        *bound_rows(chats, count),
        *emptying_rows(config, chats, small_tiles, rad),
        cycle_row(small_tiles, rad),
        *twin_rows(chats, chats.requests(BELOW, count)),
    ]
    return rows, []
