"""Replays of a log in the simulator, under several policies and loads.

Only the scores are resampled. In each draw a prompt of the training set gets the score of a request
of about its length. That request is drawn from a resample of the other prompts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from typing import Any, Final, NamedTuple

import numpy as np

from lengthwise.agreement import figure_text
from lengthwise.progress import Progress
from scheduler_adapters.policies.fair_shares import load_shared
from scheduler_adapters.policy import Policy
from scheduler_adapters.reporting.latency_tables import interval
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.load_search import highest_load
from scheduler_adapters.simulator.simulate import LoopName, simulate_replicas
from scheduler_adapters.timeline.latency_metrics import summarize
from scheduler_adapters.timeline.targets import is_met
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.workload.arrivals import arrivals_s
from scheduler_adapters.workload.requests import Floats, Requests
from scheduler_adapters.workload.score_sources import achieved_tau_b, synthetic_scores, with_lengths

LOADS: Final = (0.7, 1.0, 1.3)
"""Multiples of the load of the log."""
STATISTICS: Final = ("mean", "p50", "p99")
SCORED: Final = "pars"
LEARNED: Final = (SCORED, "uniboost-learned", "srpt")
"""Policies here that read scores."""
_LATER: Final = 0.02
"""Fraction of its E2E under FCFS by which a request must be delayed to count as later."""
_NEIGHBOURS: Final = 5
"""Requests of about the same length, to either side, that may lend their score."""
_LATE_FRACTION: Final = 0.05
_MOST_INSTANCES: Final = 512
_MOST_LOAD: Final = 16.0
_SEARCHES: Final = 5
_SLOW_DRAWS: Final = 5
Figures = dict[tuple[str, float], list[dict[str, float]]]
"""(Policy, load) -> the figures of each draw."""


class Spread(NamedTuple):
    """A figure with its 95% interval."""

    value: float
    low: float
    high: float

    def __format__(self, form: str) -> str:
        """Format as numbers, or with the form % as percentages."""
        form = "z.1%" if form == "%" else ".3g"
        text = figure_text(self.value, form)
        is_alone = self.low == self.high or text == "undefined"
        return text if is_alone else f"{text} [{self.low:{form}}, {self.high:{form}}]"


@dataclass(frozen=True, kw_only=True, eq=False)
class Replay:
    """A log on equal instances, with its requests assigned in turn."""

    requests: Requests
    """An unknown score is NaN."""
    instance: Instance
    instances: int
    seed: int
    assumed_tau_b: float | None = None
    """Quality of drawn scores; None: the ranker's own scores."""
    rate_per_s: float | None = None
    """Rate of drawn arrivals; None: the log's own arrivals."""
    loop: LoopName = "compiled"

    def drawn(self, number: int) -> Requests:
        """Return the requests of a draw, each with a score."""
        requests, seed = self.requests, self.seed + number
        if self.rate_per_s is not None:
            arrival_s = arrivals_s(len(requests), rate_per_s=self.rate_per_s, seed=seed)
            requests = replace(requests, arrival_s=arrival_s)
        if np.isnan(requests.score).all() and self.assumed_tau_b is None:
            return requests  # without a ranker yet
        if self.assumed_tau_b is None:
            return requests.with_scores(lent_scores(requests, np.random.default_rng(seed)))
        drawn = synthetic_scores(requests.output_tokens, tau_b=self.assumed_tau_b, seed=seed)
        return requests.with_scores(drawn)

    def run(self, policy: str, draw: int = 0, load: float = 1.0, instances: int = 0) -> Timeline:
        """Return the run under a policy at `load` times the log's load."""
        requests = self.drawn(draw)
        if policy == "oracle":
            requests, policy = requests.with_scores(requests.output_tokens), SCORED
        make_policy = self.policy_maker(policy)
        requests = with_lengths(requests, make_policy())
        return simulate_replicas(
            replace(requests, arrival_s=requests.arrival_s / load),
            make_policy,
            self.instance,
            replicas=instances or self.instances,
            loop=self.loop,
        )

    def policy_maker(self, policy: str) -> Callable[[], Policy]:
        """Return the maker of a policy, with shares between the clients of the log."""
        return partial(load_shared, policy, self.requests.clients)

    def num_draws(self, policy: str, draws: int) -> int:
        """Return the number of draws that differ under a policy."""
        if policy == "srpt":  # fifteen times as slow as the compiled loops
            return min(draws, _SLOW_DRAWS)
        return draws if policy in LEARNED or self.rate_per_s is not None else 1


def lent_scores(requests: Requests, random: np.random.Generator) -> Floats:
    """Return scores (N,): known ones, and for the others a score of a similarly long answer."""
    known = np.flatnonzero(np.isfinite(requests.score))
    lenders = random.choice(known, len(known))
    lengths = requests.output_tokens[lenders]
    order = np.lexsort((random.random(len(lenders)), lengths))
    lenders, lengths = lenders[order], lengths[order]
    scores = requests.score.copy()
    missing = np.isnan(scores)
    wanted = requests.output_tokens[missing]
    first = np.searchsorted(lengths, wanted, "left")
    past = np.maximum(np.searchsorted(lengths, wanted, "right"), first + 1)
    beside = random.integers(-_NEIGHBOURS, _NEIGHBOURS + 1, len(wanted))
    # Any of many requests with exactly this length; else a neighbour in the order of lengths.
    place = np.where(past - first > 2 * _NEIGHBOURS, random.integers(first, past), first + beside)
    scores[missing] = requests.score[lenders[np.clip(place, 0, len(lenders) - 1)]]
    return scores


