"""`python -m benchmarks NAME`: the papers' rows, speed beside peers, studies, validation, soak."""

import runpy
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from lengthwise.command_line.program import Program, table_of

SCRIPTS: Final[Mapping[str, tuple[str, str]]] = {
    "gpu": ("gpu.run", "what one GPU machine measures within minutes, each figure kept"),
    "rank-alarms": ("studies.rank_alarms", "answers up to an alarm about a ranker, and false ones"),
    "ranker-cost": ("studies.ranker_cost", "order against CPU time of trained rankers"),
    "frames": ("studies.frames", "places of long tasks in frames that hide or dress them"),
    "burst-in-vllm": ("peers.burst_in_vllm", "two rankers, and scoring inside vLLM's CPU build"),
    "server-price": ("peers.server_price", "tokens per CPU second beside vLLM's own scheduler"),
    "router-speed": ("peers.router_speed", "requests per second beside Ray's own router"),
    "picker-time": ("peers.picker_time", "first token through Envoy, with the picker and without"),
    "cluster-prediction": ("peers.cluster_prediction", "a real gateway beside its simulation"),
    "vidur-speed": ("peers.vidur_speed", "Vidur beside our simulator on the golden requests"),
    "log-speed": ("peers.log_speed", "speed and memory of reading logs"),
    "vllm-own": ("peers.vllm_own.run", "vLLM's own tests under one of our schedulers"),
    "vllm-versions": ("peers.vllm_versions", "the adapter's tests under versions of vLLM"),
    "soak-service": ("soak.service", "all attacks at once on a scoring service"),
    "soak-engine": ("soak.engine", "serve-vllm with full disks, an absent scorer, and stops"),
    "soak-cluster": ("soak.cluster", "thousands of streams through gateways that are killed"),
}
"""Scripts with arguments of their own, as modules of this package."""
PROGRAM: Final = Program(
    module="benchmarks",
    title="Evidence",
    about="Measure what the documentation states: papers, peers, speed, studies, soak.\n\n"
    f"scripts:\n{table_of({name: ('', line) for name, (_, line) in SCRIPTS.items()})}",
    commands={
        "reproduce": (
            "benchmarks.papers.reproduce:run",
            "a paper's figures and ours: pars, slai, rad, pascal, phasor",
        ),
        "objectives": (
            "benchmarks.studies.objectives:main",
            "rankers by each objective, beside the figures of the PARS paper",
        ),
        "rivals": (
            "benchmarks.studies.rivals:run",
            "rules without learning beside learned orders, on four workloads",
        ),
        "validate": (
            "benchmarks.validation.validate:validate",
            "latencies of one trace, served by vLLM and simulated",
        ),
        "replay-cluster": (
            "benchmarks.validation.replay_cluster:run",
            "a record of a cluster's gateway beside the same requests, simulated",
        ),
        "simulator": ("benchmarks.speed.simulator:run", "requests per CPU second, and memory"),
        "engine-step": (
            "benchmarks.speed.engine:bench",
            "CPU time of our scheduler inside vLLM, beside the stock one",
        ),
        "routing": (
            "benchmarks.speed.routing:run",
            "time of one decision of a router, by the number of replicas",
        ),
        "service": (
            "benchmarks.speed.service:bench",
            "the scoring service beside the bare model and any other service",
        ),
    },
    extra="simulate",
    extras={"engine-step": "vllm", "validate": "vllm", "service": "serve", "objectives": "train"},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a benchmark or a script; returns the exit code, 2 for bad input."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words and words[0] in SCRIPTS:
        name = f"benchmarks.{SCRIPTS[words[0]][0]}"
        sys.argv = [name, *words[1:]]
        runpy.run_module(name, run_name="__main__", alter_sys=True)
        return 0
    return PROGRAM.run(words)


if __name__ == "__main__":
    sys.exit(main())
