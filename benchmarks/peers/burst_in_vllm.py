"""A burst in vLLM's CPU build: two rankers with free scores, and scoring inside the engine.

    python -m benchmarks burst-in-vllm SMALL LARGE TEST.parquet [COUNT]

Random Llama of 1.2 M parameters, 64 seats, one engine under all in turn. Answers have the recorded
lengths, which the scheduler does not see. Printed is the mean normalised latency by three clocks:
the wall, the process's CPU, and the number of the step. Then lone requests, with scoring in the
engine and without it in turn: the CPU that it adds up to the first token.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from scheduler_adapters.engines.bundle_scoring import BundleScoring, BundleSettings
from scheduler_adapters.engines.random_model import VOCABULARY, make_tiny_model
from scheduler_adapters.engines.vllm_v1.in_process import OfflineConfig, open_engine, scheduler_of
from scheduler_adapters.planner.request_annotations import LIMITS, SCORE
from scheduler_adapters.policy import load_policy
from scheduler_adapters.workload.score_sources import BundleScores
from tests.scheduler_adapters.engines.chat_templates import byte_tokenizer

SEATS, MOST, LONE = 64, 1500, 200


def serve(engine, prompts, lengths, scores):
    """Return the mean seconds per token by wall and CPU, and steps per token."""
    from vllm import SamplingParams

    ended, step = np.zeros((len(prompts), 3)), 0
    began = np.array([time.perf_counter(), time.process_time(), 0])
    for row, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        carried = {LIMITS: (0, 1e9)} | ({} if scores is None else {SCORE: float(scores[row])})
        params = SamplingParams(max_tokens=length, ignore_eos=True, extra_args=carried)
        engine.add_request(str(row), {"prompt_token_ids": prompt}, params)
    while engine.has_unfinished_requests():
        outputs, step = engine.step(), step + 1
        now = time.perf_counter(), time.process_time(), step
        for output in outputs:
            if output.finished:
                ended[int(output.request_id)] = now
    return ((ended - began) / np.array(lengths)[:, None]).mean(axis=0)


def lone_ms(engine, prompts):
    """Return the CPU milliseconds up to the first token without scoring, and those added by it."""
    from vllm import SamplingParams

    tracker = scheduler_of(engine).lengthwise_tracker
    holds = tracker.holds
    spent, params = np.zeros((len(prompts), 2)), SamplingParams(max_tokens=4, ignore_eos=True)
    for row, prompt in enumerate(prompts):
        for side in (0, 1) if row % 2 else (1, 0):
            tracker.holds = holds if side else None
            began_s = time.process_time()
            engine.add_request("lone", {"prompt_token_ids": prompt}, params)
            engine.step()
            spent[row, side] = time.process_time() - began_s
            while engine.has_unfinished_requests():
                engine.step()
    return 1e3 * np.median(spent[:, 0]), 1e3 * np.median(spent[:, 1] - spent[:, 0])


def main(small, large, test, count=2000):
    table = pd.read_parquet(test).head(int(count))
    texts, lengths = table["prompt"].tolist(), table["output_tokens"].tolist()
    tokenizer = byte_tokenizer(None, VOCABULARY)
    prompts = [tokenizer.encode(text)[:MOST] for text in texts]
    free = [BundleScores(each).score_prompts(texts).values for each in (small, large)]
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / "model")
        config = OfflineConfig(
            scheduler="pars", model=model, max_num_seqs=SEATS, max_num_batched_tokens=2048
        )
        with open_engine(config, max_model_len=4096, enable_prefix_caching=False) as engine:
            scheduler = scheduler_of(engine)
            runs = {
                "fcfs": ("fcfs", None, None),
                "small, free": ("pars", free[0], None),
                "large, free": ("pars", free[1], None),
                "oracle": ("pars", lengths, None),
                "small, in the engine": ("pars", None, small),
                "large, in the engine": ("pars", None, large),
            }
            for name, (policy, scores, bundle) in runs.items():
                scoring = bundle and BundleScoring(BundleSettings(bundle=bundle), tokenizer)
                scheduler._lengthwise_scoring = scoring
                scheduler.lengthwise_start(load_policy(policy))
                found = serve(engine, prompts, lengths, scores)
                counts = scheduler.lengthwise_tracker.annotation_counts
                print(f"{name:22} {found.round(4)}  {counts}", flush=True)
                if scoring:
                    print("  lone, CPU ms, and more:", lone_ms(engine, prompts[:LONE]))
                    scoring.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
