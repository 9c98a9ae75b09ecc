# What `__init__.py` imports at the first use, for type checkers.
from lengthwise.agreement import tau_b as tau_b
from lengthwise.bundle import ModelBundle as ModelBundle
from lengthwise.errors import (
    BundleError as BundleError,
    ConfigError as ConfigError,
    DataError as DataError,
    LengthwiseError as LengthwiseError,
    SchedulingError as SchedulingError,
    ScoringError as ScoringError,
)
from lengthwise.tables.reading import read_log as read_log
from scheduler_adapters.checks import check_policy as check_policy
from scheduler_adapters.policy import Policy as Policy, load_policy as load_policy
from scheduler_adapters.simulator.instance import Instance as Instance
from scheduler_adapters.simulator.simulate import simulate as simulate
from scheduler_adapters.timeline.latency_metrics import summarize as summarize
from scheduler_adapters.views import Rank as Rank
from scheduler_adapters.workload.requests import (
    Requests as Requests,
    make_requests as make_requests,
)
from scheduler_adapters.workload.traces import read_trace as read_trace
from scoring_service.client import FailOpenScorer as FailOpenScorer, ScoringClient as ScoringClient
from scoring_service.ranker.model import (
    RankerModel as RankerModel,
    load_bundle as load_bundle,
    score_texts as score_texts,
)

__version__: str
