"""The rules of `reference.py` under SLAI, compiled with numba.

SLAI's ranks change with time, so `static_ranks.py` cannot ask for them beforehand. They are worked
out here from the policy's numbers, and only where they decide something: beside prefills, or where
memory, budget or the limit of decodes is short. In all other steps every decode has a token, and
such a step costs the same for any number of them. Only `SLAI` itself runs here: a subclass or a
wrapper may rank otherwise.
"""

# numba infers the types: typed code would only say float64 everywhere.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,arg-type,misc"

from heapq import heapify, heappop, heappush
from math import isfinite

import numpy as np

from scheduler_adapters.policies.slai import SLAI
from scheduler_adapters.policy import Policy
from scheduler_adapters.simulator.compiled.loop import (
    BLOCK_TOKENS,
    BLOCKS,
    BUDGET,
    DONE,
    HEADROOM,
    LEAVE_TO_PYTHON,
    NO_LIMIT,
    SEATS,
    WATERMARK,
    as_number,
    ceil_div,
    jit,
    joined_runs,
    limits_of,
    run_loop,
    step_s,
)  # fmt: skip
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.views import StepRule
from scheduler_adapters.workload.requests import Ints, Requests


def run_compiled_slai(requests: Requests, policy: Policy, instance: Instance) -> Timeline | None:
    """Return the timeline, or None where this run needs the engine in plain Python."""
    if type(policy) is not SLAI or not len(requests):
        return None
    latency, rule = instance.latency.compiled(), policy.rule
    offsets = (policy.offset_below, policy.offset_above, policy.memory_limit)
    if (
        latency is None
        or not all(map(isfinite, (*offsets, policy.default_tbt_s)))
        or rule != StepRule(rule.max_tokens, rule.max_decodes, max_resident=rule.max_resident)
    ):
        return None
    limits = limits_of(instance, rule, as_number(rule.max_decodes))
    limits[SEATS] = min(limits[SEATS], len(requests))
    tbt_s = np.where(np.isnan(requests.tbt_s), policy.default_tbt_s, requests.tbt_s)
    numbers = np.array(offsets, dtype=np.float64)
    queue = _queue(requests, policy)
    return run_loop(_run, requests, instance, tbt_s, queue, limits, numbers, latency)


def _queue(requests: Requests, policy: SLAI) -> Ints:
    """Return the rows (N,) in the order of the queue with all requests in it."""
    keys = [requests.prompt_tokens] if policy.order == "spf" else []
    if policy.paying_first:
        keys.append(requests.user_class == "free")
    rows: Ints = np.lexsort([np.arange(len(requests)), *keys])
    return rows


MAX_DECODES = 6
"""Place in the array of limits, after those of `loop.py`."""
CRITICAL, PREFILL, DEFERRED = range(3)


