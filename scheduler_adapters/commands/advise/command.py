"""`advise`: decision for or against ordering by predicted length, from a log of requests."""

import logging
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from lengthwise.command_line.options import common_options
from lengthwise.command_line.program import print_banner, print_next
from lengthwise.errors import ConfigError, DataError
from lengthwise.report_page import save_table
from lengthwise.settings import Count, Natural, PositiveFinite, Range, settings
from lengthwise.strict_json import to_json
from lengthwise.tables.files import write_whole
from lengthwise.tables.options import TraceOptions
from scheduler_adapters.commands.advise import page, scored_log
from scheduler_adapters.commands.advise.endpoint import Endpoint, measure_steps
from scheduler_adapters.commands.advise.replay import (
    LEARNED,
    SCORED,
    Replay,
    carried_load,
    cheapest,
    fewest_instances,
    gains,
    policies_for,
    replays,
    slower,
    spread_of,
    tau_b_spread,
)
from scheduler_adapters.commands.advise.scored_log import Evidence
from scheduler_adapters.commands.experiment_settings import check_folder, check_one_of
from scheduler_adapters.reporting.latency_tables import text_of
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.instance_config import check_memory
from scheduler_adapters.simulator.latency.affine_fit import read_affine
from scheduler_adapters.simulator.latency.facts import GPUS
from scheduler_adapters.timeline.latency_metrics import summarize
from scheduler_adapters.timeline.targets import check_targets
from scheduler_adapters.workload.score_sources import TauB

log = logging.getLogger(__name__)

_SERVE = "python -m scheduler_adapters serve-vllm MODEL"
_TEST_FRACTION = 0.4
"""Fraction of the prompts that is kept from the training, to judge the ranker."""


@settings
class AdviseConfig(TraceOptions):
    """A log, a ranker, and the simulated engines."""

    log: tuple[str, ...]
    """Requests with the lengths of their answers, in files, folders or patterns: a log of a gateway
    or of vLLM (see `lengthwise inspect`), or a table with prompt, output_tokens and arrival_s."""
    out: Path = Path("advice")
    """Folder for report.html, advise.json, the tables, and a trained ranker."""
    model: str = "llama-3-8b"
    """Model of the simulated engines; `models` lists those that are known."""
    gpu: str = "a100-80g"
    """GPU of an instance, or the start of its name (h100)."""
    endpoint: str | None = None
    """Address of an idle engine's OpenAI-style API (http://127.0.0.1:8000/v1). Its step times are
    measured, and its KV memory is read."""
    fit: Path | None = None
    """Recorded steps of an engine (num_decodes, decode_context, prefill_tokens, seconds), in place
    of step times from sizes and peaks."""
    instances: Count | None = None
    """Engines that get the requests in turn; none: the fewest that keep up under FCFS."""
    max_num_seqs: int = 256
    """Requests that may run at once in an engine."""
    max_tokens: int = 2048
    """Token budget of an engine's step."""
    bundle: Path | None = None
    """A trained ranker; none: one is trained on a part of the log's prompts."""
    tau_b: TauB | None = None
    """Quality of an assumed ranker, without training: the log then needs no prompts."""
    recipe: str = "demo"
    """Recipe of `python -m training fit` for the training."""
    training: dict[str, Any] = field(default_factory=dict)
    """Further options of the training, e.g. {"epochs": 1, "split.train-prompts": 2000}."""
    slo: dict[str, float] = field(default_factory=dict)
    """Targets for the instances needed, e.g. {"ttft_s.p99": 1}; none: the p90 of TTFT under FCFS
    at the log's load."""
    rate_per_s: PositiveFinite | None = None
    """Rate of Poisson arrivals, drawn anew in each draw: for a log without times."""
    num_requests: Annotated[int, Range(least=scored_log.LEAST_REQUESTS)] = 2000
    """Limit of replayed requests, from the start of the log."""
    draws: Annotated[int, Range(least=10)] = 20
    """Draws of the ranker's errors, and of arrivals at a rate, behind each interval."""
    json: bool = False
    """Print one JSON object."""
    seed: Natural = 0
    """Seed of the draws."""

    def __post_init__(self) -> None:
        check_one_of(self, ("bundle", "tau_b"), ("endpoint", "fit"))
        check_targets(self.slo)
        check_folder(self.out)

    @property
    def profile(self) -> str:
        """MODEL@GPU, with the file of recorded steps."""
        if not (names := [name for name in GPUS if f"{name}-".startswith(f"{self.gpu}-")]):
            raise ConfigError(f"gpu is {self.gpu!r}; use one of {', '.join(GPUS)}")
        return f"{self.model}@{names[0]}" + (f":affine={self.fit}" if self.fit else "")


