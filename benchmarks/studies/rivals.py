"""`rivals`: rules without learning beside learned orders, as `docs/results/rivals.md` plans it."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import pandas as pd

from lengthwise.progress import Progress
from lengthwise.report_page import ReportSection, write_report
from lengthwise.settings import Count, Range, settings
from lengthwise.strict_json import to_json
from lengthwise.tables.reading import read_table
from scheduler_adapters.commands.advise.verdict import WORTHWHILE
from scheduler_adapters.policy import load_policy
from scheduler_adapters.reporting.figures import band_figure
from scheduler_adapters.reporting.latency_tables import interval, text_of, with_interval
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.workload.arrivals import LENGTH_STREAM, arrivals_s
from scheduler_adapters.workload.data_folder import data_file
from scheduler_adapters.workload.requests import Requests, make_requests
from scheduler_adapters.workload.score_sources import synthetic_scores, with_lengths

WORKLOADS: Final = {
    "short answers": (
        "alpaca-vicuna7b/alpaca_vicuna7b_lengths.parquet", "prompt", "vicuna_tokens_t0_7", 0.631
    ),
    "reasoning": (
        "reasoning/PlanBench_lengths.parquet", "prompt", "api_completion_tokens", 0.556
    ),
    "chats": (
        "azure-llm-2023/AzureLLMInferenceTrace_conv_first_half.csv",
        "ContextTokens", "GeneratedTokens", 0.5,
    ),
    "agents": ("mooncake-fast25/synthetic_trace.parquet", "input_length", "output_length", 0.5),
}  # fmt: skip
"""File, columns of prompt and output, and tau_b of the ranker: measured for two, else assumed."""
RULES: Final = (
    "shortest-prompt", "residual-prompt", "uniboost", "uniboost, 10 s", "virtual-token-counter"
)  # fmt: skip
LEARNED: Final = ("pars", "uniboost-learned", "srpt", "virtual-token-counter+pars")
_TRUE: Final = ("oracle", "srpt, true lengths")
SYSTEMS: Final = ("fcfs", *RULES, *LEARNED, *_TRUE)
"""Names of policies, with a variant behind a comma or a plus."""
_SETTINGS: Final[Mapping[str, dict[str, Any]]] = {
    "uniboost, 10 s": {"gamma_per_s": 0.1},
    "pars": {"guard": "overtaking"},
    "oracle": {"guard": "overtaking"},
    "virtual-token-counter+pars": {"inside": "pars"},
}
LOADS: Final = {"load 0.7": 0.7, "load 1": 1.0, "load 1.3": 1.3, "burst": np.inf}
"""Multiples of the requests per second that FCFS finishes of a burst."""
_DETAILED: Final = "load 1.3"
_CHARACTERS_PER_TOKEN, _CACHE_BLOCK = 4, 512
_LIGHT_CLIENTS = 5


@settings
class RivalsConfig:
    """The size of the study."""

    out: Path = Path("mlruns/rivals")
    """Folder for report.html, the figure, and runs.csv with a line for each run."""
    seeds: Count = 5
    """Runs per point, with other requests, arrivals, scores and clients."""
    num_requests: Annotated[int, Range(least=20)] = 1000
    json: bool = False
    """Print one JSON object instead of tables."""


def run(config: RivalsConfig) -> None:
    """Compare rules without learning, learned orders and true lengths, and judge each workload.

    Example:
      LENGTHWISE_DATA=../shared/data python -m benchmarks rivals --out rivals
    """
    found: dict[str, pd.DataFrame] = {}
    with Progress(len(WORKLOADS)) as progress:
        for workload in WORKLOADS:
            found[workload] = pd.DataFrame(list(runs_of(workload, config)))
            progress.step(workload)
    verdicts = {
        name: {load: verdict(runs[runs["load"] == load]) for load in LOADS}
        for name, runs in found.items()
    }
    tables = {name: table_of(runs) for name, runs in found.items()}
    texts = {name: [f"{load}: {said}." for load, said in verdicts[name].items()] for name in found}
    sections = [
        ReportSection(heading=name, text="\n\n".join(texts[name]), table=tables[name])
        for name in found
    ]
    lines = pd.concat([lines_of(runs) for runs in found.values()])
    drawn = ReportSection(
        heading="Mean E2E", figure=band_figure(lines, "load (2: burst)"), drawn=("mean_e2e", lines)
    )
    write_report(config.out, title="Rivals", lead="Seconds.", sections=[*sections, drawn])
    runs = pd.concat(found.values())
    runs.to_csv(config.out / "runs.csv", index=False)
    if config.json:
        print(to_json({"verdicts": verdicts, "runs": runs.to_dict("records")}))
    else:
        for name in found:
            print(name, text_of(tables[name]), *texts[name], sep="\n", end="\n\n")


def runs_of(workload: str, config: RivalsConfig) -> Iterator[dict[str, Any]]:
    """Yield the figures of each system, load and seed."""
    instance = Instance.preset("llama-3-8b@a100-80g", max_num_seqs=128)
    lengths, rate_per_s = lengths_of(workload), 0.0
    for seed in range(config.seeds):
        requests = drawn(workload, lengths, config.num_requests, seed)
        rate_per_s = rate_per_s or served_per_s(requests, instance)
        for load, times in LOADS.items():
            arrival_s = requests.arrival_s
            if times < np.inf:
                rate = times * rate_per_s
                arrival_s = arrivals_s(len(requests), rate_per_s=rate, seed=seed)
            at = {"workload": workload, "load": load, "seed": seed}
            for system in SYSTEMS:
                yield at | figures_of(system, replace(requests, arrival_s=arrival_s), instance)


def lengths_of(workload: str) -> pd.DataFrame:
    """Return columns prompt_tokens, output_tokens and cached_tokens of a workload's data."""
    file, prompt, output, _ = WORKLOADS[workload]
    table = read_table(data_file(file))
    if workload == "reasoning":
        prompts = read_table(data_file("reasoning/PlanBench_prompts.parquet"))
        table = table[table["model"] == "o1-mini_chat"].merge(prompts, on="prompt_id")
    tokens, cached = table[prompt], [0] * len(table)
    if prompt == "prompt":
        tokens = tokens.str.len() // _CHARACTERS_PER_TOKEN + 1
    if workload == "agents":
        cached = hits_of(table["hash_ids"].str.split())
    columns = {"prompt_tokens": tokens, "output_tokens": table[output]}
    return pd.DataFrame(columns | {"cached_tokens": np.minimum(cached, tokens)})


