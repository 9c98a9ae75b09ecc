"""`advise`: decision for or against ordering by predicted length, from a log of requests."""

import logging
import re
from collections.abc import Sequence
from dataclasses import field, replace
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import numpy as np

from lengthwise.bundle import read_manifest
from lengthwise.command_line.options import common_options
from lengthwise.command_line.program import as_typed, print_next
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
    fewest_instances,
    policies_for,
    replays,
    tau_b_spread,
)
from scheduler_adapters.commands.advise.scored_log import Evidence
from scheduler_adapters.commands.advise.verdict import decide, growths, nothing_to_gain, recommended
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

_ASSUMED = {"model": "llama-3-8b", "gpu": "a100-80g"}
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
    """Folder for report.html, advise.json, the tables, and the ranker, which is used again."""
    model: str | None = None
    """Model of the simulated engines, of those that `models` lists; none: llama-3-8b is assumed."""
    gpu: str | None = None
    """GPU of an instance, or the start of its name (h100); none: a100-80g is assumed."""
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
    tolerance: Annotated[float, Range(least=0)] = 0.2
    """Part by which TTFT p99, E2E p99 and the longest wait may grow, and the load within the
    targets may fall, before the answer is not clear in place of yes."""
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
        gpu = self.gpu or _ASSUMED["gpu"]
        if not (names := [name for name in GPUS if f"{name}-".startswith(f"{gpu}-")]):
            raise ConfigError(f"gpu is {gpu!r}; use one of {', '.join(GPUS)}")
        fit = f":affine={self.fit}" if self.fit else ""
        return f"{self.model_name}@{names[0]}{fit}"

    @property
    def model_name(self) -> str:
        return self.model or _ASSUMED["model"]


@common_options(
    *("log", "out", "model", "gpu", "endpoint", "bundle", "tau_b", "slo", "tolerance", "json")
)
def run(config: AdviseConfig) -> None:
    """Decide for or against ordering by predicted length, from your own log; write a page on it.

    Examples:
      python -m scheduler_adapters advise --log gateway.jsonl --model llama-3-8b --gpu h100
      python -m scheduler_adapters advise --log gateway.jsonl --endpoint http://127.0.0.1:8000/v1
      python -m scheduler_adapters advise --log trace.csv --tau-b 0.5 --instances 8 --json

    FCFS and the order by true lengths are simulated first. If they differ by less than 2%, the
    answer is no. Else a ranker is trained on a part of the log's prompts, and the log is replayed
    at .7 to 1.3 times its load: under FCFS, rules without learning (shortest prompt, UniBoost,
    SLAI, and PASCAL with known reasoning tokens), learned orders (PARS, UniBoost, SRPT) and true
    lengths. Of the policies within 2% of the best, that with the least harm and cost is judged.
    Prompts of the training set get drawn scores, with the ranker's errors on the other prompts. The
    intervals cover these errors, not the differences between days.
    """
    advice = advise(config)
    text = to_json(as_json(advice))
    write_whole(config.out / "advise.json", lambda part: part.write_text(text + "\n"))
    if config.json:
        print(text)
        return
    print(advice.notes[0], text_of(page.latency_table(advice)), *advice.notes[1:], sep="\n")
    said = (advice.headline, advice.capacity, advice.quality)
    print("", *filter(None, said), f"report: {config.out / 'report.html'}", sep="\n")
    print_next(*advice.commands)


def advise(config: AdviseConfig) -> page.Advice:
    """Read, train, replay and judge; writes the report."""
    instance, steps = _instance(config)
    found = _read(config)
    assumed = _assumptions(config, found.models)
    first = np.arange(min(len(found.requests), config.num_requests))
    requests = found.requests.take(first)
    check_memory(requests, instance)
    replay = Replay(
        requests=requests,
        instance=instance,
        instances=config.instances or 1,
        seed=config.seed,
        assumed_tau_b=config.tau_b,
        rate_per_s=config.rate_per_s,
        loop="auto",  # the compiled ones need a third of a minute where they are new
    )
    if config.instances is None:
        replay = replace(replay, instances=fewest_instances(replay))
    log.info("replaying %d requests on %s", len(requests), page.counted(replay.instances))
    figures = replays(replay, ("fcfs", "oracle"), config.draws)
    advice = page.Advice(
        figures=figures,
        instances=replay.instances,
        notes=[*assumed, *_conditions(config, found, replay), steps],
        reason=nothing_to_gain(figures) or "",
    )
    if not advice.reason:
        found = _scored(config, found)
        replay = replace(replay, requests=found.requests.take(first), loop="compiled")
        advice = _judged(config, found, replay, advice)
    page.write_advice(advice, config.out)
    return advice


def _judged(
    config: AdviseConfig, found: Evidence, replay: Replay, advice: page.Advice
) -> page.Advice:
    """Return the advice by all policies."""
    figures = replays(replay, policies_for(replay.requests), config.draws)
    tau_b, (slo, target) = tau_b_spread(replay, config.draws), _slo(config, replay)
    without = () if tau_b.low > 0 else LEARNED  # NaN: all lengths, or all scores, are the same
    policy = recommended(figures, config.tolerance, without=without)
    shown = list(dict.fromkeys(("fcfs", policy, SCORED, "oracle")))
    carried = carried_load(replay, shown, slo)
    answer, reason = decide(
        figures, policy, carried, config.tolerance, tau_b=tau_b, num_prompts=found.num_prompts
    )
    return replace(
        advice,
        answer=answer,
        reason=reason,
        policy=policy,
        figures=figures,
        carried=carried,
        target=target,
        tau_b=tau_b,
        ranker=found.ranker,
        commands=_commands(config, found, policy),
    )


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


