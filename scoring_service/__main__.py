"""`python -m scoring_service`: the table of commands."""

import sys
from typing import Final

from lengthwise.command_line.logs import configure_logs
from lengthwise.command_line.program import Commands, Program

COMMANDS: Final[Commands] = {
    "serve": ("scoring_service.commands.serve:serve", "serve a ranker over gRPC"),
    "score": ("scoring_service.commands.score:score", "score prompts with a running service"),
    "loadtest": (
        "scoring_service.commands.loadtest:loadtest",
        "load a running service at a fixed rate",
    ),
    "bench": (
        "scoring_service.commands.bench:bench",
        "measure the service beside the bare model, a naive service and MLServer",
    ),
}
_ABOUT: Final = """usage: python -m scoring_service COMMAND [--help] ...

Predict the length order of LLM responses: serve a trained ranker over gRPC.

commands:
{commands}

examples:
  python -m scoring_service serve --bundle mlruns/demo/bundle --address 127.0.0.1:50051
  python -m scoring_service score --target 127.0.0.1:50051 "Say hello." "Write a long essay."
  python -m scoring_service loadtest --target 127.0.0.1:50051 --rate 200 --seconds 10
  python -m scoring_service bench --bundle mlruns/demo/bundle
"""


PROGRAM: Final = Program(
    module="scoring_service",
    title="Scores",
    about=_ABOUT,
    commands=COMMANDS,
    extra="serve",
    names={"bench": "bench-service"},
    prepare=lambda: configure_logs("text"),
)
main: Final = PROGRAM.run

if __name__ == "__main__":
    sys.exit(main())
