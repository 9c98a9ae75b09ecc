"""`models`: the latency presets, their sources and their errors against measurements."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path

from lengthwise.errors import ConfigError, DataError, require
from lengthwise.strict_json import to_json
from scheduler_adapters.simulator.latency.models import LatencyModel
from scheduler_adapters.simulator.presets import SOURCES, presets
from scheduler_adapters.simulator.simulate import EngineKind
from scheduler_adapters.validation import model_checks
from scheduler_adapters.validation.fidelity import RECORDINGS, TARGETS, Fidelity, replay
from scheduler_adapters.validation.model_checks import Check
from scheduler_adapters.workload.data_folder import DataDir

ENGINES: tuple[EngineKind, ...] = ("vllm", "plain")


@dataclass(frozen=True, kw_only=True)
class ModelsConfig:
    """The measured data that presets are compared with."""

    data_dir: Path | None = None
    """Folder of measured data; none: $LENGTHWISE_DATA. Without either, nothing is checked."""
    json: bool = False
    """Print one JSON object instead of tables."""

    def __post_init__(self) -> None:
        is_there = self.data_dir is None or self.data_dir.is_dir()
        require("data_dir", self.data_dir, is_there, "a folder that exists")


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """One preset."""

    name: str
    provenance: str
    data: str | None
    """The file or folder that it reads inside the data folder."""
    kv_blocks: int | None = None
    """None where it cannot be made; `note` says why."""
    is_compiled: bool = False
    """Whether the compiled loops have its step times; if not, runs are in plain Python."""
    checks: Sequence[Check] = ()
    note: str = ""


def run(config: ModelsConfig) -> None:
    """List the latency presets, which `--profile` of other commands takes.

    Each with the source of its step times, and their error against measurements that it was not
    made from. With measured data, 1,200 requests that real vLLM served are replayed with the
    presets of those servers; TTFT, TPOT and E2E errors are means over requests of
    |simulated - real| / real. Nothing is fitted to them.

    Examples:
      python -m scheduler_adapters models
      python -m scheduler_adapters models --data-dir data --json
    """
    fidelity, note = replay_all(config.data_dir)
    listed = list_presets(config.data_dir, fidelity)
    if config.json:
        result = {
            "models": [asdict(row) for row in listed],
            "fidelity": [{**asdict(row), "on_target": row.on_target} for row in fidelity],
            "fidelity_targets": TARGETS,
            "fidelity_note": note,
        }
        print(to_json(result))
    else:
        print(format_presets(listed))
        print()
        print(format_fidelity(fidelity, note))


def replay_all(data_dir: DataDir) -> tuple[list[Fidelity], str]:
    """Return the replays of all recordings under both step rules, or none and the reason."""
    try:
        return [
            replay(recording, data_dir, engine=engine)
            for recording in RECORDINGS
            for engine in ENGINES
        ], ""
    except (ConfigError, DataError) as error:
        return [], str(error)


def list_presets(data_dir: DataDir, fidelity: Sequence[Fidelity]) -> list[Listed]:
    """Return all presets, made where that is possible, and checked where there is data."""
    made: dict[str, LatencyModel] = {}
    listed: dict[str, Listed] = {}
    of_gpu = cache(partial(model_checks.kernel_checks, data_dir=data_dir))

    def checks(name: str) -> list[Check]:
        instance, _, source = name.partition(":")
        if source == "layers":
            return _replay_checks([row for row in fidelity if row.preset == name])
        if source == "kernels":
            return of_gpu(instance.partition("@")[2].removeprefix("2x-"))
        if source == "phases":
            return model_checks.phase_checks(instance, data_dir)
        kernels = f"{instance}:kernels"
        if kernels not in made:
            return []
        return [model_checks.step_check(made[name], made[kernels], kernels)]

    for name, entry in presets().items():
        row = Listed(name=name, provenance=SOURCES[entry.source], data=entry.data)
        try:
            made[name], kv_blocks = entry.make(data_dir)
            is_compiled = made[name].compiled() is not None
            listed[name] = replace(row, kv_blocks=kv_blocks, is_compiled=is_compiled)
        except (ConfigError, DataError) as error:
            listed[name] = replace(row, note=str(error))
    for name in made:
        with suppress(DataError):  # there are no measurements of it
            listed[name] = replace(listed[name], checks=checks(name))
    return list(listed.values())


def _replay_checks(fidelity: Sequence[Fidelity]) -> list[Check]:
    return [
        Check(
            quantity=f"{metric.upper()} ({row.engine} engine)",
            against="real vLLM 0.19",
            mape_fraction=getattr(row, metric).mape_fraction,
            num_points=row.num_requests,
        )
        for row in fidelity
        for metric in TARGETS
    ]


def format_presets(listed: Sequence[Listed]) -> str:
    """Return a table for a terminal, one block per source."""
    width = max(len(row.name) for row in listed)
    lines = [
        "",
        "mean error against measurements that the preset was not made from "
        "(steps: 18 kinds of step, against the same instance's :kernels); "
        "compiled: static policies and SLAI run in compiled loops, others in plain Python",
    ]
    for provenance in SOURCES.values():
        lines += ["", provenance]
        for row in listed:
            if row.provenance == provenance:
                blocks = "-" if row.kv_blocks is None else str(row.kv_blocks)
                loop = "compiled" if row.is_compiled else "Python"
                lines.append(
                    f"  {row.name:{width}}  {blocks:>7} KV blocks  {loop:8}  {_verdict(row)}"
                )
    return "\n".join(lines[1:])


def _verdict(row: Listed) -> str:
    if row.note:
        return row.note
    if not row.checks:
        return "no measurement to compare with"
    return "; ".join(f"{check.quantity} {check.mape_fraction:.1%}" for check in row.checks)


def format_fidelity(fidelity: Sequence[Fidelity], note: str) -> str:
    """Return the replays as a table: mean absolute error, and bias in brackets."""
    if not fidelity:
        return f"replays of real vLLM: none; {note}"
    targets = ", ".join(f"{name.upper()} <= {most:.0%}" for name, most in TARGETS.items())
    lines = [
        f"replays of real vLLM, mean error per request (bias of the mean); targets {targets}",
        f"{'preset':42}{'engine':8}{'requests':>8}" + f"{'TTFT':>17}{'TPOT':>17}{'E2E':>17}",
    ]
    for row in fidelity:
        errors = "".join(
            f"{f'{error.mape_fraction:.1%} ({error.bias_fraction:+.1%})':>17}"
            for error in (row.ttft, row.tpot, row.e2e)
        )
        met = "" if row.on_target else "  misses a target"
        lines.append(f"{row.preset:42}{row.engine:8}{row.num_requests:8}{errors}{met}")
    return "\n".join(lines)
