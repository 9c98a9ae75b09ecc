"""RAD: the capacity bound of Theorem 1, and the systems that keep it (`rad.toml`)."""

from dataclasses import dataclass, replace

import numpy as np

from benchmarks.papers.runs import Experiment, ReproduceConfig, kept
from scheduler_adapters.policies.rad import RAD, RADTwin
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.staircase import StaircaseLatency
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.latency_metrics import summarize
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.workload.arrivals import LENGTH_STREAM, arrivals_s
from scheduler_adapters.workload.requests import Ints, Requests, make_requests

PROFILE = "llama-3-8b@a100-80g:staircase"
NUM_REQUESTS = 4000
LOAD = 0.8
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


class TileSetting:
    """A device with tiles (none: the A100's), a mix of requests, and Theorem 1's bound for them.

    `cycle` is n, the requests that RAD starts per cycle.
    """

    def __init__(
        self, mix: Mix, *, cycle: int = 8192, latency: StaircaseLatency | None = None
    ) -> None:
        self.mix, self.cycle = mix, cycle
        # The theorem assumes room for a tile of the longest requests: memory is not its subject.
        limits = {"max_num_seqs": 4096, "max_tokens": 4096, "kv_blocks": 10**6}
        preset = Instance.preset(PROFILE, **limits)
        tiles = latency or preset.latency
        assert isinstance(tiles, StaircaseLatency)
        self.latency, self.instance = tiles, replace(preset, latency=tiles)
        self.mean_work_s = self.latency.mean_work_s(*self._draw(NUM_REQUESTS, 0))

    def _draw(self, count: int, seed: int) -> tuple[Ints, Ints]:
        return self.mix.draw(count, self.latency.chunk_tokens, seed)

    def requests(self, share: float, count: int, *, seed: int = 0, backlog: int = 0) -> Requests:
        """Return `backlog` requests at 0 s, then `count` at `share` of Theorem 1's highest rate.

        The score is the output length, for the policies that take one.
        """
        prompt, output = self._draw(backlog + count, seed)
        later_s = arrivals_s(count, rate_per_s=share / self.mean_work_s, seed=seed)
        return make_requests(
            prompt_tokens=prompt,
            output_tokens=output,
            scores=output,
            arrival_s=np.concatenate([np.zeros(backlog), later_s]),
        )

    def run(self, system: str, requests: Requests) -> Timeline:
        """Return the timeline of the requests under RAD or its twin."""
        policy = {"RAD": RAD, "RAD's twin": RADTwin}[system](
            max_started=self.cycle, tile=self.latency.tile_columns, chunk=self.latency.chunk_tokens
        )
        return simulate(requests, policy, self.instance)


class RadExperiment(Experiment):
    """Runs of chats at load .8."""

    def __init__(self, config: ReproduceConfig) -> None:
        super().__init__(config)
        self.chats = TileSetting(CHATS)

    @kept
    def run(self, system: str, *, seed: int) -> dict[str, float]:
        """Return mean TTFT in seconds and P99 of the time between tokens in ms, of chats."""
        requests = self.chats.requests(LOAD, int(NUM_REQUESTS * self.config.scale), seed=seed)
        summary = summarize(self.chats.run(system, requests))
        return {"ttft_mean_s": summary.ttft_s.mean, "tbt_p99_ms": 1e3 * summary.tbt_s.p99}
