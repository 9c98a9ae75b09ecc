"""Settings and captions that the commands of the simulator share."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from lengthwise.errors import ConfigError
from lengthwise.settings import settings
from scheduler_adapters.policies.fair_shares import load_shared
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.cluster.cluster_config import ClusterConfig
from scheduler_adapters.simulator.instance_config import check_memory
from scheduler_adapters.workload.requests import Requests
from scheduler_adapters.workload.workload import WorkloadConfig

log = logging.getLogger(__name__)


@settings
class Setup(ClusterConfig, WorkloadConfig):
    """Requests, scores, the instances that serve them, and the place of results."""

    json: bool = False
    """Print one JSON object instead of a table."""

    def __post_init__(self) -> None:
        super().__post_init__()
        WorkloadConfig.__post_init__(self)

    @property
    def process(self) -> str:
        """The arrival process, for a caption."""
        return "Poisson arrivals" if self.cv == 1 else f"Gamma arrivals (CV {self.cv:g})"

    def arrivals_text(self, rate_per_s: float | None, requests: Requests) -> str:
        """Arrivals of `requests`, for a caption."""
        if rate_per_s is None:
            return "at the trace's times" if requests.arrival_s.any() else "all at 0 s"
        return f"{self.process} at {rate_per_s:g}/s"

    @property
    def lengths_text(self) -> str:
        """Source of the lengths, for a caption."""
        if self.trace:
            return ", ".join(Path(name).name for name in self.trace)
        return "log-normal mix" if self.lengths == "chat" else f"lengths of {self.lengths}"

    def conditions(self, arrivals: str, num_requests: int) -> str:
        """Model, hardware, trace, rate, number of requests and seed, for a caption."""
        memory = "" if self.kv_blocks is None else f", {self.kv_blocks:,} KV blocks"
        if self.host_gb_per_s is not None:
            memory += f", host link of {self.host_gb_per_s:g} GB/s"
        classes = "".join(
            f", {own['share']:.0%} {name}"
            + (f" (TBT <= {own['tbt_s']:g} s)" if "tbt_s" in own else "")
            for name, own in self.classes.items()
        )
        scores = {"synthetic": f"synthetic (tau_b {self.tau_b:g})", "trace": "the trace's own"}
        return (
            f"{self.profile}, {self.engine} engine, {self.max_num_seqs} seats, "
            f"{self.max_tokens} tokens a step{memory}; {self.lengths_text}, "
            f"{num_requests:,} requests{classes}, {arrivals}; "
            f"scores: {scores.get(str(self.scores), self.scores)}; seed {self.seed}"
        )

    def loaded(self) -> tuple[Self, Requests]:
        """Return the requests, which fit into the instance, and settings that name their scores."""
        requests = self.load()
        check_memory(requests, self.instance())
        if len(clients := requests.clients) > 1:
            log.info("%d clients share the service", len(clients))
        return replace(self, scores=self.score_source(requests)), requests


def check_one_of(config: object, *pairs: tuple[str, str]) -> None:
    """Refuse two settings of which only one may be set."""
    for one, other in pairs:
        first, second = getattr(config, one), getattr(config, other)
        if first not in (None, []) and second not in (None, []):
            raise ConfigError(f"{one} is {first} and {other} {second}; use one of them")


def check_folder(path: Path | None) -> None:
    """Refuse an output folder that is a file."""
    if path is not None and path.exists() and not path.is_dir():
        raise ConfigError(f"out is {path}, which is no folder; use another place")


def check_place(path: Path | None, *suffixes: str) -> None:
    """Refuse a file of another format or without a folder, before the run that would fill it."""
    if path is None:
        return
    if path.suffix not in suffixes:
        raise ConfigError(f"{path} has no known format; use {' or '.join(suffixes)}")
    if not path.parent.is_dir() or path.is_dir():
        raise ConfigError(f"{path} cannot be written: no such folder; make {path.parent} first")


NamedSettings = Mapping[str, Mapping[str, Any]]
"""Settings of policies, by name. The entry of an invented name has its "policy", too:
{"pars-patient": {"policy": "pars", "starve_after_s": 600}}."""


def policy_of(name: str, settings: NamedSettings) -> str:
    """Return the policy behind a name."""
    return str(settings.get(name, {}).get("policy", name))


def load_named(name: str, settings: NamedSettings, clients: Collection[str] = ()) -> Policy:
    """Return a new policy with the settings of this name, and shares of several clients."""
    given = settings.get(name, {})
    own = {key: given[key] for key in given if key not in ("policy", "scores")}
    return load_shared(policy_of(name, settings), clients, **own)


def check_names(
    option: str, of_them: str, names: Sequence[str], settings: Mapping[str, Any]
) -> None:
    """Refuse repeated names in an option, and settings of names that are not in it."""
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"{option} names {name!r} twice; give one another name, with an entry in {of_them} "
                "that has its settings"
            )
    if unused := [name for name in settings if name not in names]:
        raise ConfigError(
            f"{of_them} are for {unused[0]!r}, which is not in {option}; use {', '.join(names)}"
        )
