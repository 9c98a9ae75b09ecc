"""`python -m scheduler_adapters COMMAND`: schedulers of LLM requests, simulated or served."""

import sys
from typing import Final

from lengthwise.command_line.program import Commands, Program

_PLACES: Final = {
    "demo": ("demo:demo", "a trained ranker, served, orders the queues of the simulator and vLLM"),
    "play": (
        "play:play",
        "a trained ranker, vLLM with its scores, and MLflow, on loopback until Ctrl-C",
    ),
    "models": (
        "models:run",
        "latency presets: where they come from, and their error against measurements",
    ),
    "simulate": ("simulate:run", "one policy on one trace: the table of latencies"),
    "compare": (
        "compare:run",
        "several policies on the same requests: table, report with figures, CSV",
    ),
    "capacity": (
        "capacity:run",
        "the highest arrival rate, or number of clients, that meets latency targets",
    ),
    "advise": (
        "advise.command:run",
        "from a log of requests to the decision whether ordering by length would help",
    ),
    "reproduce": (
        "reproduce:run",
        "a paper's headline figures beside ours: pars, slai, rad, pascal, phasor",
    ),
    "check-golden": (
        "benchmarks.check_golden:run",
        "differences to the golden runs of another simulator, at most 1e-9 s",
    ),
    "bench": ("benchmarks.simulator:run", "requests per CPU second, and memory"),
    "validate": ("validate:validate", "latencies of one trace, served by vLLM and simulated"),
    "bench-engine": (
        "benchmarks.engine:bench",
        "CPU time of our scheduler inside vLLM, beside the stock one",
    ),
    "bench-transformers": (
        "benchmarks.transformers_burst:burst",
        "a burst through transformers' continuous batching under several schedulers, on a GPU",
    ),
    "profile-prefill": (
        "profile_prefill:profile",
        "prefill latency of a model on this machine, by prompt length and batch",
    ),
    "serve-vllm": (
        "serve_vllm:main",
        "vLLM's OpenAI server with one of our schedulers, and scores for its clients",
    ),
}
COMMANDS: Final[Commands] = {
    name: (f"scheduler_adapters.{'' if 'benchmarks.' in place else 'commands.'}{place}", text)
    for name, (place, text) in _PLACES.items()
}
_ABOUT: Final = """usage: python -m scheduler_adapters COMMAND [--help] ...

Schedule LLM requests by predicted length: try policies in virtual time, or run them in an engine.

commands:
{commands}

examples:
  python -m scheduler_adapters simulate --trace requests.parquet --policy pars --json
  python -m scheduler_adapters compare --policies '[fcfs, pars, slai]' --rates-per-s '[8, 12, 16]'
  python -m scheduler_adapters capacity --policies '[fcfs, pars]' --slo '{"ttft_s.p90": 1}'

`COMMAND --help` lists the common settings of a command, `--help-all` all, with units and defaults.
"""


PROGRAM: Final = Program(
    module="scheduler_adapters",
    title="Schedulers",
    about=_ABOUT,
    commands=COMMANDS,
    extra="simulate",
    extras={
        "serve-vllm": "vllm",
        "play": "vllm",
        "bench-engine": "vllm",
        "bench-transformers": "transformers",
    },
    names={"bench": "bench-simulator", "serve-vllm": "vllm"},
)
main: Final = PROGRAM.run

if __name__ == "__main__":
    sys.exit(main())
