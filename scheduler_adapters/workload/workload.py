"""Requests of an experiment as settings: trace, arrivals and scores.

workload = WorkloadConfig(trace=Path("chats.csv"), rate_per_s=4)
requests = workload.scored(workload.load())
"""

from dataclasses import field, replace
from math import inf
from typing import Final

import numpy as np

from lengthwise.bundle import bundle_folder, read_manifest
from lengthwise.errors import ConfigError, DataError, require
from lengthwise.settings import Count, Natural, PositiveFinite, settings
from lengthwise.tables.options import TraceOptions
from scheduler_adapters.workload.arrivals import CLASS_STREAM, arrivals_s
from scheduler_adapters.workload.mixes import Lengths, draw_lengths
from scheduler_adapters.workload.requests import Requests
from scheduler_adapters.workload.score_sources import TauB, open_prompt_scorer, synthetic_scores
from scheduler_adapters.workload.traces import read_trace

SCORES: Final = ("trace", "oracle", "synthetic", "constant")


@settings
class WorkloadConfig(TraceOptions):
    """Requests with their arrivals and scores."""

    trace: tuple[str, ...] = ()
    """Files, folders or patterns, read as one log: .csv, .parquet or .jsonl (also .gz, .zst) with
    token columns, or a log of a gateway or of vLLM (see `lengthwise inspect`); none: seeded
    lengths."""
    lengths: Lengths = "chat"
    """Lengths without a trace; chat is log-normal without reasoning, the others have some."""
    num_requests: Count = 2000
    """Largest number of requests of the trace."""
    rate_per_s: PositiveFinite | None = None
    """Arrivals per second; none: the trace's own times, or all at once."""
    cv: PositiveFinite = 1.0
    """Coefficient of variation of the gaps at that rate: 1 is Poisson, above 1 in bursts."""
    scores: str | None = None
    """Source of scores: synthetic (of quality tau_b), trace (its column score), oracle, constant,
    or, for a trace with a column prompt, a ranker as bundle:PATH or service:HOST:PORT; none: the
    trace's column score if present, else synthetic. The policy oracle always takes the true
    lengths."""
    tau_b: TauB = 0.75
    """Kendall tau-b of synthetic scores with the true lengths."""
    classes: dict[str, dict[str, float]] = field(default_factory=dict)
    """User classes drawn at random, as {"paying": {"share": 0.05, "tbt_s": 0.1}, "free": {"share":
    0.95, "tbt_s": 0.5}}: shares sum to 1; tbt_s, the target between tokens, may be left out. None:
    the trace's columns user_class and tbt_s."""
    seed: Natural = 0
    """Seed of arrivals, synthetic lengths and synthetic scores."""

    def __post_init__(self) -> None:
        _check_classes(self.classes)
        if self.trace and self.lengths != "chat":
            raise ConfigError(f"lengths is {self.lengths!r} beside a trace; use one of them")
        is_known = self.scores in (None, *SCORES) or self.scores_prompts
        known = f"one of {', '.join(SCORES)}, bundle:PATH or service:HOST:PORT"
        require("scores", repr(self.scores), is_known, known)
        if not self.trace and (self.scores_prompts or self.scores == "trace"):
            raise ConfigError(f"scores is {self.scores!r} but there is no trace; add --trace FILE")

    def need_rate(self, has_rate: bool) -> None:
        """Raise ConfigError for bursts of arrivals without a rate."""
        require("cv", self.cv, self.cv == 1 or has_rate, "it with --rate-per-s, or 1")

    @property
    def scores_prompts(self) -> bool:
        """True if a ranker scores the prompts of the trace."""
        return self.scores is not None and self.scores.startswith(("bundle:", "service:"))

    def load(self) -> Requests:
        """Return the requests of the trace, or synthetic requests, before `scored`.

        Raises DataError and ScoringError as `read_trace`, and DataError for a trace without scores.
        """
        if not self.trace:
            requests = draw_lengths(self.lengths, self.num_requests, seed=self.seed)
        else:
            scorer = open_prompt_scorer(str(self.scores)) if self.scores_prompts else None
            requests = read_trace(
                self.trace,
                self,
                limit=self.num_requests,
                scorer=scorer,
                has_times=self.rate_per_s is None,
            )
            if self.scores == "trace" and np.isnan(requests.score).all():
                raise DataError(
                    "has no scores in a column 'score'; use other --scores", path=self.trace[0]
                )
        if self.classes:
            requests = self._classified(requests)
        return requests if self.rate_per_s is None else self.at_rate(requests, self.rate_per_s)

    def at_rate(self, requests: Requests, rate_per_s: float) -> Requests:
        """Return the requests with arrivals at another rate."""
        at_s = arrivals_s(len(requests), rate_per_s=rate_per_s, seed=self.seed, cv=self.cv)
        return replace(requests, arrival_s=at_s)

    def check_bundle(self) -> None:
        """Read the manifest of the bundle that scores, if one does; BundleError: it is broken."""
        kind, _, place = (self.scores or "").partition(":")
        if kind == "bundle":
            read_manifest(bundle_folder(place))

    def score_source(self, requests: Requests) -> str:
        """Return the source of scores: the setting, else the trace, else synthetic."""
        if self.scores is not None:
            return self.scores
        return "synthetic" if np.isnan(requests.score).all() else "trace"

    def scored(self, requests: Requests, *, by_oracle: bool = False) -> Requests:
        """Return the requests with the scores of the setting, or with the true lengths."""
        source = "oracle" if by_oracle else self.score_source(requests)
        lengths = requests.output_tokens
        if source == "oracle":
            return requests.with_scores(lengths)
        if source == "synthetic":
            return requests.with_scores(synthetic_scores(lengths, tau_b=self.tau_b, seed=self.seed))
        return requests.with_scores(0.0) if source == "constant" else requests

    def _classified(self, requests: Requests) -> Requests:
        """Return the requests with classes drawn by their shares, and with the targets of these."""
        shares = np.array([own["share"] for own in self.classes.values()])
        targets_s = np.array([own.get("tbt_s", np.nan) for own in self.classes.values()])
        random = np.random.default_rng((self.seed, CLASS_STREAM))
        drawn = random.choice(len(shares), len(requests), p=shares / sum(shares))
        names = np.array(list(self.classes))
        return replace(requests, user_class=names[drawn], tbt_s=targets_s[drawn])


def _check_classes(classes: dict[str, dict[str, float]]) -> None:
    shares = [own.get("share", 0.0) for own in classes.values()]
    if shares and (min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6):
        raise ConfigError(f"shares of classes are {shares}; use numbers above 0 that sum to 1")
    for name, own in classes.items():
        if unknown := own.keys() - {"share", "tbt_s"}:
            raise ConfigError(f"class {name!r} has {sorted(unknown)}; use share and tbt_s")
        target_s, right = own.get("tbt_s", inf), "seconds above 0, or leave it out for no target"
        require(f"tbt_s of class {name!r}", target_s, target_s > 0, right)
