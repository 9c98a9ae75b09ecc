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
    commands={
        "serve": ("serve:serve", "serve a ranker over gRPC"),
        "score": ("score:score", "score prompts with a running service"),
    },
    extra="serve",
    prepare=partial(configure_logs, "text"),
)
main: Final = PROGRAM.run

if __name__ == "__main__":
    sys.exit(main())
