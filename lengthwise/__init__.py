"""Lengthwise: order LLM requests by the predicted length of their responses.

Names to import from here; each module is imported at the first use of its name. Scores are higher
for longer responses.

    bundle = lengthwise.ModelBundle.load("mlruns/demo/bundle")         # a verified ranker on disk
    model = lengthwise.RankerModel.load(bundle)                        # the ranker in this process
    scores = model.score_texts(["Say hello.", "Write a long essay."])
    client = lengthwise.ScoringClient("127.0.0.1:50051")               # a running service
    score = client.score("Say hello.").value                           # or a ScoringError
    scorer = lengthwise.FailOpenScorer("127.0.0.1:50051")              # the same for a hot path
    score = scorer.score("Say hello.")                                 # or None
    rows = lengthwise.read_table("gateway.jsonl.zst")                  # a log or table as a frame
    tau = lengthwise.tau_b(scores, rows.output_tokens[:2])             # Kendall's tau-b

Every error is a `LengthwiseError`; `errors.py` has the whole tree:

    except lengthwise.ConfigError        # a setting is wrong
    except lengthwise.DataError          # a record, table or log breaks its schema
    except lengthwise.BundleError        # a bundle is missing or damaged
    except lengthwise.ScoringError       # a score is not available; ScoringTimeout is one case
    except lengthwise.SchedulingError    # a policy and an engine do not fit

`training` and `scheduler_adapters` stand on this package and meet in its files. Start with
`bundle.py`, then `errors.py`.
"""

from importlib import import_module
from typing import Any, Final

_PLACES: Final = {
    "lengthwise.agreement": ("tau_b",),
    "lengthwise.bundle": ("ModelBundle",),
    "lengthwise.errors": (
        *("BundleError", "ConfigError", "DataError", "LengthwiseError", "SchedulingError"),
        *("ScoringError", "ScoringTimeout"),
    ),
    "lengthwise.tables.reading": ("read_table",),
    # Packages above this one: found by name at the first use, as an entry point is.
    "scoring_service.client": ("FailOpenScorer", "ScoringClient"),
    "scoring_service.ranker.model": ("RankerModel",),
}
_MODULES: Final = {name: module for module, names in _PLACES.items() for name in names}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'lengthwise' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
