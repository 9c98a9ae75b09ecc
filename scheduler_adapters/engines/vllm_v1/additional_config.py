"""Our part of vLLM's `additional_config`: policy, settings, shares, ranker, end of thinking.

    {"lengthwise": {"policy": "pars", "bundle": "run/bundle", "starve_after_s": 60}}

`"shares": {"paying": 3}` gives clients shares, and classes these weights; `"think_end": [128014]`
ends thinking. `BundleSettings` has the settings of a ranker in the engine. All of them are carried
to the engine process. Imports no engine.
"""

from collections.abc import Mapping
from typing import Any, Final

from lengthwise.errors import ConfigError, require
from scheduler_adapters.engines.bundle_scoring import OWN, BundleSettings
from scheduler_adapters.policies.fair_shares import load_shared
from scheduler_adapters.policy import POLICIES, Policy

SETTINGS: Final = "lengthwise"
_OURS: Final = OWN | {"policy", "think_end"}


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
    return load_shared(named, **{k: v for k, v in settings.items() if k not in _OURS})


def configured_bundle(additional_config: Any) -> BundleSettings | None:
    """Return the settings of a ranker in the engine; None without a bundle.

    Raises ConfigError: one of them is of a wrong form, or stands without a bundle.
    """
    settings = _settings(additional_config)
    own = {name: settings[name] for name in OWN & settings.keys()}
    is_right = not own or own.get("bundle") is not None
    require("bundle", repr(own.get("bundle")), is_right, "a bundle's folder")
    return BundleSettings(**own) if own else None


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
