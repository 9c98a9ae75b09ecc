"""Serve requests by vLLM in this process, and record their token times.

    python -m scheduler_adapters.engines.vllm_v1.offline --requests requests.jsonl \\
        --scheduler pars --max-num-seqs 4 --out timeline.jsonl
"""

import hashlib
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from lengthwise.command_line.program import run_command
from scheduler_adapters.engines.driver import longest_context
from scheduler_adapters.engines.engine_clock import make_clock
from scheduler_adapters.engines.vllm_v1.in_process import OfflineConfig, open_driver
from scheduler_adapters.timeline.latency_metrics import summarize
from scheduler_adapters.timeline.timeline import write_timeline
from scheduler_adapters.workload.workload import WorkloadConfig


@dataclass(frozen=True, kw_only=True)
class OfflineOptions:
    """The requests and the output files."""

    requests: str
    """File (.jsonl, .csv, .parquet) with prompt_tokens, output_tokens and optionally arrival_s,
    score, user_class, tbt_s, prompt."""
    num_requests: int | None = None
    """Number of requests, from the first."""
    rate_per_s: float | None = None
    """Rate of Poisson arrivals; none: as in the file, else all at once."""
    scores: str | None = None
    """Source of scores, as in `simulate`: trace, oracle, synthetic, bundle:PATH and others; none:
    the file's column."""
    out: str | None = None
    """Write the timeline here (.jsonl or .parquet)."""
    json: bool = False
    """Print one JSON line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code: 2 for bad input."""
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s")
    given = sys.argv[1:] if arguments is None else arguments
    return run_command(f"python -m {__package__}.offline", run, given, description=__doc__)


def run(options: OfflineOptions, config: OfflineConfig) -> None:
    """Serve the requests; write and print the results."""
    workload = WorkloadConfig(
        trace=(options.requests,),
        num_requests=options.num_requests or sys.maxsize,
        rate_per_s=options.rate_per_s,
        scores=options.scores,
        seed=config.seed,
    )
    requests = workload.load()
    if options.scores is not None or config.scheduler == "oracle":
        requests = workload.scored(requests, by_oracle=config.scheduler == "oracle")
    with open_driver(config, max_model_len=longest_context(requests)) as driver:
        served = driver.serve(requests, clock=make_clock(config.clock), seed=config.seed)
        counts = driver.annotation_counts
    if options.out is not None:
        write_timeline(served.timeline, options.out)
    summary = summarize(served.timeline).to_dict()
    if options.json:
        # Equal for two schedulers exactly if neither changed what any request was answered.
        sha256 = hashlib.sha256(json.dumps(served.token_ids).encode()).hexdigest()
        about = {"scheduler": config.scheduler, "tokens_sha256": sha256}
        print(json.dumps({**about, "hints": counts and asdict(counts), **summary}))
        return
    for name in ("ttft_s", "e2e_s", "normalized_latency_s"):
        print(f"{config.scheduler:8} {name:20} mean {summary[name]['mean']:.4f}", end=" ")
        print(f"p90 {summary[name]['p90']:.4f}")


if __name__ == "__main__":
    sys.exit(main())
