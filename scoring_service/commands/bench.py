"""`bench`: the service beside the bare model and other services."""

from lengthwise.strict_json import to_json
from scoring_service.bench.measures import BenchConfig
from scoring_service.bench.run import format_table, run_bench


def bench(config: BenchConfig) -> None:
    """Measure the service beside the bare model and any other service.

    Starts everything it needs, lets the peers take turns and compares CPU times; about 3 minutes.

    Example:
      python -m scoring_service bench --bundle mlruns/demo/bundle --json
    """
    result = run_bench(config)
    print(to_json(result) if config.json else format_table(result))
