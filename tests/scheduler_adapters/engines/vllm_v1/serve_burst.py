"""A burst through vLLM, by one scheduler: one JSON object as the last line; a process per engine.

    python -m tests.scheduler_adapters.engines.vllm_v1.serve_burst SCHEDULER SETTINGS ENGINE

60 requests at 0 s of two classes, whose scores are their lengths, disturbed, without ties.
"""

import json
import sys
from collections import defaultdict

import numpy as np

from scheduler_adapters.engines.engine_clock import make_clock
from scheduler_adapters.engines.vllm_v1.in_process import (
    OfflineConfig,
    longest_context,
    open_driver,
)
from scheduler_adapters.workload.requests import Requests, make_requests

COUNT = 60


def burst(spread: float = 20.0) -> Requests:
    """Return the requests; scores are `spread` off in the mean."""
    random = np.random.default_rng(0)
    output_tokens = random.integers(4, 120, COUNT)
    return make_requests(
        prompt_tokens=random.integers(8, 100, COUNT),
        output_tokens=output_tokens,
        scores=output_tokens + random.normal(0, spread, COUNT),
        tbt_s=random.choice([0.01, 0.5], COUNT),
    )


def main(scheduler: str, settings: str, engine: str) -> None:
    requests = burst()
    config = OfflineConfig(
        scheduler=scheduler,
        settings=json.loads(settings),
        engine=json.loads(engine),
        max_num_seqs=4,
    )
    tokens: dict[str, list[int]] = defaultdict(list)
    with open_driver(config, max_model_len=longest_context(requests)) as driver:
        step = driver.engine.step

        def noted():
            outputs = step()
            for one in outputs:
                tokens[one.request_id] += one.outputs[0].token_ids
            return outputs

        driver.engine.step = noted
        timeline = driver.serve(requests, clock=make_clock("wall"), seed=0)
    assert np.isfinite(timeline.finished_s).all()
    assert [len(tokens[str(row)]) for row in range(COUNT)] == requests.output_tokens.tolist()
    assert (timeline.scheduled_s <= timeline.first_token_s).all()
    print(json.dumps({"scheduled_s": timeline.scheduled_s.tolist(), "tokens": tokens}))


if __name__ == "__main__":
    main(*sys.argv[1:])
