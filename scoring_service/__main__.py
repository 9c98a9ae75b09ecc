"""`python -m scoring_service COMMAND`: a ranker served over gRPC."""

import sys
from functools import partial
from typing import Final

from lengthwise.command_line.logs import configure_logs
from lengthwise.command_line.program import Program

PROGRAM: Final = Program(
    module="scoring_service",
    title="Scores",
    about="Predict the length order of LLM responses: serve a trained ranker over gRPC.",
    examples="""\
serve --bundle mlruns/demo/bundle --address 127.0.0.1:50051
score --target 127.0.0.1:50051 "Say hello." "Write a long essay."
loadtest --target 127.0.0.1:50051 --rate 200 --seconds 10""",
    commands={
        "serve": ("serve:serve", "serve a ranker over gRPC"),
        "score": ("score:score", "score prompts with a running service"),
        "loadtest": ("loadtest:loadtest", "load a running service at a fixed rate"),
    },
    extra="serve",
    moved={"bench": "benchmarks service"},
    prepare=partial(configure_logs, "text"),
)
main: Final = PROGRAM.run

if __name__ == "__main__":
    sys.exit(main())
