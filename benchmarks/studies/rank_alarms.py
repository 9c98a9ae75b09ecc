"""Answers from a planted shift up to an alarm, and false alarms without one.

    LENGTHWISE_DATA=../shared/data python -m benchmarks rank-alarms

Vicuna's lengths by TF-IDF + ridge, trained on half of the prompts; 2,000 make the promise, the
answers are drawn from the rest. Criterion, set before: 1,000 answers up to an alarm in the median
of 50 runs, and one false alarm in 100,000 answers. The last line has the CPU time of an answer.
"""

import time

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline

from benchmarks.studies.rivals import WORKLOADS
from lengthwise.bundle import LengthCurve
from lengthwise.live.rank_quality import Answer, Promise, RankQuality
from lengthwise.tables.reading import read_table
from scheduler_adapters.workload.data_folder import data_file
from training.evaluation.calibration import calibrate
from training.evaluation.ranking_metrics import tau_b_ci

SYSTEM = "You work for a bank. Answer in one or two short sentences, in plain words. "
BEFORE, LONGEST, STEP, ALARM_FREE = 1500, 2000, 50, 100_000

if __name__ == "__main__":
    file, prompt, tokens, _ = WORKLOADS["short answers"]
    other = read_table(data_file("alpaca-davinci003/alpaca_davinci003_lengths.parquet"))
    davinci = dict(zip(other["prompt"], other["output_tokens"], strict=True))
    table = read_table(data_file(file)).drop_duplicates(prompt).sample(frac=1, random_state=0)
    text, lengths = (table.loc[table[tokens] > 0, name] for name in (prompt, tokens))
    half, true = len(text) // 2, lengths.to_numpy(float)
    ranker = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), Ridge())
    ranker.fit(text[:half], np.log(true[:half]))
    scores, held = ranker.predict(text), slice(half, half + 2000)
    curve = LengthCurve.parse("vicuna", calibrate(scores[held], true[held]))
    promise = Promise(tau_b_ci(scores[held], true[held])[0], curve, 2000)
    is_class = text.str.split().str[0].isin(["Write", "Create", "Generate"])
    shifts = {
        "system prompt": (ranker.predict(SYSTEM + text), np.ceil(10 + true / 5)),
        "lengths x4 of a class": (scores, np.where(is_class, 4 * true, true)),
        "other model": (scores, text.map(davinci).to_numpy()),
        "scores shuffled": (np.random.default_rng(0).permutation(scores), true),
        "scores inverted": (-scores, true),
        "none": (scores, true),
    }
    for name, (found, own) in shifts.items():
        took, cpu_s, rows = [], 0.0, half + 2000 + np.flatnonzero(own[half + 2000 :] > 0)
        for seed in range(10 if name == "none" else 50):
            random, quality = np.random.default_rng(seed), RankQuality(promise)
            end = ALARM_FREE if name == "none" else BEFORE + LONGEST
            while quality.num_seen < end and max(quality.alarms.values(), default=0) <= BEFORE:
                is_shifted, drawn = quality.num_seen >= BEFORE, random.choice(rows, STEP)
                columns = (found, own) if is_shifted else (scores, true)
                pairs = np.column_stack([one[drawn] for one in columns]).tolist()
                begun_s = time.thread_time()
                quality.add([Answer(*pair) for pair in pairs])
                quality.figures()
                cpu_s += time.thread_time() - begun_s
            took.append(quality.num_seen - BEFORE)
        most = f"median {np.median(took):.0f}, most {max(took)}"
        print(f"{name}: {most}, last {quality.alarms}", flush=True)
    print(f"{1e6 * cpu_s / sum(took, BEFORE * len(took)):.1f} us")