def _read(config: AdviseConfig) -> Evidence:
    found = scored_log.read_requests(config.log, config, needs_prompts=config.tau_b is None)
    if config.rate_per_s is None and np.ptp(found.requests.arrival_s) == 0:
        raise DataError(
            "no arrival times; name their column by --arrival-column, or draw Poisson arrivals by "
            "--rate-per-s",
            path=config.log[0],
        )
    if config.bundle is not None:
        read_manifest(config.bundle)  # refuses a broken one before the simulations
    return found


def _scored(config: AdviseConfig, found: Evidence) -> Evidence:
    if config.tau_b is not None:
        assumed = f"an assumed ranker of tau_b {config.tau_b:g}; none was trained"
        return replace(found, ranker=assumed)
    options = {
        "split.test-fraction": _TEST_FRACTION,
        "student": False,
        "seed": config.seed,
        **config.training,
    }
    bundle = config.bundle or scored_log.own_ranker(found, config.out, config.recipe, options)
    return scored_log.with_scores(found, bundle)


def _slo(config: AdviseConfig, replay: Replay) -> tuple[dict[str, float], str]:
    if config.slo:
        said = " and ".join(f"{name} <= {most:g}" for name, most in config.slo.items())
        return config.slo, f"Target {said}"
    p90_s = 1.001 * summarize(replay.run("fcfs")).ttft_s.p90  # rounding must not miss it
    return {"ttft_s.p90": p90_s}, f"Target p90 of TTFT as FCFS has it in the log, {p90_s:.3g} s"


def _assumptions(config: AdviseConfig, models: Sequence[str]) -> list[str]:
    """Return what no option gives, and a warning of other models in the log; both are logged."""
    if config.endpoint is not None:
        return []
    own = {"model": config.model, "gpu": config.gpu}
    given = ", ".join(f"--{name} {_ASSUMED[name]}" for name in own if own[name] is None)
    notes = [f"Assumed, as it was not given: {given}."] if given else []
    log.info("%s", notes[0] if given else config.profile)
    model, *names = (re.sub(r"[^a-z0-9]", "", one.lower()) for one in (config.model_name, *models))
    if others := [one for one, name in zip(models, names, strict=True) if model not in name]:
        notes.append(
            f"The log names the model {', '.join(others)}, and the simulated one is "
            f"{config.model_name}: give one of its size by --model, or measure the engine by "
            "--endpoint."
        )
        log.warning("%s", notes[-1])
    return notes


def _conditions(config: AdviseConfig, found: Evidence, replay: Replay) -> list[str]:
    chosen = "" if config.instances else " (the fewest with which FCFS keeps up)"
    own, span_s = len(replay.requests), float(np.ptp(replay.requests.arrival_s))
    arrivals = f"in {span_s:,.0f} s" if config.rate_per_s is None else "drawn"
    names = ", ".join(Path(name).name for name in config.log)
    notes = [
        f"Simulated: {config.endpoint or config.profile}, "
        f"{page.counted(replay.instances)}{chosen}, requests in turn, {config.max_num_seqs} seats, "
        f"{config.max_tokens} tokens a step; {names}, {own:,} of {len(found.requests):,} "
        f"requests {arrivals}; {config.draws} draws, seed {config.seed}."
    ]
    if config.rate_per_s is not None:
        notes.append(f"Poisson arrivals at {config.rate_per_s:g}/s, which are not the log's.")
    if not replay.requests.reasoning_tokens.any():
        notes.append("PASCAL is not simulated: the log has no reasoning tokens.")
    return notes


def _commands(config: AdviseConfig, found: Evidence, policy: str) -> list[str]:
    """Return the command that serves the recommended policy; none for FCFS."""
    if policy == "fcfs":
        return []
    if policy not in LEARNED:
        command = f"{_SERVE} --policy {policy}"
    elif found.bundle is None:
        at = f" --endpoint {config.endpoint}" if config.endpoint else ""
        command = f"python -m scheduler_adapters advise --log {' '.join(config.log)}{at}"
    else:
        own = "" if policy == SCORED else f" --policy {policy}"
        command = f"{_SERVE} --bundle {quote(str(found.bundle))}{own}"
    return [as_typed(command)]


def as_json(advice: page.Advice) -> dict[str, Any]:
    """Return the advice as plain data."""
    return {
        "answer": advice.answer,
        "reason": advice.reason,
        "recommended": advice.policy,
        "gain_fraction": {name: gain._asdict() for name, gain in advice.gains.items()},
        "price": growths(advice.figures, advice.policy),
        "latencies": page.spread_rows(advice).to_dict("records"),
        "target": advice.target,
        "instances": advice.instances,
        "carried": {
            name: {"load": load._asdict(), "instances": count}
            for name, (load, count) in advice.carried.items()
        },
        "ranker": advice.ranker,
        "tau_b": None if advice.tau_b is None else advice.tau_b._asdict(),
        "notes": list(advice.notes),
        "commands": list(advice.commands),
    }
