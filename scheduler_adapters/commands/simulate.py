"""`simulate`: one policy on one trace and one instance, in virtual time."""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scheduler_adapters.commands.setup import Setup, check_place
from scheduler_adapters.policy import load_policy
from scheduler_adapters.progress import Progress
from scheduler_adapters.simulator.observers import progress_lines
from scheduler_adapters.simulator.simulate import Interrupted, simulate
from scheduler_adapters.timeline.chrome_trace import write_chrome_trace
from scheduler_adapters.timeline.metrics import Summary, summarize
from scheduler_adapters.timeline.timeline import Timeline, write_timeline
from scoring_service.command_line import INTERRUPTED
from scoring_service.errors import ConfigError
from scoring_service.strict_json import to_json


@dataclass(frozen=True, kw_only=True)
class SimulateConfig(Setup):
    """What to simulate."""

    policy: str = "pars"
    """Name of a policy or import path package.module:callable. Names: fcfs, pars, pointwise,
    listwise, oracle, sarathi, vllm-prefill-first, orca, request-level, slai, rad, rad-twin,
    round-robin, pascal."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What the policy takes, e.g. {"starve_after_s": null}."""
    out: Path | None = None
    """Write every request with its token times to this .parquet or .jsonl file."""
    clients: int | None = None
    """Closed loop: this many requests in flight, each replaced when it finishes."""
    chrome_trace: Path | None = None
    """Write the phases of every request to this .json file, for ui.perfetto.dev."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.need_rate(self.rate_per_s is not None and self.clients is None)
        if self.rate_per_s is not None and self.clients is not None:
            raise ConfigError(
                f"rate_per_s is {self.rate_per_s} and clients {self.clients}; use one of them: "
                "clients send a request when one is answered"
            )
        check_place(self.out, ".parquet", ".jsonl")
        check_place(self.chrome_trace, ".json")


def run(config: SimulateConfig) -> int:
    """Simulate one policy on one instance in virtual time; prints the table of latencies.

    Examples:
      python -m scheduler_adapters simulate --policy pars --num-requests 2000
      python -m scheduler_adapters simulate --trace trace.csv --policy fcfs --rate-per-s 4 --json
      python -m scheduler_adapters simulate --trace test.parquet --scores bundle:run/bundle

    A trace needs a column of prompt tokens and one of output tokens; arrival_s (seconds) and score
    (higher = longer) are used where they exist. With scores of a bundle or a service it needs
    a column prompt, and prompt tokens are counted where they are missing.

    Interrupted with Ctrl-C, what has happened so far is written and shown; exit code 130.
    """
    policy = load_policy(config.policy, **config.settings)
    config, requests = config.loaded()
    if config.policy == "oracle":
        config = replace(config, scores="oracle")
    requests = config.scored(requests)
    is_whole = True
    with Progress(1) as progress:
        progress.begin(config.policy)
        try:
            timeline = simulate(
                requests,
                policy,
                config.instance(),
                kind=config.engine,
                clients=config.clients,
                observers=progress_lines(progress, requests),
            )
            progress.step(config.policy)
        except Interrupted as stopped:
            timeline, is_whole = stopped.timeline, False
    files = _write(config, timeline)
    summary = summarize(timeline)
    if config.json:
        print(to_json({"policy": config.policy, "scores": config.scores, **summary.to_dict()}))
    else:
        print(format_summary(config.policy, summary))
        arrivals = config.arrivals_text(config.rate_per_s, requests)
        if config.clients is not None:
            arrivals = f"closed loop of {config.clients} clients"
        print(config.conditions(arrivals, len(requests)))
    if not is_whole:
        left_out = summary.num_unfinished
        print(f"interrupted: {left_out} requests are left out of E2E", file=sys.stderr)
        return INTERRUPTED
    config.log(f"simulate {config.policy}", summary.flat(), files)
    return 0


def _write(config: SimulateConfig, timeline: Timeline) -> list[Path]:
    """Write what was asked for; returns the files."""
    writers = ((config.out, write_timeline), (config.chrome_trace, write_chrome_trace))
    for path, write in writers:
        if path is not None:
            write(timeline, path)
    return [path for path, _ in writers if path is not None]


def format_summary(name: str, summary: Summary) -> str:
    """Return the summary as a table for a terminal."""
    lines = [
        f"{name}: {summary.num_finished} of {summary.num_requests} requests finished, "
        f"{summary.num_rejected} rejected, {summary.num_unscored} without a score, "
        f"{summary.num_preemptions} preemptions, "
        f"{summary.output_tokens_per_s:.0f} output tokens/s over {summary.makespan_s:.1f} s",
        f"{'':24}{'mean':>10}{'p50':>10}{'p90':>10}{'p99':>10}",
    ]
    for key, value in summary.to_dict().items():
        if isinstance(value, dict):
            _, *numbers = value.values()
            lines.append(f"{key:24}" + "".join(f"{number:10.4f}" for number in numbers))
    return "\n".join(lines)
