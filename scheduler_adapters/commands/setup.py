"""What the commands have in common: which requests, with which scores, on which instance."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from scheduler_adapters.policy import Policy, load_policy
from scheduler_adapters.simulator.host_link import HostLink
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.workload.arrivals import (
    CLASS_STREAM,
    LENGTH_STREAM,
    gamma_arrivals_s,
    poisson_arrivals_s,
    shock_arrivals_s,
)
from scheduler_adapters.workload.requests import Requests, make_requests
from scheduler_adapters.workload.scores import (
    ConstantScores,
    OracleScores,
    SyntheticScores,
    open_prompt_scorer,
)
from scheduler_adapters.workload.traces import read_trace
from scoring_service.errors import ConfigError, DataError

log = logging.getLogger(__name__)

SCORES = ("trace", "oracle", "synthetic", "constant")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Requests, scores and an instance."""

    trace: Path | None = None
    """.csv, .csv.gz, .parquet or .jsonl with token columns; none: a seeded log-normal mix."""
    num_requests: int = 2000
    """At most this many requests of the trace."""
    rate_per_s: float | None = None
    """Arrivals per second; none: the trace's own times, or all at once."""
    arrivals: Literal["poisson", "gamma", "shock"] = "poisson"
    """How requests arrive at that rate; shock: five times the rate in the middle fifth."""
    cv: float = 3.0
    """Coefficient of variation of the gaps between gamma arrivals; 1 is Poisson."""
    scores: str | None = None
    """Where scores come from: synthetic (of quality tau_b), trace (its column score), oracle,
    constant, or, for a trace with a column prompt, a ranker as bundle:PATH or service:HOST:PORT;
    none: the trace's column score where there is one, else synthetic. The policy oracle always
    takes the true lengths."""
    tau_b: float = 0.75
    """Kendall tau-b of synthetic scores with the true lengths."""
    profile: str = "llama-3-8b@a100-80g"
    """MODEL@GPU: step times and KV memory."""
    max_num_seqs: int = 256
    """Requests that may run at once."""
    max_tokens: int = 2048
    """Token budget of a step."""
    classes: dict[str, dict[str, float]] = field(default_factory=dict)
    """User classes drawn at random, as {"paying": {"share": 0.05, "tbt_s": 0.1}, "free": {"share":
    0.95, "tbt_s": 0.5}}: shares sum to 1; tbt_s, the target between tokens, may be left out. None:
    the trace's columns user_class and tbt_s."""
    engine: Literal["plain", "vllm"] = "plain"
    """plain: a step is planned when the one before has ended, as in the papers. vllm: two defaults
    of vLLM V1 on top, planning one step ahead and a preempted request keeping what is left of its
    KV; not modelled are prefixes shared between requests. vllm runs in plain Python only."""
    kv_blocks: int | None = None
    """KV memory in blocks of 16 tokens; none: what the profile's GPU leaves."""
    host_gb_per_s: float | None = None
    """Host memory for evicted KV: what its link carries, GB/s (50: PCIe 5 x16); none: what is
    evicted is computed anew. Policies use it that have "offload": true in their settings."""
    host_blocks: int | None = None
    """KV blocks that the host holds; none: any number."""
    seed: int = 0
    """Of arrivals, synthetic lengths and synthetic scores."""
    mlruns_dir: Path | None = Path("mlruns")
    """MLflow store that gets a run of what --out keeps, where mlflow is installed (it takes 3 CPU
    seconds); null: none."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def __post_init__(self) -> None:
        if self.num_requests < 1:
            raise ConfigError(f"num_requests is {self.num_requests}; use 1 or more")
        if self.seed < 0:
            raise ConfigError(f"seed is {self.seed}; use 0 or more")
        shares = [own.get("share", 0.0) for own in self.classes.values()]
        if shares and (min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6):
            raise ConfigError(f"shares of classes are {shares}; use numbers above 0 that sum to 1")
        for name, own in self.classes.items():
            if unknown := own.keys() - {"share", "tbt_s"}:
                raise ConfigError(f"class {name!r} has {sorted(unknown)}; use share and tbt_s")
            if "tbt_s" in own and not own["tbt_s"] > 0:
                raise ConfigError(
                    f"tbt_s of class {name!r} is {own['tbt_s']}; use seconds above 0, or leave it "
                    "out for no target"
                )
        if self.host_gb_per_s is None and self.host_blocks is not None:
            raise ConfigError(f"host_blocks is {self.host_blocks}; give host_gb_per_s as well")
        if self.host_gb_per_s is not None and not 0 < self.host_gb_per_s < np.inf:
            raise ConfigError(f"host_gb_per_s is {self.host_gb_per_s}; use GB/s above 0")
        if self.host_gb_per_s is not None and self.engine != "plain":
            raise ConfigError(
                f"host_gb_per_s is {self.host_gb_per_s}; only the plain engine has host memory"
            )
        if self.scores not in (None, *SCORES) and not self.scores_prompts:
            raise ConfigError(
                f"scores is {self.scores!r}; use one of {', '.join(SCORES)}, bundle:PATH or "
                "service:HOST:PORT"
            )
        if self.trace is None and (self.scores_prompts or self.scores == "trace"):
            raise ConfigError(f"scores is {self.scores!r} but there is no trace; add --trace FILE")

    def need_rate(self, has_rate: bool) -> None:
        """Refuse a process of arrivals that nothing would follow.

        Raises:
            ConfigError: there is one, and no rate.
        """
        if self.arrivals != "poisson" and not has_rate:
            raise ConfigError(
                f"arrivals is {self.arrivals!r}, but no arrivals have a rate here; add "
                "--rate_per_s, or leave arrivals out"
            )

    @property
    def scores_prompts(self) -> bool:
        """Whether the prompts of the trace are scored when it is read."""
        return self.scores is not None and self.scores.startswith(("bundle:", "service:"))


def check_folder(path: Path | None) -> None:
    """Refuse a folder that is something else already.

    Raises:
        ConfigError: it is.
    """
    if path is not None and path.exists() and not path.is_dir():
        raise ConfigError(f"out is {path}, which is no folder; use another place")


def conditions(setup: Setup, arrivals: str, num_requests: int) -> str:
    """Model, hardware, trace, rate, number of requests and seed: what a caption has to say."""
    memory = "" if setup.kv_blocks is None else f", {setup.kv_blocks:,} KV blocks"
    if setup.host_gb_per_s is not None:
        memory += f", host link of {setup.host_gb_per_s:g} GB/s"
    classes = "".join(
        f", {own['share']:.0%} {name}" + (f" (TBT <= {own['tbt_s']:g} s)" if "tbt_s" in own else "")
        for name, own in setup.classes.items()
    )
    return (
        f"{setup.profile}, {setup.engine} engine, {setup.max_num_seqs} seats, "
        f"{setup.max_tokens} tokens a step{memory}; "
        f"{'log-normal mix' if setup.trace is None else setup.trace.name}, "
        f"{num_requests:,} requests{classes}, {arrivals}; "
        f"scores: {_scores_text(setup)}; seed {setup.seed}"
    )


def _scores_text(setup: Setup) -> str:
    if setup.scores == "synthetic":
        return f"synthetic (tau_b {setup.tau_b:g})"
    return "the trace's own" if setup.scores == "trace" else str(setup.scores)


def arrivals_text(setup: Setup, rate_per_s: float | None, requests: Requests) -> str:
    """How `requests` arrive, for a caption."""
    if rate_per_s is None:
        return "at the trace's times" if requests.arrival_s.any() else "all at 0 s"
    return f"{process_text(setup)} at {rate_per_s:g}/s"


def process_text(setup: Setup) -> str:
    """The arrival process, for a caption."""
    cv = f" (CV {setup.cv:g})" if setup.arrivals == "gamma" else ""
    return f"{setup.arrivals.capitalize()} arrivals{cv}"


def as_params(setup: Setup) -> dict[str, Any]:
    """The settings, for the record of a run."""
    return {setting.name: getattr(setup, setting.name) for setting in fields(setup)}


def check_place(path: Path | None, *suffixes: str) -> None:
    """Refuse a file that cannot be written before hours are spent on what it is to hold.

    Raises:
        ConfigError: another suffix, or no such folder.
    """
    if path is None:
        return
    if path.suffix not in suffixes:
        raise ConfigError(f"{path} has no known format; use {' or '.join(suffixes)}")
    if not path.parent.is_dir() or path.is_dir():
        raise ConfigError(f"{path} cannot be written: no such folder; make {path.parent} first")


def make_instance(setup: Setup) -> Instance:
    """The profile's instance with the limits of the setup."""
    instance = Instance.preset(
        setup.profile, max_num_seqs=setup.max_num_seqs, max_tokens=setup.max_tokens
    )
    if setup.kv_blocks is not None:
        instance = replace(instance, kv_blocks=setup.kv_blocks)
    if setup.host_gb_per_s is not None:
        host = HostLink.of_model(
            setup.profile.partition("@")[0],
            bytes_per_s=setup.host_gb_per_s * 1e9,
            max_blocks=setup.host_blocks,
        )
        instance = replace(instance, host=host)
    return instance


