"""`python -m training`: train a length ranker, measure it, export it."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence

from scoring_service.errors import LengthwiseError

COMMANDS = {
    "fit": (
        "fit",
        "train a ranker by a recipe; ends in a bundle and an MLflow run",
    ),
    "evaluate": (
        "evaluate",
        "measure a bundle on any table of prompts and lengths",
    ),
    "recalibrate": (
        "recalibrate",
        "fit a bundle's lengths to another model's responses",
    ),
    "calibrate": (
        "calibrate",
        "fit a model's prefill cost to measured latencies",
    ),
    "cross-model": (
        "cross_model",
        "train on one model, test on the others: a matrix",
    ),
    "reproduce": (
        "reproduce",
        "the paper's tables on the data at hand, beside its figures",
    ),
    "list": (
        "registry:main_list",
        "show runs, registered versions and the champion",
    ),
    "compare": (
        "compare",
        "rank the same prompts by two bundles: who is better?",
    ),
    "promote": (
        "registry:main_promote",
        "let a version serve, if it beats the champion",
    ),
    "export": ("registry:main_export", "write the bundle of a run into a folder"),
    "collect": (
        "collect",
        "measure response lengths at an OpenAI-compatible endpoint",
    ),
    "monitor": (
        "monitor",
        "check a bundle against logged lengths: has it drifted?",
    ),
}

_DISK_ERRORS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EEXIST,  # a file where a folder is to be made
    errno.ENOTDIR,
    errno.EISDIR,
)

HELP = """Train rankers that order prompts by how long a model's response will be.

usage: python -m training COMMAND ...        python -m training COMMAND --help

{commands}

examples:
  python -m training fit demo --out mlruns/demo          4,000 real prompts, minutes on two cores
  python -m training fit demo --out run --loss.delta .3  any setting of a recipe can be overridden

Lengths are tokens; a score is higher for a longer response; tau_b (Kendall) is 1 for the right
order, 0 for chance. Data is looked for in --data-dir, then $LENGTHWISE_DATA, then on the Hugging
Face hub; without any of them a synthetic set takes its place, loudly.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0, 2 after an error of ours, 130 after Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, COMMANDS))
        lines = (f"  {name:{width}}  {text}" for name, (_, text) in COMMANDS.items())
        print(HELP.format(commands="\n".join(lines)), end="")
        return 0
    if arguments[0] not in COMMANDS:
        known = ", ".join(COMMANDS)
        print(f"error: no command {arguments[0]!r}; use one of {known}", file=sys.stderr)
        return 2
    # Idle OpenMP threads that spin would starve the others on a shared machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        module, _, function = COMMANDS[arguments[0]][0].partition(":")
        status: int = getattr(
            importlib.import_module(f"training.commands.{module}"), function or "main"
        )(arguments[1:])
    except LengthwiseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        place = error.filename2 or error.filename
        advice = "choose another place, or make room"
        print(f"error: {place} cannot be written ({error.strerror}); {advice}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
