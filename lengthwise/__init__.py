"""Order LLM requests by the predicted length of their responses.

These names are for users, and each module is imported at the first use of its name. Scores are
higher for longer responses. With the extra `serve`, a ranker scores in this process:

    ranker = lengthwise.load_bundle("run/bundle")             # a lengthwise.RankerModel
    scores = ranker.score_texts(["Say hello.", "Write an essay."])
    scores = lengthwise.score_texts("run/bundle", ["Say hello.", "Write an essay."])

With no extra, a bundle is verified, and a running service scores:

    manifest = lengthwise.ModelBundle.load("run/bundle").manifest

    client = lengthwise.ScoringClient("127.0.0.1:50051")
    score = client.score("Say hello.").value                  # or a ScoringError
    scorer = lengthwise.FailOpenScorer("127.0.0.1:50051")     # the same for a hot path
    score = scorer.score("Say hello.")                        # or None

With the extra `simulate`, logs are read, and schedules are simulated:

    log = lengthwise.read_log("gateway.jsonl")                # log.frame, log.left_out
    tau = lengthwise.tau_b(log.frame.prompt.str.len(), log.frame.output_tokens)
    requests = lengthwise.read_trace("gateway.jsonl")         # a lengthwise.Requests
    requests = lengthwise.make_requests(prompt_tokens=[12, 500], output_tokens=[40, 900])
    policy = lengthwise.load_policy("pars")                   # or "my_policy:MyPolicy"
    timeline = lengthwise.simulate(requests, policy, lengthwise.Instance.preset())
    p99_s = lengthwise.summarize(timeline).ttft_s.p99

A scheduler of your own derives from `lengthwise.Policy`, returns a `lengthwise.Rank`, and is tested
by `lengthwise.check_policy`. A name whose packages are not installed is an ImportError that names
the extra. `errors.py` has the tree of all other errors:

    except lengthwise.LengthwiseError:   # every one of them
    except lengthwise.ConfigError:       # a setting is wrong
    except lengthwise.DataError:         # a record, table or log breaks its schema
    except lengthwise.BundleError:       # a bundle is missing or damaged
    except lengthwise.ScoringError:      # a score is not available
    except lengthwise.SchedulingError:   # a policy and an engine do not fit
"""

from importlib import import_module
from typing import Any, Final

# Packages above this one are found by name at the first use, as an entry point is.
_PLACES: Final = {
    ("lengthwise.errors", ""): "LengthwiseError BundleError ConfigError DataError"
    " SchedulingError ScoringError",
    ("lengthwise.bundle", ""): "ModelBundle",
    ("lengthwise.agreement", ""): "tau_b",
    ("lengthwise.tables.reading", "simulate"): "read_log",
    ("scoring_service.client", ""): "FailOpenScorer ScoringClient",
    ("scoring_service.ranker.model", "serve"): "RankerModel load_bundle score_texts",
    ("scheduler_adapters.policy", ""): "Policy load_policy",
    ("scheduler_adapters.views", ""): "Rank",
    ("scheduler_adapters.checks", "simulate"): "check_policy",
    ("scheduler_adapters.workload.requests", "simulate"): "Requests make_requests",
    ("scheduler_adapters.workload.traces", "simulate"): "read_trace",
    ("scheduler_adapters.simulator.instance", "simulate"): "Instance",
    ("scheduler_adapters.simulator.simulate", "simulate"): "simulate",
    ("scheduler_adapters.timeline.latency_metrics", "simulate"): "summarize",
}
"""Module, and the extra of its packages -> its names here."""
_PLACE_OF: Final = {name: place for place, names in _PLACES.items() for name in names.split()}

__version__ = "0.1.0"
__all__ = ["__version__", *_PLACE_OF]


def __getattr__(name: str) -> Any:
    if name not in _PLACE_OF:
        raise AttributeError(f"module 'lengthwise' has no attribute {name!r}")
    module, extra = _PLACE_OF[name]
    try:
        value = globals()[name] = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        needs = f"lengthwise.{name} needs {error.name}, which is not installed"
        advice = f"pip install 'lengthwise[{extra}]'"
        raise ModuleNotFoundError(f"{needs}; {advice}", name=error.name) from None
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
