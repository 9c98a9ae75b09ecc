"""Run requests through vLLM in this process and record when each of their tokens came.

    python -m scheduler_adapters.engines.vllm_v1.offline --requests requests.jsonl \\
        --scheduler pars --max-num-seqs 4 --out timeline.jsonl
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict

from scheduler_adapters.engines.driver import longest_context
from scheduler_adapters.engines.engine_clock import make_clock
from scheduler_adapters.engines.vllm_v1.driver import OfflineConfig, open_driver
from scheduler_adapters.timeline.metrics import summarize
from scheduler_adapters.timeline.timeline import write_timeline
from scheduler_adapters.workload.traces import read_trace
from scoring_service.command_line import make_parser, underscored
from scoring_service.errors import LengthwiseError


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, run, report. Returns the exit code: 2 for bad input."""
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s")
    parser = make_parser("python -m scheduler_adapters.engines.vllm_v1.offline", __doc__)
    parser.add_argument(
        "--requests",
        type=str,
        required=True,
        help="File (.jsonl, .csv, .parquet) with prompt_tokens, output_tokens and, where there "
        "are any, arrival_s, score, user_class, tbt_s.",
    )
    parser.add_argument(
        "--out", type=str | None, help="Write the timeline here (.jsonl or .parquet)."
    )
    parser.add_argument("--json", dest="as_json", action="store_true", help="Print one JSON line.")
    parser.add_class_arguments(OfflineConfig, as_group=False)
    given = sys.argv[1:] if arguments is None else arguments
    values = parser.parse_args(underscored(given)).as_dict()
    path, out, as_json = (values.pop(name) for name in ("requests", "out", "as_json"))
    try:
        _report(path, out, as_json, OfflineConfig(**values))
    except LengthwiseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _report(path: str, out: str | None, as_json: bool, config: OfflineConfig) -> None:
    requests = read_trace(path)
    with open_driver(config, max_model_len=longest_context(requests)) as driver:
        run = driver.serve(requests, clock=make_clock(config.clock), seed=config.seed)
        counts = driver.hint_counts
    if out is not None:
        write_timeline(run.timeline, out)
    summary = summarize(run.timeline).to_dict()
    if as_json:
        # Equal for two schedulers exactly if neither changed what any request was answered.
        sha256 = hashlib.sha256(json.dumps(run.token_ids).encode()).hexdigest()
        about = {"scheduler": config.scheduler, "tokens_sha256": sha256}
        print(json.dumps({**about, "hints": counts and asdict(counts), **summary}))
        return
    for name in ("ttft_s", "e2e_s", "normalized_latency_s"):
        print(f"{config.scheduler:8} {name:20} mean {summary[name]['mean']:.4f}", end=" ")
        print(f"p90 {summary[name]['p90']:.4f}")


if __name__ == "__main__":
    sys.exit(main())