def check_memory(requests: Requests, instance: Instance) -> None:
    """Refuse an instance that holds not one of the requests; those of some are said.

    Raises:
        ConfigError: it holds none.
    """
    num_rejected = int(instance.cannot_hold(requests.prompt_tokens, requests.output_tokens).sum())
    need = f"need more than {instance.kv_blocks:,} KV blocks of {instance.block_tokens} tokens"
    if num_rejected == len(requests):
        raise ConfigError(f"all {num_rejected:,} requests {need}; use more kv_blocks")
    if num_rejected:
        log.warning("%d of %d requests %s: rejected", num_rejected, len(requests), need)


def load_requests(setup: Setup) -> Requests:
    """The requests of the trace, or synthetic ones, with the arrivals that were asked for."""
    if setup.trace is not None:
        scorer = open_prompt_scorer(setup.scores) if setup.scores and setup.scores_prompts else None
        requests = read_trace(setup.trace, limit=setup.num_requests, scorer=scorer)
        if setup.scores == "trace" and np.isnan(requests.score).all():
            raise DataError(
                "has no scores in a column 'score'; use other --scores", path=setup.trace
            )
    else:
        requests = synthetic_requests(setup.num_requests, seed=setup.seed)
    if setup.classes:
        requests = with_classes(requests, setup)
    if setup.rate_per_s is None:
        return requests
    return replace(requests, arrival_s=arrivals_s(setup, len(requests), setup.rate_per_s))


