"""RAD: backlog, emptiness and cycles are read off timelines as the theorem means them."""

from dataclasses import replace
from functools import partial
from math import ceil

import numpy as np
import pytest

from benchmarks.papers.rad import CHATS, LOAD, Mix, TileSetting
from scheduler_adapters.placements.baselines import RandomPlacement
from scheduler_adapters.placements.distserve import DistServe
from scheduler_adapters.policies.fcfs import FCFS
from scheduler_adapters.policies.prefill_first import PrefillFirst, RequestLevel
from scheduler_adapters.policies.rad import RAD
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.simulator.cluster import simulate_cluster
from scheduler_adapters.simulator.latency.staircase import TILE_COLUMNS, TILE_ROWS
from scheduler_adapters.simulator.links import Fabric
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.workload.requests import Floats, Ints

POLICIES = {one.name: one for one in (FCFS, Sarathi, PrefillFirst, RequestLevel, SLAI)}
POLICIES["pars"] = pars
SHORT_CHATS = Mix(prompt=250, longest_prompt=1024, output=100, longest_output=512)
SHORT_ANSWERS = Mix(prompt=2000, longest_prompt=4096, output=8, longest_output=32)


class SmallTiles(TileSetting):
    """Tiles of `tile` tokens, each in its share of the A100's time, and the theorem's bounds.

    `cycle` None: twice the number that the theorem needs.
    """

    def __init__(self, mix: Mix, *, tile: int = 128, cycle: int | None = None) -> None:
        tiles = TileSetting(mix).latency
        share = tile / tiles.tile_columns
        times_s = {
            name: share * getattr(tiles, name)
            for name in ("linear_pass_s", "tile_pair_s", "vector_tile_s")
        }
        latency = replace(tiles, tile_columns=tile, **times_s)
        super().__init__(mix, latency=latency)
        self.longest = mix.longest_prompt + mix.longest_output
        # T-max: the longest prompt and response, token by token and alone, under the slower of the
        # A100's two tiles. That is the wide one, with half of the rows; attention is equal.
        slower = TILE_ROWS // TILE_COLUMNS if tile == TILE_COLUMNS else 1
        longest_work_s = self.longest * (slower * latency.linear_pass_s + latency.per_token_s)
        longest_work_s += latency.decode_attention_s(np.arange(1, self.longest + 1))
        self.longest_waste_s = (tile - 1) * longest_work_s
        """(t_col - 1) T-max: the longest time of a cycle beyond the work of its requests."""
        self.least_cycle = ceil(self.longest_waste_s / ((1 - LOAD) * self.mean_work_s))
        self.cycle = cycle or 2 * self.least_cycle


def backlog(timeline: Timeline, at_s: Floats) -> Ints:
    """Requests in the system at instants (K,)."""
    arrived = np.searchsorted(timeline.requests.arrival_s, at_s, "right")
    return arrived - np.searchsorted(np.sort(timeline.finished_s), at_s, "right")


def empty_s(timeline: Timeline) -> Floats:
    """Times at which the system became empty, before the end of the run."""
    left_s = np.sort(timeline.finished_s)[:-1]
    return left_s[left_s < timeline.requests.arrival_s[1:]]


@pytest.mark.slow
@pytest.mark.parametrize("system", ["RAD", "RAD's twin", *POLICIES])
def test_the_backlog_grows_above_the_bound_and_no_work_is_saved(system):
    setting = TileSetting(CHATS, cycle=1024)
    requests = setting.requests(1.05, 2000)
    if system in POLICIES:
        timeline = simulate(requests, POLICIES[system](), setting.instance)
    else:
        timeline = setting.run(system, requests)
    last_s = requests.arrival_s[-1]
    half, end = backlog(timeline, np.array([last_s / 2, last_s]))
    assert end > half > 0
    busy_s = np.diff(timeline.tick_s, prepend=0.0).sum()
    lengths = requests.prompt_tokens, requests.output_tokens
    assert busy_s >= len(requests) * setting.latency.mean_work_s(*lengths)


def times_empty(setting: TileSetting, *, start: int, count: int, load: float = LOAD) -> int:
    requests = setting.requests(load, count, backlog=start)
    return len(empty_s(setting.run("RAD", requests)))


@pytest.mark.slow
def test_rad_empties_below_the_bound_if_cycles_start_enough():
    enough = SmallTiles(SHORT_CHATS, tile=8)
    assert enough.cycle > enough.least_cycle
    assert times_empty(enough, start=200, count=2000) > 10
    assert times_empty(enough, start=200, count=2000, load=1.05) == 0
    too_few = SmallTiles(SHORT_CHATS, tile=8, cycle=8)
    assert times_empty(too_few, start=200, count=2000) == 0


@pytest.mark.slow
@pytest.mark.parametrize("system", ["RAD", "RAD's twin"])
@pytest.mark.parametrize(
    "tiles",
    [SmallTiles(SHORT_CHATS, tile=8), SmallTiles(SHORT_ANSWERS)],
    ids=["tiles of 8 tokens", "short answers"],
)
def test_a_cycles_backlog_ends_in_twice_the_time_at_the_bound(tiles, system):
    size = min(tiles.cycle, 200)
    cycle_s = tiles.cycle * tiles.mean_work_s + tiles.longest_waste_s
    horizon_s = 2 * size / (tiles.cycle / cycle_s - LOAD / tiles.mean_work_s)
    requests = tiles.requests(LOAD, int(horizon_s * LOAD / tiles.mean_work_s), backlog=size)
    assert empty_s(tiles.run(system, requests))[0] <= horizon_s


@pytest.mark.slow
def test_two_randomly_routed_nodes_keep_up_where_two_phases_fail():
    setting = SmallTiles(SHORT_CHATS, tile=8)
    rad = partial(RAD, max_started=setting.cycle, tile=8, chunk=setting.latency.chunk_tokens)
    split = {"fabric": Fabric.of_model("llama-3-8b"), "roles": ("prefill", "decode")}

    def grows(load: float, placement=None, policy=rad, **parts) -> bool:
        requests, nodes = setting.requests(2 * load, 3000), [setting.instance] * 2
        run = simulate_cluster(requests, placement or RandomPlacement(), policy, nodes, **parts)
        first, half, end = backlog(run.timeline, requests.arrival_s[-1] * np.array([0.25, 0.5, 1]))
        return end > half > first and end > 100

    assert [grows(1.05), grows(LOAD), grows(LOAD, DistServe(), PrefillFirst, **split)] == [1, 0, 1]


@pytest.mark.parametrize(("tile", "slower"), [(128, 2), (8, 1)])
def test_the_longest_work_is_that_of_the_slower_of_the_tiles(tile, slower):
    setting = SmallTiles(SHORT_ANSWERS, tile=tile)
    latency, longest = setting.latency, setting.longest
    attention_s = latency.decode_attention_s(np.arange(1, longest + 1))
    work_s = longest * (slower * latency.linear_pass_s + latency.per_token_s) + attention_s
    assert setting.longest_waste_s == pytest.approx((tile - 1) * work_s)