def hits_of(prompts: Iterable[Sequence[str]]) -> list[int]:
    """Return the tokens of each prompt in a cache that forgets nothing: its first known blocks."""
    known, hits = set[str](), []
    for blocks in prompts:
        hits.append(_CACHE_BLOCK * sum(1 for _ in takewhile(known.__contains__, blocks)))
        known.update(blocks)
    return hits


def drawn(workload: str, table: pd.DataFrame, count: int, seed: int) -> Requests:
    """Draw scored requests at 0 s; those of agents are consecutive, as their caches need.

    One client sends half of the requests, five others the rest.
    """
    random = np.random.default_rng((seed, LENGTH_STREAM))
    rows = random.integers(len(table), size=count)
    if workload == "agents":
        rows = (rows[0] + np.arange(count)) % len(table)
    clients = random.integers(1 + _LIGHT_CLIENTS, size=count) * random.integers(2, size=count)
    columns: dict[str, Any] = {str(name): table[name].to_numpy()[rows] for name in table}
    requests = make_requests(**columns, client=clients)
    lengths, (*_, tau_b) = requests.output_tokens, WORKLOADS[workload]
    return requests.with_scores(synthetic_scores(lengths, tau_b=tau_b, seed=seed))


def served_per_s(requests: Requests, instance: Instance) -> float:
    """Return the requests per second that FCFS finishes of the first half of a burst."""
    finished_s = simulate(requests, load_policy("fcfs"), instance).finished_s
    return float(len(requests) / 2 / np.nanmedian(finished_s))


def figures_of(system: str, requests: Requests, instance: Instance) -> dict[str, Any]:
    """Run a system; return latencies in seconds, also of short and long answers and of clients."""
    policy = load_policy(re.split("[,+]", system)[0], **_SETTINGS.get(system, {}))
    if system in _TRUE:
        requests = requests.with_scores(requests.output_tokens)
    timeline = simulate(with_lengths(requests, policy), policy, instance, loop="compiled")
    e2e_s, output, is_heavy = timeline.e2e_s(), requests.output_tokens, requests.client == "0"
    groups = {
        "short third": output <= np.percentile(output, 100 / 3),
        "long tenth": output >= np.percentile(output, 90),
        "heavy client": is_heavy,
        "light clients": ~is_heavy,
    }
    return {
        "policy": system,
        "mean": float(np.nanmean(e2e_s)),
        "p50": float(np.nanpercentile(e2e_s, 50)),
        "p99": float(np.nanpercentile(e2e_s, 99)),
        "longest wait": float(np.nanmax(timeline.scheduled_s - requests.arrival_s)),
        **{name: float(np.nanmean(e2e_s[rows])) for name, rows in groups.items()},
        "preemptions": int(timeline.preemptions.sum()),
    }


def table_of(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a line per system: mean E2E with its interval by load, and all figures at 1.3."""
    means = runs.groupby(["policy", "load"], sort=False)["mean"].agg(
        lambda own: with_interval(own.tolist(), "{:.3g}")
    )
    rest = runs[runs["load"] == _DETAILED].groupby("policy", sort=False).mean(numeric_only=True)
    return means.unstack(sort=False).join(rest.drop(columns=["seed", "mean"])).reset_index()


def lines_of(runs: pd.DataFrame) -> pd.DataFrame:
    """Return columns panel, policy, x, value, low, high of the mean E2E."""
    groups = runs.groupby(["workload", "policy", "load"], sort=False)["mean"]
    rows = [
        (workload, system, min(LOADS[str(load)], 2.0), own.mean(), *interval(own.tolist()))
        for (workload, system, load), own in groups
    ]
    return pd.DataFrame(rows, columns=["panel", "policy", "x", "value", "low", "high"])


def verdict(runs: pd.DataFrame) -> str:
    """Return the verdict of the protocol on one workload and load, with both savings."""
    mean_s = runs.pivot(index="seed", columns="policy", values="mean")
    rule, learned = (mean_s[list(each)].mean().idxmin() for each in (RULES, LEARNED))
    saved = {name: (1 - mean_s[name] / mean_s["fcfs"]).tolist() for name in (rule, learned)}
    pays = [np.mean(own) >= WORTHWHILE and interval(own)[0] > 0 for own in saved.values()]
    longer = (mean_s[rule] / mean_s[learned] - 1).tolist()
    said = "a rule without learning does as well"
    if not any(pays):
        said = "nothing pays"
    elif np.mean(longer) > WORTHWHILE and interval(longer)[0] > 0:
        said = "learning pays"
    texts = [f"{name} saves {with_interval(own, '{:.1%}')}" for name, own in saved.items()]
    return f"{said} ({', '.join(texts)})"
