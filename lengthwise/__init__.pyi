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
from lengthwise.tables.reading import read_table as read_table
from scoring_service.client import FailOpenScorer as FailOpenScorer, ScoringClient as ScoringClient
from scoring_service.ranker.model import RankerModel as RankerModel
