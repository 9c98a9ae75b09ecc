"""Our part of vLLM's `additional_config`: the policy, its settings, and the end of thinking.

    {"lengthwise": {"policy": "pars", "starve_after_s": 60, "think_end": [128014]}}

It carries the settings to the engine process. Imports no engine.
"""

from collections.abc import Mapping
from typing import Any, Final

from lengthwise.errors import ConfigError, require
from scheduler_adapters.policy import POLICIES, Policy, load_serving_policy

SETTINGS: Final = "lengthwise"
_OURS: Final = ("policy", "think_end")


def configured_policy(additional_config: Any, name: str | None = None) -> Policy:
    """Make the policy named by `additional_config` or, as `name`, by the factory.

    Raises ConfigError: no policy or two policies are named, or a setting is not the policy's.
    """
    settings = _settings(additional_config)
    named = settings.get("policy", name)
    if named is None or (name is not None and named != name):
        raise ConfigError(
            f"additional_config[{SETTINGS!r}] names policy {named!r}, --scheduler-cls {name!r}; "
            f"name one of {', '.join(sorted(POLICIES))}, or package.module:callable, once"
        )
    return load_serving_policy(named, **{k: v for k, v in settings.items() if k not in _OURS})


def configured_think_end(additional_config: Any) -> tuple[int, ...]:
    """Return the configured token ids that end thinking; empty if there are none.

    Raises ConfigError: not a list of token ids.
    """
    ids = _settings(additional_config).get("think_end", [])
    holds = isinstance(ids, list | tuple) and all(isinstance(i, int) and i >= 0 for i in ids)
    require("think_end", repr(ids), holds, "a list of token ids, such as [128014]")
    return tuple(ids)


def _settings(additional_config: Any) -> Mapping[str, Any]:
    config = additional_config if isinstance(additional_config, Mapping) else {}
    settings: Mapping[str, Any] = config.get(SETTINGS, {})
    name = f"additional_config[{SETTINGS!r}]"
    require(name, repr(settings), isinstance(settings, Mapping), "a JSON object")
    return settings
