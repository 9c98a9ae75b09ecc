"""Settings of a simulated cluster that commands share: placement, instances, their roles."""

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, Final

import numpy as np

from lengthwise.errors import ConfigError, require
from lengthwise.settings import Count, PositiveFinite, settings
from scheduler_adapters.placement import PLACEMENTS, Placement, load_placement
from scheduler_adapters.placements.baselines import ShortestQueue
from scheduler_adapters.placements.freeness import PrefillCost
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.cluster import ClusterRun, simulate_cluster
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.instance_config import InstanceConfig
from scheduler_adapters.simulator.latency.facts import GPUS, facts_of
from scheduler_adapters.simulator.links import Fabric
from scheduler_adapters.simulator.simulate import LoopName, simulate
from scheduler_adapters.timeline.observer import EngineObserver
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.views import Role
from scheduler_adapters.workload.requests import Requests

CALIBRATED_TOKENS: Final = (128, 256, 512, 1024, 2048, 3072, 4096, 6144, 8192)
"""Prompt lengths of Phasor's calibration."""


def calibrated_cost(instance: Instance, model: str, gpu: str) -> PrefillCost:
    """Return the prefill cost that fits the instance's own prefills, as Phasor calibrates it."""
    tokens, peak = np.array(CALIBRATED_TOKENS), facts_of("GPU", gpu, GPUS).flops_per_s
    measured_s = [instance.prefill_s(int(count)) for count in tokens]
    (square_s, token_s), *_ = np.linalg.lstsq(np.stack([tokens**2, tokens], 1), measured_s)
    fitted = {"alpha": float(square_s * peak), "beta": float(token_s * peak)}
    return PrefillCost(**fitted, peak_flop_per_s=peak, model=model, device=gpu)


@settings
class ClusterConfig(InstanceConfig):
    """Equal instances, and the placement that chooses one of them for each request."""

    placement: str | None = None
    """Simulate a cluster: name of the placement, which chooses the instance of a request, or its
    import path package.module:callable. Names: round-robin, random, shortest-queue, least-kv,
    memory-aware, distserve, splitwise, memory-aware-pools, phasor, pascal."""
    placement_settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the placement, e.g. {"migration": "never"}."""
    instances: Count = 1
    """Equal instances of the cluster."""
    prefill_instances: int | None = None
    """Number of instances, from the first, that only prefill; the others only decode."""
    elastic_instances: int = 0
    """Number of instances, from the last, for both: phasor gives them to the pool in need."""
    fabric_gb_per_s: PositiveFinite = 12.5
    """Bandwidth of the link of each instance to the others, for KV, GB/s."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.placement_names and (self.instances > 1 or self.placement_settings):
            raise ConfigError(f"instances is {self.instances} without a placement; name one")
        pool = self.prefill_instances
        is_pool = pool is None or 1 <= pool < self.instances
        require("prefill_instances", pool, is_pool, "1 or more, and less than the instances")
        most, elastic = self.instances - 1 - (pool or self.instances), self.elastic_instances
        is_part = elastic == 0 or 1 <= elastic <= most
        require("elastic_instances", elastic, is_part, "fewer than those that do not prefill")

    @property
    def placement_names(self) -> list[str]:
        """The placements, none for a single instance."""
        return [] if self.placement is None else [self.placement]

    @property
    def cluster_text(self) -> str:
        """Instances, roles and placement, for a caption; empty for a single instance."""
        if not self.placement_names:
            return ""
        pools = "" if self.prefill_instances is None else f", {self.prefill_instances} to prefill"
        elastic = f", {self.elastic_instances} elastic" if self.elastic_instances else ""
        return f"{self.instances} instances{pools}{elastic} under {', '.join(self.placement_names)}"

    def roles(self) -> list[Role] | None:
        """Return the roles of the instances."""
        if self.prefill_instances is None:
            return None
        prefill, elastic = self.prefill_instances, self.elastic_instances
        pools: list[tuple[Role, int]] = [
            ("prefill", prefill),
            ("decode", self.instances - prefill - elastic),
            ("both", elastic),
        ]
        return [role for role, number in pools for _ in range(number)]

    def loaded_placement(self) -> Placement | None:
        """Return a fresh placement; None for a single instance.

        Raises ConfigError for one whose numbers were measured on another model or device.
        """
        if self.placement is None:
            return None
        served, settings = self.profile.partition(":")[0].partition("@")[::2], {}
        if PLACEMENTS.get(self.placement, self.placement) == PLACEMENTS["phasor"]:
            settings["cost"] = calibrated_cost(self.instance(), *served)
        placement = load_placement(self.placement, **{**settings, **self.placement_settings})
        for kind, made_for, name in zip(
            ("model", "device"), placement.made_for, served, strict=True
        ):
            if made_for not in (None, name):
                raise ConfigError(
                    f"placement {placement.name!r} was calibrated for {kind} {made_for!r}, and the "
                    f"profile is {self.profile!r}; calibrate it for {name!r}"
                )
        return placement

    def fabric(self) -> Fabric:
        """Return the network between the instances."""
        model = self.profile.partition("@")[0]
        return Fabric.of_model(model, bytes_per_s=self.fabric_gb_per_s * 1e9)

    def serve(
        self,
        requests: Requests,
        make_policy: Callable[[], Policy],
        *,
        clients: int | None = None,
        loop: LoopName = "auto",
        observers: Callable[[int], Sequence[EngineObserver]] = lambda instance: (),
        **faults: Any,
    ) -> tuple[Timeline, ClusterRun | None]:
        """Serve requests on one instance, or on the cluster; `faults` are its outages and age."""
        placement, instance = self.loaded_placement(), self.instance()
        if placement is None and clients is None:
            own: dict[str, Any] = {"loop": loop, "kind": self.engine, "observers": observers(0)}
            return simulate(requests, make_policy(), instance, **own), None
        run = simulate_cluster(
            requests,
            placement or ShortestQueue(),
            make_policy,
            [instance] * self.instances,
            fabric=None if placement is None else self.fabric(),
            roles=self.roles(),
            kind=self.engine,
            clients=clients,
            observers=observers,
            **faults,
        )
        return run.timeline, None if placement is None else run
