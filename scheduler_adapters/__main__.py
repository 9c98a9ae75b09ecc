"""`python -m scheduler_adapters COMMAND`: what schedulers do to requests, simulated or served."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

COMMANDS = {
    "demo": (
        "scheduler_adapters.commands.demo",
        "a trained ranker, served, orders the queues of the simulator and of vLLM",
    ),
    "models": (
        "scheduler_adapters.commands.models",
        "latency presets: where they come from, and their error against measurements",
    ),
    "simulate": (
        "scheduler_adapters.commands.simulate",
        "one policy on one trace: the table of latencies",
    ),
    "compare": (
        "scheduler_adapters.commands.compare",
        "several policies on the same requests: table, report with figures, CSV",
    ),
    "capacity": (
        "scheduler_adapters.commands.capacity",
        "the highest arrival rate, or number of clients, that meets latency targets",
    ),
    "reproduce": (
        "scheduler_adapters.commands.reproduce.command",
        "a paper's headline figures beside ours: pars, slai, rad",
    ),
    "check-golden": (
        "scheduler_adapters.commands.check_golden",
        "equal to the golden runs of another simulator, to 1e-9 s?",
    ),
    "bench": (
        "scheduler_adapters.commands.bench.simulator",
        "requests per CPU second, and memory",
    ),
    "validate": (
        "scheduler_adapters.commands.validate",
        "one trace served by vLLM and simulated: how far apart are the latencies?",
    ),
    "bench-engine": (
        "scheduler_adapters.commands.bench.engine",
        "what our scheduler costs inside vLLM, beside the stock one",
    ),
    "bench-transformers": (
        "scheduler_adapters.commands.bench.transformers_burst",
        "a burst through transformers' continuous batching under several schedulers, on a GPU",
    ),
    "profile-prefill": (
        "scheduler_adapters.commands.profile_prefill",
        "prefill latency of a model on this machine, by prompt length and batch",
    ),
    "serve-vllm": (
        "scheduler_adapters.commands.serve_vllm",
        "vLLM's OpenAI server with one of our schedulers, and scores for its clients",
    ),
}
"""Name -> module with `main(arguments) -> exit code`, and what it does."""

_HELP = """usage: python -m scheduler_adapters COMMAND [--help] ...

Schedule LLM requests by predicted length: try policies in virtual time, or run them in an engine.

commands:
{commands}

examples:
  python -m scheduler_adapters simulate --trace requests.parquet --policy pars --json
  python -m scheduler_adapters compare --policies '[fcfs, pars, slai]' --rates_per_s '[8, 12, 16]'
  python -m scheduler_adapters capacity --policies '[fcfs, pars]' --slo '{{"ttft_s.p90": 1}}'

`COMMAND --help` lists the settings of a command with their units and defaults.
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command that the first argument names. Returns the exit code: 2 for bad input."""
    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, COMMANDS))
        lines = [f"  {name:<{width}}  {what}" for name, (_, what) in COMMANDS.items()]
        print(_HELP.format(commands="\n".join(lines)))
        return 0 if arguments else 2
    if arguments[0] not in COMMANDS:
        known = ", ".join(COMMANDS)
        print(f"error: no command named {arguments[0]!r}; use one of {known}", file=sys.stderr)
        return 2
    module_name, _ = COMMANDS[arguments[0]]
    return int(importlib.import_module(module_name).main(arguments[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
