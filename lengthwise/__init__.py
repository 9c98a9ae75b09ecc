"""Order LLM requests by the predicted length of their responses.

These names are for users, and each module is imported at the first use of its name. Scores are
higher for longer responses.

    bundle = lengthwise.ModelBundle.load("mlruns/demo/bundle")      # a verified ranker on disk
    model = lengthwise.RankerModel.load(bundle)                     # the ranker in this process
    scores = model.score_texts(["Say hello.", "Write an essay."])
    client = lengthwise.ScoringClient("127.0.0.1:50051")            # a running service
    score = client.score("Say hello.").value                        # or a ScoringError
    scorer = lengthwise.FailOpenScorer("127.0.0.1:50051")           # the same for a hot path
    score = scorer.score("Say hello.")                              # or None
    rows = lengthwise.read_table("gateway.jsonl.zst")               # a log or table as a frame
    tau = lengthwise.tau_b(scores, rows.output_tokens[:2])          # Kendall's tau-b
    except lengthwise.LengthwiseError:   # every error; `errors.py` has the whole tree
    except lengthwise.ConfigError:       # a setting is wrong
    except lengthwise.DataError:         # a record, table or log breaks its schema
    except lengthwise.BundleError:       # a bundle is missing or damaged
    except lengthwise.ScoringError:      # a score is not available
    except lengthwise.SchedulingError:   # a policy and an engine do not fit

`training` and `scheduler_adapters` stand on this package and meet in its files. Start with
`bundle.py`, then `errors.py`.
"""

from importlib import import_module
from typing import Any, Final

_ERRORS: Final = (
    *("LengthwiseError", "BundleError", "ConfigError", "DataError", "SchedulingError"),
    "ScoringError",
)
_MODULES: Final = {
    **dict.fromkeys(_ERRORS, "lengthwise.errors"),
    "ModelBundle": "lengthwise.bundle",
    "read_table": "lengthwise.tables.reading",
    "tau_b": "lengthwise.agreement",
    # Packages above this one: found by name at the first use, as an entry point is.
    "FailOpenScorer": "scoring_service.client",
    "RankerModel": "scoring_service.ranker.model",
    "ScoringClient": "scoring_service.client",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'lengthwise' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