@jit
def _run(arrival_s, prompt, output, rejected, tbt_s, queue, limits, offsets, latency):
    kind, numbers, dense, decode, prefill = latency
    count_all = len(arrival_s)
    total, size, seats = limits[BLOCKS], limits[BLOCK_TOKENS], limits[SEATS]
    place = np.empty(count_all, np.int64)
    place[queue] = np.arange(count_all)
    scheduled_s = np.full(count_all, np.nan)
    first_token_s = np.full(count_all, np.nan)
    finished_s = np.full(count_all, np.nan)
    preemptions = np.zeros(count_all, np.int64)
    end = prompt + output
    context = prompt.copy()  # not of decodes
    left = np.zeros(count_all, np.int64)
    waiting = [np.int64(0)][:0]  # heap of places in the queue
    prefilling = [np.int64(0)][:0]  # rows by admission; chunk i is for the i-th
    decoding = [np.int64(0)][:0]  # rows in any order
    runs = [(np.int64(0), np.int64(0), np.int64(0))][:0]
    ticks = [0.0][:0]
    # A step in which every decode has a token writes to none of them: it is a common step. Their
    # context is what their last token leaves, less the common steps until then.
    common = 0
    common_tick, common_s, common_early_s = -2, 0.0, 0.0  # of the last common step
    last_at = np.zeros(count_all, np.int64)  # how many common steps there are at its last token
    soonest = NO_LIMIT  # no decode has its last token before that many
    bucket = np.zeros(count_all, np.int64)  # needs a block where this is `common % size`
    growing = np.zeros(size, np.int64)  # decodes by bucket
    all_context = 0
    own_tick = np.full(count_all, -2)  # of the last token that was not of a common step
    key = np.zeros(count_all, np.float64)  # since that token
    first_tick = np.zeros(count_all, np.int64)  # of the run that goes on
    lanes = np.zeros((3, seats), np.int64)  # rows of the decodes in each
    counts = np.zeros(3, np.int64)
    growth = np.zeros(3, np.int64)
    contexts = np.zeros(3, np.int64)
    emitting = np.zeros(seats, np.int64)
    chunks = np.zeros((seats, 2), np.int64)  # tokens before, tokens
    now_s, mean_s, early_s, used, coming = 0.0, 0.0, 0.0, 0, 0
    status = LEAVE_TO_PYTHON
    while True:
        while coming < count_all and rejected[coming]:
            coming += 1
        if len(waiting) + len(prefilling) + len(decoding) == 0:
            if coming == count_all:
                status = DONE
                break
            now_s = max(now_s, arrival_s[coming])
        while coming < count_all and arrival_s[coming] <= now_s:
            if not rejected[coming]:
                heappush(waiting, place[coming])
            coming += 1

        tick, phase = len(ticks), common % size
        num_decodes, num_chunks, decode_context = len(decoding), 0, all_context
        is_common = (
            0 < num_decodes <= min(limits[BUDGET], limits[MAX_DECODES])
            and used + growing[phase] + limits[HEADROOM] <= total
            and len(prefilling) == 0
            and (
                len(waiting) == 0
                or num_decodes >= seats
                or used + ceil_div(context[queue[waiting[0]]], size) + limits[WATERMARK] > total
            )
        )
        if is_common:
            used += growing[phase]
        else:
            # A token gives a new key: the last schedulable time, by the offset of the next step.
            counts[:] = 0
            for row in decoding:
                if own_tick[row] < common_tick:
                    own_tick[row] = common_tick
                    key[row] = common_s + tbt_s[row] - common_early_s
                lane = CRITICAL if now_s >= key[row] else DEFERRED
                lanes[lane, counts[lane]] = row
                counts[lane] += 1
            growth[CRITICAL] = contexts[CRITICAL] = 0
            for row in lanes[CRITICAL, : counts[CRITICAL]]:
                growth[CRITICAL] += bucket[row] == phase
                contexts[CRITICAL] += end[row] - last_at[row] + common
            growth[DEFERRED] = growing[phase] - growth[CRITICAL]
            contexts[DEFERRED] = all_context - contexts[CRITICAL]

            budget, num_decodes, decode_context = limits[BUDGET], 0, 0
            for lane in range(3):
                if lane == PREFILL:
                    while budget > 0:
                        if num_chunks == len(prefilling):  # each has its chunk: admit one more
                            if len(waiting) == 0 or len(prefilling) + len(decoding) >= seats:
                                break
                            row = queue[waiting[0]]
                            blocks = ceil_div(context[row], size)
                            if used + blocks + limits[WATERMARK] > total:
                                break
                            heappop(waiting)
                            used += blocks
                            left[row] = context[row]
                            prefilling.append(row)
                        chunks[num_chunks, 1] = min(left[prefilling[num_chunks]], budget)
                        budget -= chunks[num_chunks, 1]
                        num_chunks += 1
                    continue
                count = counts[lane]
                if (
                    count <= min(budget, limits[MAX_DECODES] - num_decodes)
                    and used + growth[lane] + limits[HEADROOM] <= total
                ):
                    emitting[num_decodes : num_decodes + count] = lanes[lane, :count]
                    used += growth[lane]
                    num_decodes += count
                    decode_context += contexts[lane]
                    budget -= count
                    continue
                # One by one, by key, evicting the newest prefill that is not in the step; as one
                # is room enough for a token, evictions cannot go on for ever.
                heap = [(key[row], row) for row in lanes[lane, :count]]
                heapify(heap)
                while len(heap) and budget > 0 and num_decodes < limits[MAX_DECODES]:
                    row = heappop(heap)[1]
                    needed = 1 if bucket[row] == phase else 0
                    row_context = end[row] - last_at[row] + common
                    has_block = True
                    while has_block and total - used < max(needed, limits[HEADROOM]):
                        if len(prefilling) > num_chunks:
                            victim = prefilling.pop()
                            used -= ceil_div(context[victim], size)
                        else:
                            victim = row
                            decoding.remove(row)
                            context[row] = row_context
                            growing[bucket[row]] -= 1
                            all_context -= row_context
                            used -= ceil_div(row_context - 1, size)
                            has_block = False
                        heappush(waiting, place[victim])
                        preemptions[victim] += 1
                    if has_block:
                        used += needed
                        budget -= 1
                        emitting[num_decodes] = row
                        num_decodes += 1
                        decode_context += row_context

        if num_decodes + num_chunks == 0:
            break
        for i in range(num_chunks):
            row = prefilling[i]
            chunks[i, 0] = context[row] - left[row]
            if np.isnan(scheduled_s[row]):
                scheduled_s[row] = now_s
        duration_s = step_s(
            kind, numbers, dense, decode, prefill, num_decodes, decode_context, chunks, num_chunks
        )
        if not duration_s > 0:
            break
        now_s = now_s + duration_s
        ticks.append(now_s)
        mean_s += (duration_s - mean_s) / len(ticks)

        num_emitting = num_decodes
        all_context += num_decodes
        is_common = num_decodes == len(decoding)
        if is_common:
            if common_tick != tick - 1:
                for row in decoding:
                    last_tick = max(own_tick[row], common_tick)
                    if last_tick != tick - 1:
                        runs.append((row, first_tick[row], last_tick))
                        first_tick[row] = tick
            num_emitting = 0
            common += 1
            common_tick, common_s = tick, now_s
        else:
            for row in emitting[:num_decodes]:
                if own_tick[row] != tick - 1:
                    runs.append((row, first_tick[row], own_tick[row]))
                    first_tick[row] = tick
                own_tick[row] = tick
                last_at[row] -= 1
                soonest = min(soonest, last_at[row])
                growing[bucket[row]] -= 1
                bucket[row] = (bucket[row] or size) - 1
                growing[bucket[row]] += 1
        if soonest <= common:
            soonest = NO_LIMIT
            for row in decoding:
                if last_at[row] > common:
                    soonest = min(soonest, last_at[row])
                    continue
                finished_s[row] = now_s
                growing[bucket[row]] -= 1
                all_context -= end[row]
                used -= ceil_div(end[row] - 1, size)
                runs.append((row, first_tick[row], tick))
            decoding = [row for row in decoding if last_at[row] > common]
        num_prefilling = len(prefilling)
        for i in range(num_chunks):
            row = prefilling[i]
            left[row] -= chunks[i, 1]
            if left[row]:
                continue
            num_prefilling -= 1
            context[row] += 1
            if context[row] == prompt[row] + 1:
                first_token_s[row] = now_s
            if own_tick[row] != tick - 1:
                if own_tick[row] >= 0:
                    runs.append((row, first_tick[row], own_tick[row]))
                first_tick[row] = tick
            own_tick[row] = tick
            if context[row] == end[row]:
                finished_s[row] = now_s
                used -= ceil_div(context[row] - 1, size)
                runs.append((row, first_tick[row], tick))
                continue
            emitting[num_emitting] = row
            num_emitting += 1
            decoding.append(row)
            last_at[row] = end[row] - context[row] + common
            soonest = min(soonest, last_at[row])
            bucket[row] = (common + 1 - context[row]) % size
            growing[bucket[row]] += 1
            all_context += context[row]
        if num_prefilling < len(prefilling):
            prefilling = [row for row in prefilling if left[row] > 0]
        offset = offsets[1] if used >= offsets[2] * total else offsets[0]
        early_s = offset * mean_s
        if is_common:
            common_early_s = early_s
        for row in emitting[:num_emitting]:
            key[row] = now_s + tbt_s[row] - early_s
    columns = scheduled_s, first_token_s, finished_s, preemptions
    return status, columns, np.array(ticks), joined_runs(runs, count_all)
