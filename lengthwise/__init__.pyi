# What `__init__.py` imports at the first use, for type checkers.
from lengthwise.agreement import tau_b as tau_b
from lengthwise.bundle import ModelBundle as ModelBundle
from lengthwise.errors import BundleError as BundleError
from lengthwise.errors import ConfigError as ConfigError
from lengthwise.errors import DataError as DataError
from lengthwise.errors import LengthwiseError as LengthwiseError
from lengthwise.errors import SchedulingError as SchedulingError
from lengthwise.errors import ScoringError as ScoringError
from lengthwise.tables.reading import read_table as read_table
from scoring_service.client import FailOpenScorer as FailOpenScorer
from scoring_service.client import ScoringClient as ScoringClient
from scoring_service.ranker.model import RankerModel as RankerModel
