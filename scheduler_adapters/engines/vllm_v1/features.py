"""Features of vLLM that our schedulers refuse, found in its configuration before a model is loaded.

`serve-vllm` checks the table `REFUSALS` before vLLM starts, and vLLM itself as it makes a
configuration with our scheduler, through the entry point `vllm.general_plugins`. Our scheduler
checks it again, for a vLLM whose `VLLM_PLUGINS` omits our plugin. Imports no engine.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Final, NamedTuple

from lengthwise.errors import ConfigError, LengthwiseError, UnsupportedByEngine
from scheduler_adapters.engines.vllm_v1.additional_config import (
    configured_bundle,
    configured_policy,
)
from scheduler_adapters.planner.capabilities import plans_steps, shape_of_first_step
from scheduler_adapters.planner.step_budget import limit_of
from scheduler_adapters.policy import POLICIES, Policy
from scheduler_adapters.views import StepRule

PACKAGE: Final = "scheduler_adapters.engines.vllm_v1"


class Refusal(NamedTuple):
    """A feature of vLLM that excludes some policies."""

    option: str
    """Option of vLLM's command line, or a description."""
    is_on: Callable[[Any, StepRule], bool]
    """Predicate of a `VllmConfig` and the rule of the policy's first step."""
    why: str
    instead: str = "leave it out"
    planning_only: bool = True
    """True if policies that only order the queue work with the feature."""


def _is_whole(config: Any, rule: StepRule) -> bool:
    return rule.whole_prompts or not config.scheduler_config.enable_chunked_prefill


def _has_long_prompts(config: Any, rule: StepRule) -> bool:
    scheduling = config.scheduler_config
    own = getattr(scheduling, "max_num_scheduled_tokens", None) or scheduling.max_num_batched_tokens
    return bool(config.model_config.max_model_len > min(limit_of(rule.max_tokens), own))


REFUSALS: Final[Mapping[str, Refusal]] = {
    "diffusion models": Refusal(
        "a diffusion model",
        lambda config, rule: getattr(config, "diffusion_config", None) is not None,
        "vLLM serves it by a scheduler of its own",
        "leave out --scheduler-cls",
        planning_only=False,
    ),
    "speculative decoding": Refusal(
        "--speculative-config",
        lambda config, rule: config.speculative_config is not None,
        "a step then makes several tokens of a request, and is planned for one",
    ),
    "pipeline parallelism": Refusal(
        "--pipeline-parallel-size above 1",
        lambda config, rule: config.parallel_config.pipeline_parallel_size > 1,
        "a step is then planned while the one before it runs on other requests",
        "use --tensor-parallel-size",
    ),
    "context parallelism": Refusal(
        "--decode-context-parallel-size or --prefill-context-parallel-size above 1",
        lambda config, rule: any(
            getattr(config.parallel_config, f"{kind}_context_parallel_size", 1) > 1
            for kind in ("decode", "prefill")
        ),
        "blocks are then counted per rank, and steps are planned by blocks",
        "use --tensor-parallel-size",
    ),
    "prefills on some steps only": Refusal(
        "--prefill-schedule-interval above 1",
        lambda config, rule: getattr(config.scheduler_config, "prefill_schedule_interval", 1) > 1,
        "vLLM then drops the prefills of a planned step",
    ),
    "encoder-decoder models": Refusal(
        "an encoder-decoder model",
        lambda config, rule: config.model_config.is_encoder_decoder,
        "its KV cache also holds the encoder's output, and steps are planned without",
        "use a decoder-only model",
    ),
    "encoder disaggregation": Refusal(
        "--ec-transfer-config",
        lambda config, rule: getattr(config, "ec_transfer_config", None) is not None,
        "vLLM then holds requests back that a planned step counts on",
    ),
    "whole prompts": Refusal(
        "--max-model-len above the tokens of a step",
        lambda config, rule: _is_whole(config, rule) and _has_long_prompts(config, rule),
        "a prompt may then be longer than a step, and is computed in one (by the policy, or since "
        "chunked prefill is off)",
        "lower it, or raise --max-num-batched-tokens and the policy's max_tokens",
    ),
    "chunked prefill off": Refusal(
        "--no-enable-chunked-prefill",
        lambda config, rule: (
            rule.chunk is not None and not config.scheduler_config.enable_chunked_prefill
        ),
        "the policy computes prompts in chunks",
    ),
    "limit of long prefills": Refusal(
        "--long-prefill-token-threshold",
        lambda config, rule: (
            config.scheduler_config.long_prefill_token_threshold > 0 and _is_whole(config, rule)
        ),
        "it cuts prompts that are computed in one step (by the policy, or since chunked prefill is "
        "off)",
    ),
}
"""Row of docs/vllm-features.md -> the refusal."""


def require_features(config: Any, policy: Policy) -> None:
    """Refuse a policy in a vLLM with features that exclude it.

    `config` is vLLM's `VllmConfig`. Raises UnsupportedByEngine with the reason and the remedy.
    """
    plans, rule = plans_steps(policy), shape_of_first_step(policy)
    for refusal in REFUSALS.values():
        if (plans or not refusal.planning_only) and refusal.is_on(config, rule):
            other = ", or use a policy that only orders the queue, as fcfs and pars do"
            raise UnsupportedByEngine(
                f"policy {policy.name!r} cannot be served with {refusal.option}: {refusal.why}; "
                f"{refusal.instead}{other if refusal.planning_only else ''}"
            )


def read_configuration(options: Sequence[str]) -> Any:
    """Return the `VllmConfig` that vLLM's server makes of these options, without a model.

    None for a vLLM whose server defines its options elsewhere; it will check them itself. Raises
    ConfigError: vLLM refuses the options.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs, FlexibleArgumentParser
    from vllm.usage.usage_lib import UsageContext

    for package in ("launchers", "openai"):
        with suppress(ModuleNotFoundError):
            module = import_module(f"vllm.entrypoints.{package}.cli_args")
            break
    else:
        return None
    given = module.make_arg_parser(FlexibleArgumentParser()).parse_args(options)
    try:
        arguments = AsyncEngineArgs.from_cli_args(given)
        return arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)
    except LengthwiseError:
        raise
    except Exception as error:  # of vLLM or of the source of the model
        why = " ".join(str(error).partition(" [type=")[0].split())
        raise ConfigError(
            f"vLLM refuses MODEL or its options ({why}); correct MODEL, or those behind the --"
        ) from error


def require_early() -> None:
    """Check `REFUSALS` whenever vLLM makes a configuration; called in every process of vLLM.

    Nothing but AMX changes for a vLLM without our scheduler. Further calls do nothing.
    """
    import torch
    from vllm.config import VllmConfig

    # vLLM's attention on a CPU uses AMX tiles without requesting them from Linux. The process is
    # killed if it computes before torch has requested them.
    torch.cpu._init_amx()

    made = VllmConfig.__post_init__
    if made.__module__ == __name__:
        return

    def __post_init__(self: Any, *args: Any) -> None:
        made(self, *args)
        ours = self.scheduler_config.scheduler_cls
        where = ours if isinstance(ours, str) else getattr(ours, "__module__", "")
        if self.model_config is not None and f"{where}.".startswith(f"{PACKAGE}."):
            name = str(ours).removeprefix(f"{PACKAGE}.").replace("_", "-")
            named = name if name in POLICIES else None
            require_features(self, configured_policy(self.additional_config, named))
            if (ranker := configured_bundle(self.additional_config)) is not None:
                ranker.verify()

    VllmConfig.__post_init__ = __post_init__
