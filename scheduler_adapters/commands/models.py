"""`models`: the latency presets and the sources of their step times."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from lengthwise.errors import ConfigError, DataError
from lengthwise.strict_json import to_json
from scheduler_adapters.reporting.latency_tables import text_of
from scheduler_adapters.simulator.latency.presets import SOURCES, Preset, data_of, presets


@dataclass(frozen=True, kw_only=True)
class ModelsConfig:
    """Presets to list."""

    json: bool = False
    """Print one JSON object instead of a table."""


def run(config: ModelsConfig) -> None:
    """List the latency presets, which `--profile` of other commands takes, with their sources.

    Examples:
      python -m scheduler_adapters models
      python -m scheduler_adapters models --json
    """
    rows = [list_preset(name, make) for name, make in presets().items()]
    if config.json:
        print(to_json({"models": rows}))
    else:
        print("compiled: FCFS, PARS, SLAI, round-robin and PASCAL run in compiled loops")
        for provenance, table in pd.DataFrame(rows).groupby("provenance", sort=False):
            shown = table[["name", "kv_blocks", "is_compiled", "note"]]
            print(f"\n{provenance}\n{text_of(shown.astype({'kv_blocks': 'Int64'}))}")


def list_preset(name: str, make: Preset) -> dict[str, Any]:
    """Return a preset as a row; `kv_blocks` is None and `note` the reason if it cannot be made."""
    source = SOURCES[name.partition(":")[2]]
    row = {"name": name, "provenance": source, "data": data_of(name)}
    try:
        latency, kv_blocks = make()
    except (ConfigError, DataError) as error:
        return row | {"kv_blocks": None, "is_compiled": False, "note": str(error)}
    return row | {"kv_blocks": kv_blocks, "is_compiled": latency.compiled() is not None, "note": ""}
