"""A simulated instance as settings: a preset, and limits that replace its own."""

import logging
from typing import Any, Literal

from lengthwise.errors import ConfigError
from lengthwise.settings import PositiveFinite, settings
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.links import HostLink
from scheduler_adapters.workload.requests import Requests

log = logging.getLogger(__name__)


@settings
class InstanceConfig:
    """One engine replica, and the engine whose step rules it follows."""

    profile: str = "llama-3-8b@a100-80g"
    """MODEL@GPU: step times and KV memory."""
    max_num_seqs: int = 256
    """Requests that may run at once."""
    max_tokens: int = 2048
    """Token budget of a step."""
    engine: Literal["plain", "vllm"] = "plain"
    """plain: a step is planned when the one before has ended, as in the papers. vllm: with two
    defaults of vLLM V1, async scheduling and prefix caching of preempted requests, in plain Python
    only. Of prefixes shared between requests only a trace's cached_tokens count."""
    kv_blocks: int | None = None
    """KV memory in blocks of 16 tokens; none: the free memory of the profile's GPU. 1000000000 is
    memory without a limit: what a limit costs. Raise max_num_seqs, too."""
    host_gb_per_s: PositiveFinite | None = None
    """Bandwidth to host memory for evicted KV, GB/s (50: PCIe 5 x16); none: evicted KV is computed
    again. Only policies with "offload": true in their settings use it."""

    def __post_init__(self) -> None:
        if (gb_per_s := self.host_gb_per_s) is not None and self.engine != "plain":
            raise ConfigError(f"host_gb_per_s is {gb_per_s}; only the plain engine has host memory")

    def instance(self) -> Instance:
        """Return the profile's instance with these limits.

        Raises:
            ConfigError: no such profile, or a limit that cannot be.
        """
        limits: dict[str, Any] = {"max_num_seqs": self.max_num_seqs, "max_tokens": self.max_tokens}
        if self.kv_blocks is not None:
            limits["kv_blocks"] = self.kv_blocks
        if self.host_gb_per_s is not None:
            model = self.profile.partition("@")[0]
            limits["host"] = HostLink.of_model(model, bytes_per_s=self.host_gb_per_s * 1e9)
        return Instance.preset(self.profile, **limits)


def check_memory(requests: Requests, instance: Instance) -> None:
    """Check that at least one request fits into an instance; log the number of the others.

    Raises:
        ConfigError: none fits.
    """
    num_rejected = int(instance.cannot_hold(requests.prompt_tokens, requests.output_tokens).sum())
    need = f"need more than {instance.kv_blocks:,} KV blocks of {instance.block_tokens} tokens"
    if num_rejected == len(requests):
        raise ConfigError(f"all {num_rejected:,} requests {need}; use more kv_blocks")
    if num_rejected:
        log.warning("%d of %d requests %s: rejected", num_rejected, len(requests), need)