@common_options(
    *("log", "out", "model", "gpu", "endpoint", "instances", "bundle", "tau_b", "slo", "json")
)
def run(config: AdviseConfig) -> None:
    """Decide for or against ordering by predicted length, from your own log; write a page on it.

    Examples:
      python -m scheduler_adapters advise --log gateway.jsonl --model llama-3-8b --gpu h100
      python -m scheduler_adapters advise --log gateway.jsonl --endpoint http://127.0.0.1:8000/v1
      python -m scheduler_adapters advise --log trace.csv --tau-b 0.5 --instances 8 --json

    A ranker is trained on a part of the log's prompts. The simulator then replays the log, at .7 to
    1.3 times its load, under FCFS, rules without learning (shortest prompt, UniBoost, SLAI, and
    PASCAL with known reasoning tokens), learned orders (PARS, UniBoost, SRPT) and true lengths. The
    cheapest policy within 2% of the best is named. Prompts of the training set get drawn scores,
    with the ranker's errors on the other prompts. The intervals cover these errors, not the
    differences between days.
    """
    advice = advise(config)
    text = to_json(as_json(advice))
    write_whole(config.out / "advise.json", lambda part: part.write_text(text + "\n"))
    if config.json:
        print(text)
        return
    print_banner(advice.banner)
    print(text_of(page.latency_table(advice)))
    print(advice.capacity, advice.quality, *advice.notes, "", sep="\n")
    print(advice.headline, advice.cheapest, f"report: {config.out / 'report.html'}", sep="\n")
    print_next(*advice.commands)


def advise(config: AdviseConfig) -> page.Advice:
    """Read, train, replay and judge; writes the report."""
    instance, steps = _instance(config)
    found = _evidence(config)
    requests = found.requests.take(np.arange(min(len(found.requests), config.num_requests)))
    check_memory(requests, instance)
    replay = Replay(
        requests=requests,
        instance=instance,
        instances=config.instances or 1,
        seed=config.seed,
        assumed_tau_b=config.tau_b,
        rate_per_s=config.rate_per_s,
    )
    if config.instances is None:
        replay = replace(replay, instances=fewest_instances(replay))
    log.info("replaying %d requests on %s", len(requests), page.counted(replay.instances))
    figures = replays(replay, policies_for(requests), config.draws)
    gain, tau_b = gains(figures), tau_b_spread(replay, config.draws)
    queueing_s = spread_of(figures, "fcfs", "queueing_s.mean").value
    queueing_fraction = queueing_s / spread_of(figures, "fcfs", "e2e_s.mean").value
    best = gain["oracle"].value
    answer, reason = page.decide(gain[SCORED], best, queueing_fraction, tau_b, found.num_prompts)
    slo, target = _slo(config, replay)
    advice = page.Advice(
        answer=answer,
        reason=reason,
        figures=figures,
        gains=gain,
        slower=slower(replay, SCORED),
        carried=carried_load(replay, ("fcfs", SCORED, "oracle"), slo),
        target=target,
        instances=replay.instances,
        tau_b=tau_b,
        ranker=found.ranker,
        notes=[*_notes(config, found, replay), steps],
        commands=_commands(config, found, answer, cheapest(figures)[0]),
        banner=found.banner,
    )
    page.write_advice(advice, config.out)
    return advice


def _instance(config: AdviseConfig) -> tuple[Instance, str]:
    """Return the simulated engine, and the source of its step times."""
    changes = {"max_num_seqs": config.max_num_seqs, "max_tokens": config.max_tokens}
    instance = Instance.preset(config.profile, **changes)
    if config.fit is not None:
        return instance, f"Step times are fitted to {config.fit.name}."
    if config.endpoint is None:
        return instance, "Step times are computed from the model's size and the GPU's peaks."
    endpoint = Endpoint(config.endpoint)
    log.info("measuring the steps of %s at %s", endpoint.model, endpoint.url)
    table = measure_steps(
        endpoint.ask, most_tokens=config.max_tokens, most_seqs=config.max_num_seqs
    )
    path = save_table(table, config.out / "steps.csv")
    (latency, error), kv_text = read_affine(path), f"computed for {config.profile}"
    instance = replace(instance, latency=latency)
    if (memory := endpoint.kv_memory()) is not None:
        blocks, tokens = memory
        instance = replace(instance, kv_blocks=blocks, block_tokens=tokens)
        kv_text = f"the engine's, {blocks * tokens:,} tokens"
    return instance, (
        f"Step times of {endpoint.model} were measured at {endpoint.url}, and the fit to them is "
        f"{error:.0%} off in the mean; KV memory is {kv_text}."
    )