def policies_for(requests: Requests) -> list[str]:
    """Return the policies of the replays; PASCAL needs reasoning tokens."""
    by_prompt = "residual-prompt" if requests.cached_tokens.any() else "shortest-prompt"
    pascal = ["pascal"] * bool(requests.reasoning_tokens.any())
    return ["fcfs", by_prompt, "uniboost", "slai", *pascal, *LEARNED, "oracle"]


def fewest_instances(replay: Replay) -> int:
    """Return the fewest instances with which FCFS keeps up with the log's arrivals.

    The last answer may end 5% of the log's span, plus the longest answer, after the last arrival.
    """

    def keeps_up(count: int) -> bool:
        timeline = replay.run("fcfs", instances=count)
        arrival_s = timeline.requests.arrival_s
        alone_s = float(np.nanmax(timeline.finished_s - timeline.scheduled_s))
        end_s = float(np.nanmax(timeline.finished_s)) - arrival_s[0]
        return bool(end_s <= (1 + _LATE_FRACTION) * np.ptp(arrival_s) + alone_s)

    return _fewest(keeps_up, min(_MOST_INSTANCES, len(replay.requests)))


def figures_of(timeline: Timeline, base: Timeline | None = None) -> dict[str, float]:
    """Return the latencies of a run, and its delays after `base`, the run under FCFS."""
    summary, e2e_s, requests = summarize(timeline), timeline.e2e_s(), timeline.requests
    figures = {
        f"{metric}.{name}": float(getattr(getattr(summary, metric), name))
        for metric in ("ttft_s", "e2e_s", "queueing_s")
        for name in STATISTICS
    }
    wait_s = timeline.scheduled_s - requests.arrival_s
    figures["longest_wait_s"] = float(np.nanmax(wait_s, initial=0.0))
    before_s = (base or timeline).e2e_s()
    delay_s = e2e_s - before_s
    figures["later_fraction"] = float((delay_s > _LATER * before_s).mean())
    figures["delay_s.p99"] = float(np.nanpercentile(delay_s, 99))
    return figures


def replays(
    replay: Replay, policies: Sequence[str], draws: int, loads: Sequence[float] = LOADS
) -> Figures:
    """Return the figures of each policy at each load, one for each draw that differs.

    The first policy is FCFS.
    """
    wanted = [(policy, load) for policy in policies for load in loads]
    found: Figures = {}
    base: dict[float, list[Timeline]] = {}
    with Progress(len(wanted)) as progress:
        for policy, load in wanted:
            numbers = range(replay.num_draws(policy, draws))
            if load not in base:
                base[load] = [replay.run(policy, number, load) for number in numbers]
            runs = (replay.run(policy, number, load) for number in numbers)
            found[policy, load] = list(map(figures_of, runs, cycle(base[load])))
            progress.step(f"{policy} at {load:g} times the load")
    return found


def spread(values: Sequence[float]) -> Spread:
    """Return the mean of draws, and the 95% interval of a further draw."""
    return Spread(float(np.mean(values)), *interval(values, of_next=True))


def spread_of(found: Figures, policy: str, metric: str, load: float = 1.0) -> Spread:
    """Return a figure over the draws."""
    return spread([one[metric] for one in found[policy, load]])


def gains(found: Figures, load: float = 1.0) -> dict[str, Spread]:
    """Return the fraction of FCFS's mean E2E that each policy saves, at a load."""
    base = [one["e2e_s.mean"] for one in found["fcfs", load]]
    return {
        policy: spread([1 - one["e2e_s.mean"] / b for one, b in zip(rows, cycle(base))])
        for (policy, at), rows in found.items()
        if at == load
    }


def tau_b_spread(replay: Replay, draws: int) -> Spread:
    """Return tau_b of the known scores with the lengths, and its 95% bootstrap interval."""
    requests = replay.requests if replay.assumed_tau_b is None else replay.drawn(0)
    known = np.flatnonzero(np.isfinite(requests.score))
    random = np.random.default_rng(replay.seed)

    def of(rows: Any) -> float:
        return achieved_tau_b(requests.score[rows], requests.output_tokens[rows])

    found = [of(random.choice(known, len(known))) for _ in range(draws)]
    low, high = np.percentile(found, (2.5, 97.5))
    return Spread(of(known), float(low), float(high))


def carried_load(
    replay: Replay, policies: Sequence[str], slo: Mapping[str, float]
) -> dict[str, tuple[Spread, int | None]]:
    """Return the highest load within the targets, and the fewest instances, of each policy.

    The load is that of the replay's instances, in multiples of the log's. The instances are those
    for the log's own load; None if those of the replay miss a target.
    """

    def meets(policy: str, draw: int = 0, load: float = 1.0, instances: int = 0) -> bool:
        return is_met(slo, replay.run(policy, draw, load, instances))

    search = partial(highest_load, low=0.05, high=1.0, tolerance=0.02, grows=True, most=_MOST_LOAD)
    found = {}
    with Progress(len(policies), is_partial_shown=False) as progress:
        for policy in policies:
            draws = range(replay.num_draws(policy, _SEARCHES))
            loads = [search(partial(meets, policy, draw)) for draw in draws]
            own = partial(meets, policy, 0, 1.0)
            found[policy] = spread(loads), _fewest(own, replay.instances) if meets(policy) else None
            progress.step(f"{policy}: the load that meets the targets")
    return found


def _fewest(suffices: Callable[[int], bool], most: int) -> int:
    """Return the smallest count that suffices, at most `most`."""
    search = partial(highest_load, low=1, high=2, tolerance=0.0, grows=True, whole=True)
    return min(most, 1 + int(search(lambda count: not suffices(int(count)), most=most)))
