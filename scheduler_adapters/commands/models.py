"""`models`: the latency presets and the sources of their step times."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lengthwise.errors import ConfigError, DataError, require
from lengthwise.strict_json import to_json
from scheduler_adapters.simulator.latency.presets import SOURCES, Preset, presets
from scheduler_adapters.workload.data_folder import DataDir


@dataclass(frozen=True, kw_only=True)
class ModelsConfig:
    """Presets to list."""

    data_dir: Path | None = None
    """Folder of measured data; none: $LENGTHWISE_DATA."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def __post_init__(self) -> None:
        is_there = self.data_dir is None or self.data_dir.is_dir()
        require("data_dir", self.data_dir, is_there, "a folder that exists")


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """One preset."""

    name: str
    provenance: str
    data: str | None
    """File inside the data folder that is read."""
    kv_blocks: int | None = None
    """None where it cannot be made; `note` gives the reason."""
    is_compiled: bool = False
    """Whether compiled loops have its step times."""
    note: str = ""


def run(config: ModelsConfig) -> None:
    """List the latency presets, which `--profile` of other commands takes, with their sources.

    Examples:
      python -m scheduler_adapters models
      python -m scheduler_adapters models --data-dir data --json
    """
    listed = [list_preset(entry, config.data_dir) for entry in presets().values()]
    if config.json:
        print(to_json({"models": [asdict(row) for row in listed]}))
    else:
        print(format_presets(listed))


def list_preset(entry: Preset, data_dir: DataDir) -> Listed:
    """Return a preset, made where that is possible."""
    kv_blocks, is_compiled, note = None, False, ""
    try:
        latency, kv_blocks = entry.make(data_dir)
        is_compiled = latency.compiled() is not None
    except (ConfigError, DataError) as error:
        note = str(error)
    return Listed(
        name=entry.name,
        provenance=SOURCES[entry.source],
        data=entry.data,
        kv_blocks=kv_blocks,
        is_compiled=is_compiled,
        note=note,
    )


def format_presets(listed: Sequence[Listed]) -> str:
    """Return a table for a terminal, one block per source."""
    width = max(len(row.name) for row in listed)
    lines = ["compiled: FCFS, PARS, SLAI, round-robin and PASCAL run in compiled loops"]
    for provenance in SOURCES.values():
        lines += ["", provenance]
        for row in listed:
            if row.provenance == provenance:
                blocks = "-" if row.kv_blocks is None else str(row.kv_blocks)
                loop = "compiled" if row.is_compiled else "Python"
                lines.append(f"  {row.name:{width}}  {blocks:>7} KV blocks  {loop:8}  {row.note}")
    return "\n".join(line.rstrip() for line in lines)