def _evidence(config: AdviseConfig) -> Evidence:
    requests, prompts = scored_log.requests_and_prompts(
        config.log, config, needs_prompts=config.tau_b is None
    )
    if config.rate_per_s is None and np.ptp(requests.arrival_s) == 0:
        raise DataError(
            "no arrival times; name their column by --arrival-column, or draw Poisson arrivals by "
            "--rate-per-s",
            path=config.log[0],
        )
    if config.tau_b is not None:
        return Evidence(
            requests=requests,
            num_prompts=0,
            ranker=f"an assumed ranker of tau_b {config.tau_b:g}; none was trained",
        )
    options = {
        "mlruns-dir": config.out / "mlruns",
        "split.test-fraction": _TEST_FRACTION,
        "seed": config.seed,
        **config.training,
    }
    bundle = config.bundle or scored_log.train(
        requests, prompts, config.out, config.recipe, options
    )
    return scored_log.with_scores(requests, prompts, bundle)


def _slo(config: AdviseConfig, replay: Replay) -> tuple[dict[str, float], str]:
    if config.slo:
        said = " and ".join(f"{name} <= {most:g}" for name, most in config.slo.items())
        return config.slo, f"Target {said}"
    p90_s = 1.001 * summarize(replay.run("fcfs")).ttft_s.p90  # rounding must not miss it
    return {"ttft_s.p90": p90_s}, f"Target p90 of TTFT as FCFS has it in the log, {p90_s:.3g} s"


def _notes(config: AdviseConfig, found: Evidence, replay: Replay) -> list[str]:
    chosen = "" if config.instances else " (the fewest with which FCFS keeps up)"
    own, span_s = len(replay.requests), float(np.ptp(replay.requests.arrival_s))
    arrivals = f"in {span_s:,.0f} s" if config.rate_per_s is None else "drawn"
    names = ", ".join(Path(name).name for name in config.log)
    notes = [
        f"Simulated: {config.endpoint or config.profile}, "
        f"{page.counted(replay.instances)}{chosen}, requests in turn, {config.max_num_seqs} seats, "
        f"{config.max_tokens} tokens a step; {names}, {own:,} of {len(found.requests):,} requests "
        f"{arrivals}; {config.draws} draws, seed {config.seed}."
    ]
    if config.rate_per_s is not None:
        notes.append(f"Poisson arrivals at {config.rate_per_s:g}/s, which are not the log's.")
    if config.tau_b is None:
        known = int(np.isfinite(replay.requests.score).sum())
        notes.append(f"{known:,} requests have a score of their own.")
    if not replay.requests.reasoning_tokens.any():
        notes.append("PASCAL is left out: the log has no reasoning tokens.")
    return notes


def _commands(config: AdviseConfig, found: Evidence, answer: str, cheapest: str) -> list[str]:
    """Return the next commands; after the answer no that of a rule without learning, if any."""
    rule = [] if cheapest in ("fcfs", *LEARNED) else [f"{_SERVE} --policy {cheapest}"]
    if answer == "no":
        return rule
    if found.bundle is None:
        at = f" --endpoint {config.endpoint}" if config.endpoint else ""
        return [*rule, f"python -m scheduler_adapters advise --log {' '.join(config.log)}{at}"]
    return [*rule, f"{_SERVE} --bundle {found.bundle}"]


def as_json(advice: page.Advice) -> dict[str, Any]:
    """Return the advice as plain data."""
    return {
        "answer": advice.answer,
        "reason": advice.reason,
        "cheapest": cheapest(advice.figures)[0],
        "gain_fraction": {name: gain._asdict() for name, gain in advice.gains.items()},
        "latencies": page.spread_rows(advice).to_dict("records"),
        "slower": {"fraction": advice.slower[0], "worst_percent_s": advice.slower[1]},
        "target": advice.target,
        "instances": advice.instances,
        "carried": {
            name: {"load": load._asdict(), "instances": count}
            for name, (load, count) in advice.carried.items()
        },
        "ranker": advice.ranker,
        "tau_b": advice.tau_b._asdict(),
        "notes": list(advice.notes),
        "commands": list(advice.commands),
    }
