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
    NO_LIMIT,
    REQUEST,
    STATE,
    CompiledPolicy,
)
from scheduler_adapters.simulator.compiled.slai import slai_policy
from scheduler_adapters.simulator.compiled.static_ranks import static_policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.timeline.columns import timeline_of_columns
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.workload.requests import Ints, Requests


def run_compiled(requests: Requests, policy: Policy, instance: Instance) -> Timeline | None:
    """Return the timeline, or None if this run needs the engine in plain Python."""
    latency = instance.latency.compiled()
    if latency is None or not len(requests):
        return None
    part = slai_policy(requests, policy) or quanta_policy(requests, policy)
    part = part or static_policy(requests, policy, instance)
    if part is None:
        return None
    records = _records(requests, part, instance)
    limits = _limits(part, instance, len(requests))
    state, offsets = np.zeros(1, STATE)[0], np.array(part.offsets)
    is_complete, tick_s, runs = _in_a_thread(run, records, state, limits, offsets, latency)
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
    records["phase"] = records["own_tick"] = records["placed_tick"] = -2
    for name in ("evicted_s", "scheduled_s", "first_token_s", "finished_s"):
        records[name] = np.nan
    for name, values in part.columns.items():
        records[name] = values
    return records


def _limits(part: CompiledPolicy, instance: Instance, num_requests: int) -> Ints:
    """Return the limits of an instance, a rule and a policy at their places in `residents.py`."""
    rule = part.rule
    limits = (
        part.kind,
        instance.kv_blocks,
        instance.watermark_blocks,
        instance.decode_headroom_blocks,
        instance.block_tokens,
        _least(instance.max_tokens, rule.max_tokens),
        _least(instance.max_num_seqs, rule.max_resident, num_requests),
        *map(_least, (rule.max_decodes, rule.chunk, rule.max_prefills, rule.max_admissions)),
        *(rule.mixed, rule.whole_prompts, rule.padded_tokens),
        *(part.prefill_lane, part.decode_lane, part.quantum_tokens),
    )
    return np.array(limits, dtype=np.int64)


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