def with_classes(requests: Requests, setup: Setup) -> Requests:
    """The requests with user classes drawn by their shares, and the targets of their classes."""
    names = list(setup.classes)
    shares = [own["share"] for own in setup.classes.values()]
    targets_s = np.array([own.get("tbt_s", np.nan) for own in setup.classes.values()])
    random = np.random.default_rng((setup.seed, CLASS_STREAM))
    drawn = random.choice(len(names), len(requests), p=np.array(shares) / sum(shares))
    return replace(requests, user_class=np.array(names)[drawn], tbt_s=targets_s[drawn])


def arrivals_s(setup: Setup, count: int, rate_per_s: float) -> np.ndarray:
    """Arrival times (count,) of the setup's process."""
    if setup.arrivals == "gamma":
        return gamma_arrivals_s(count, rate_per_s=rate_per_s, cv=setup.cv, seed=setup.seed)
    if setup.arrivals == "shock":
        return shock_arrivals_s(count, rate_per_s=rate_per_s, factor=5.0, seed=setup.seed)
    return poisson_arrivals_s(count, rate_per_s=rate_per_s, seed=setup.seed)


def synthetic_requests(count: int, *, seed: int) -> Requests:
    """Log-normal lengths like those of a chat service: medians 200 prompt and 160 output tokens."""
    random = np.random.default_rng((seed, LENGTH_STREAM))
    return make_requests(
        prompt_tokens=np.clip(random.lognormal(np.log(200), 1.0, count), 1, 4096).astype(np.int64),
        output_tokens=np.clip(random.lognormal(np.log(160), 1.0, count), 1, 4096).astype(np.int64),
    )


Settings = Mapping[str, Mapping[str, Any]]
"""What policies take, by name. A name may be made up: "policy" then says whose settings they are,
as in {"pars-patient": {"policy": "pars", "starve_after_s": 600}}."""


def policy_of(name: str, settings: Settings) -> str:
    """The policy behind a name."""
    return str(settings.get(name, {}).get("policy", name))


def make_policy(name: str, settings: Settings) -> Policy:
    """A fresh policy: one may remember how far its cycle is.

    Raises:
        ConfigError: no such policy, or it does not take these settings.
    """
    own = {key: value for key, value in settings.get(name, {}).items() if key != "policy"}
    return load_policy(policy_of(name, settings), **own)


def check_policies(names: Sequence[str], settings: Settings) -> None:
    """Refuse what would fail, or be overwritten, after the first runs.

    Raises:
        ConfigError: no policies, one twice, one that cannot be made, or settings for none of them.
    """
    if not names:
        raise ConfigError("policies is empty; name at least one")
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"policies names {name!r} twice; give one another name with a settings entry "
                "that holds its 'policy'"
            )
        make_policy(name, settings)
    for name in settings:
        if name not in names:
            raise ConfigError(
                f"settings are for {name!r}, which is not in policies; use {', '.join(names)}"
            )


def score_source(setup: Setup, requests: Requests) -> str:
    """Where scores come from: what was asked for, else the trace's own, else synthetic ones."""
    if setup.scores is not None:
        return setup.scores
    return "synthetic" if np.isnan(requests.score).all() else "trace"


def with_scores(
    requests: Requests, policy: str, setup: Setup, settings: Settings | None = None
) -> Requests:
    """The requests with the scores that were asked for; the oracle's are the true lengths."""
    makers: dict[str, Callable[[], np.ndarray]] = {
        "oracle": lambda: OracleScores().scores(requests),
        "synthetic": lambda: SyntheticScores(tau_b=setup.tau_b, seed=setup.seed).scores(requests),
        "constant": lambda: ConstantScores().scores(requests),
    }
    is_oracle = policy_of(policy, settings or {}) == "oracle"
    make_scores = makers.get("oracle" if is_oracle else score_source(setup, requests))
    return requests if make_scores is None else requests.with_scores(make_scores())
