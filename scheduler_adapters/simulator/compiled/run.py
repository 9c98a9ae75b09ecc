"""Runs of the compiled loop: requests, a policy and an instance in; a timeline out, or None."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.compiled.loop import run
from scheduler_adapters.simulator.compiled.quanta import quanta_policy
from scheduler_adapters.simulator.compiled.residents import (
    LIMITS,
    NO_LIMIT,
    REQUEST,
    STATE,
    CompiledPolicy,
)
from scheduler_adapters.simulator.compiled.slai import slai_policy
from scheduler_adapters.simulator.compiled.static_ranks import guarded_policy, static_policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.timeline.columns import timeline_of_columns
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.workload.requests import Requests


def run_compiled(requests: Requests, policy: Policy, instance: Instance) -> Timeline | None:
    """Return the timeline, or None if this run needs the engine in plain Python."""
    latency = instance.latency.compiled()
    is_plain = not requests.has_limits and not requests.cached_tokens.any()
    if latency is None or not len(requests) or not is_plain:
        return None
    part = (
        slai_policy(requests, policy)
        or quanta_policy(requests, policy)
        or guarded_policy(requests, policy, instance)
        or static_policy(requests, policy, instance)
    )
    if part is None:
        return None
    records = _records(requests, part, instance)
    limits = _limits(part, instance, len(requests))
    is_complete, tick_s, runs = _in_a_thread(run, records, np.zeros(1, STATE)[0], limits, latency)
    if not is_complete:
        return None
    names = ("rejected", "scheduled_s", "first_token_s", "finished_s", "preemptions")
    results: dict[str, Any] = {name: np.ascontiguousarray(records[name]) for name in names}
    return timeline_of_columns(requests, **results, tick_s=tick_s, runs=runs)


def _records(requests: Requests, part: CompiledPolicy, instance: Instance) -> NDArray[np.void]:
    """Return the requests (N,) as records of the loop."""
    records = np.zeros(len(requests), REQUEST)
    records["arrival_s"] = requests.arrival_s
    records["prompt"] = records["context"] = requests.prompt_tokens
    records["end"] = requests.prompt_tokens + requests.output_tokens
    records["rejected"] = instance.cannot_hold(requests.prompt_tokens, requests.output_tokens)
    records["starves_s"] = np.inf
    records["lane"] = part.prefill_lane
    for name in ("phase", "own_tick", "placed_tick", "ranked_tick"):
        records[name] = -2
    for name in ("evicted_s", "scheduled_s", "first_token_s", "finished_s"):
        records[name] = np.nan
    for name, values in part.columns.items():
        records[name] = values
    return records


def _limits(part: CompiledPolicy, instance: Instance, num_requests: int) -> np.void:
    """Return the limits of an instance, a rule and a policy as a record of the loop."""
    rule = part.rule
    limits = {
        "kind": part.kind,
        "blocks": instance.kv_blocks,
        "watermark": instance.watermark_blocks,
        "headroom": instance.decode_headroom_blocks,
        "block_tokens": instance.block_tokens,
        "budget": _least(instance.max_tokens, rule.max_tokens),
        "seats": _least(instance.max_num_seqs, rule.max_resident, num_requests),
        "prefill_lane": part.prefill_lane,
        "decode_lane": part.decode_lane,
    }
    limits |= {name: _least(getattr(rule, name)) for name in _LIMITS_OF_RULES}
    limits |= {name: getattr(rule, name) for name in ("mixed", "whole_prompts", "padded_tokens")}
    record: np.void = np.zeros(1, LIMITS)[0]
    for name, value in (limits | part.numbers).items():
        record[name] = value
    return record


_LIMITS_OF_RULES = ("max_decodes", "chunk", "max_prefills", "max_admissions")


def _least(*limits: int | None) -> int:
    return min((limit for limit in limits if limit is not None), default=NO_LIMIT)


def _in_a_thread(loop: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of compiled code, which runs in a thread of its own."""
    outcome: Future[Any] = Future()

    def work() -> None:
        try:
            outcome.set_result(loop(*arguments))
        except BaseException as error:
            outcome.set_exception(error)

    # Compiled code hears no Ctrl-C. The waiting main thread does; the other ends with the process.
    Thread(target=work, daemon=True).start()
    return outcome.result()
