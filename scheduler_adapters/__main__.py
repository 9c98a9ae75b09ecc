"""`python -m scheduler_adapters COMMAND`: schedulers of LLM requests, simulated or served."""

import sys
from typing import Final

from lengthwise.command_line.program import Program

COMMANDS: Final = {
    "demo": ("demo:demo", "a trained ranker, served, orders the queues of the simulator and vLLM"),
    "play": ("play:play", "a trained ranker, vLLM with its scores, and MLflow, on loopback"),
    "models": ("models:run", "latency presets: their origin, and their error in measurements"),
    "simulate": ("simulate:run", "one policy on one trace: the table of latencies"),
    "compare": ("compare:run", "several policies on the same requests: table, report, CSV"),
    "capacity": ("capacity:run", "the highest rate, or number of clients, that meets targets"),
    "advise": ("advise.command:run", "a log of requests: would ordering by length help?"),
    "profile-prefill": (
        "profile_prefill:profile",
        "prefill latency of a model on this machine, by prompt length and batch",
    ),
    "serve-vllm": ("serve_vllm:main", "vLLM's OpenAI server with one of our schedulers and scores"),
    "serve-ray": ("serving.serve_ray:run", "many vLLM replicas on Ray behind one endpoint"),
    "serve-picker": ("serving.serve_picker:run", "an engine for each request of an Envoy gateway"),
}
PROGRAM: Final = Program(
    module="scheduler_adapters",
    title="Schedulers",
    about="Schedule LLM requests by predicted length: in virtual time, or in an engine.",
    commands=COMMANDS,
    extra="simulate",
    extras=dict.fromkeys(("serve-vllm", "play"), "vllm")
    | {"serve-picker": "epp", "serve-ray": "ray"},
    values=dict.fromkeys(("policy", "policies"), "scheduler_adapters.policy:POLICIES")
    | {
        "placement": "scheduler_adapters.placement:PLACEMENTS",
        "gpu": "scheduler_adapters.simulator.latency.facts:GPUS",
    },
)
main: Final = PROGRAM.run

if __name__ == "__main__":
    sys.exit(main())
