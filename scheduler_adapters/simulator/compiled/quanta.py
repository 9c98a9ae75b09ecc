"""The rules of `reference.py` under round-robin and PASCAL, compiled with numba.

Their ranks change with quanta of generated tokens and with the phase, so they are computed here
from the policy's numbers: (lane, quanta used, time of entry, row) is the order of service, and the
reverse that of eviction. Round-robin is PASCAL without phases. Each step walks all residents, as
in `slai.py`. A subclass, a wrapper or host memory needs plain Python, and so does
a run in which a step can place no request.
"""

# numba infers the types: typed code would only say float64 everywhere.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,arg-type,misc"

from heapq import heapify, heappop, heappush

import numpy as np

from scheduler_adapters.policies.pascal import Pascal
from scheduler_adapters.policies.round_robin import RoundRobin
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
    as_number,
    ceil_div,
    jit,
    joined_runs,
    limits_of,
    run_loop,
    step_s,
)  # fmt: skip
from scheduler_adapters.simulator.engine.memory import MAX_EVICTIONS_PER_REQUEST
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.timeline.timeline import Timeline
from scheduler_adapters.workload.requests import Requests


def run_compiled_quanta(requests: Requests, policy: Policy, instance: Instance) -> Timeline | None:
    """Return the timeline, or None where this run needs the engine in plain Python."""
    latency = instance.latency.compiled()
    if latency is None or not len(requests):
        return None
    if type(policy) is RoundRobin:
        think_tokens = demoted_at = np.full(len(requests), NO_LIMIT)
    elif type(policy) is Pascal:
        think_tokens = requests.reasoning_tokens
        demoted_at = np.maximum(0, policy.demote_above_tokens + 1 - requests.prompt_tokens)
    else:
        return None
    rule = policy.rule
    if rule.offload:
        return None
    limits = limits_of(instance, rule, as_number(rule.max_decodes), policy.quantum_tokens)
    limits[SEATS] = min(limits[SEATS], len(requests))
    return run_loop(_run, requests, instance, think_tokens, demoted_at, limits, latency)


MAX_DECODES, QUANTUM = 6, 7
"""Places in the array of limits, after those of `loop.py`."""
REASONING, DEMOTED, ANSWERING = range(3)


@jit
def _queue_of(generated, think_tokens, answers, demoted_at, quantum):
    """Return the phase, the quanta used in it, and at how many tokens to ask again."""
    if answers:
        phase, since, until = ANSWERING, think_tokens, NO_LIMIT
    elif generated >= demoted_at:
        phase, since, until = DEMOTED, demoted_at, NO_LIMIT
    else:
        phase, since, until = REASONING, 0, demoted_at
    quanta = (generated - since) // quantum
    return phase, quanta, min(since + (quanta + 1) * quantum, until)


@jit
def _run(arrival_s, prompt, output, rejected, think_tokens, demoted_at, limits, latency):
    kind, numbers, dense, decode, prefill = latency
    count_all = len(arrival_s)
    total, size, seats = limits[BLOCKS], limits[BLOCK_TOKENS], limits[SEATS]
    scheduled_s = np.full(count_all, np.nan)
    first_token_s = np.full(count_all, np.nan)
    finished_s = np.full(count_all, np.nan)
    evicted_s = np.full(count_all, np.nan)
    preemptions = np.zeros(count_all, np.int64)
    context = prompt.copy()
    slot = (prompt - 1) % size  # (context - 1) % size: dividing takes longer than the rest
    left = np.zeros(count_all, np.int64)
    phases = np.full(count_all, -1)
    lanes = np.zeros(count_all, np.int64)
    quanta = np.zeros(count_all, np.int64)
    entered_s = np.zeros(count_all, np.float64)
    ask_at = np.zeros(count_all, np.int64)
    first_tick = np.zeros(count_all, np.int64)
    last_tick = np.full(count_all, -2)
    placed_tick = np.full(count_all, -1)
    waiting = [(np.int64(0), np.int64(0), 0.0, np.int64(0))][:0]  # heap in order of service
    prefilling = [(np.int64(0), np.int64(0), 0.0, np.int64(0))][:0]  # in order of service
    decoding = [np.int64(0)][:0]  # rows in any order
    goers = prefilling[:0]
    runs = [(np.int64(0), np.int64(0), np.int64(0))][:0]
    ticks = [0.0][:0]
    counts = np.zeros(2, np.int64)  # of decodes, by lane
    growth = np.zeros(2, np.int64)  # blocks that their next tokens take
    emitting = np.zeros(seats, np.int64)
    chunk_rows = np.zeros(seats, np.int64)
    chunks = np.zeros((seats, 2), np.int64)  # tokens before, tokens
    now_s, used, coming, evictions = 0.0, 0, 0, 0
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
                phases[coming], quanta[coming], ask_at[coming] = _queue_of(
                    0, 0, False, demoted_at[coming], limits[QUANTUM]
                )
                lanes[coming] = phases[coming] != REASONING
                entered_s[coming] = now_s
                heappush(waiting, (lanes[coming], quanta[coming], now_s, np.int64(coming)))
            coming += 1
        tick = len(ticks)

        # Admit the best waiting requests; where blocks are missing, the worst residents go first.
        is_counted = False
        while True:
            if not is_counted:
                counts[:] = 0
                growth[:] = 0
                for row in decoding:
                    counts[lanes[row]] += 1
                    growth[lanes[row]] += slot[row] == 0
                is_counted = True
            if len(waiting) == 0 or evicted_s[waiting[0][3]] == now_s:
                break
            best = waiting[0]
            room = total - used - growth[0] - growth[1] - ceil_div(context[best[3]] + 1, size)
            free_seats = seats - len(prefilling) - len(decoding) - 1
            worst = (np.int64(2), np.int64(0), 0.0, np.int64(0))  # behind all
            victims = 0
            while room < 0:
                victim = best
                for one in prefilling:
                    if victim < one < worst and one[:3] > best[:3]:
                        victim = one
                for row in decoding:
                    one = (lanes[row], quanta[row], entered_s[row], row)
                    if victim < one < worst and one[:3] > best[:3]:
                        victim = one
                if victim == best:
                    break
                room += ceil_div(context[victim[3]], size)
                worst = victim
                victims += 1
            if room < 0 or free_seats + victims < 0:
                break
            if victims:
                # All from `worst` on.
                goers = [one for one in prefilling if one >= worst]
                prefilling = [one for one in prefilling if one < worst]
                for row in decoding:
                    one = (lanes[row], quanta[row], entered_s[row], row)
                    if one >= worst:
                        goers.append(one)
                for one in goers:
                    row = one[3]
                    if left[row] > 0:
                        used -= ceil_div(context[row], size)
                    else:
                        used -= ceil_div(context[row] - 1, size)
                        decoding.remove(row)
                    evicted_s[row] = now_s
                    preemptions[row] += 1
                    evictions += 1
                    heappush(waiting, one)
                is_counted = False
            heappop(waiting)
            row = best[3]
            left[row] = context[row]
            used += ceil_div(context[row], size)
            prefilling.append(best)
            i = len(prefilling) - 1
            while i > 0 and prefilling[i - 1] > best:
                prefilling[i] = prefilling[i - 1]
                i -= 1
            prefilling[i] = best

        budget, num_decodes, num_chunks = limits[BUDGET], 0, 0
        for lane in range(2):
            count = counts[lane]
            if (
                count <= min(budget, limits[MAX_DECODES] - num_decodes)
                and used + growth[lane] + limits[HEADROOM] <= total
            ):
                if count:
                    for row in decoding:
                        if lanes[row] == lane:
                            emitting[num_decodes] = row
                            placed_tick[row] = tick
                            num_decodes += 1
                used += growth[lane]
                budget -= count
            else:
                # One by one in order, evicting the worst resident that is not in the step.
                heap = [
                    (quanta[row], entered_s[row], row) for row in decoding if lanes[row] == lane
                ]
                heapify(heap)
                while len(heap) and budget > 0 and num_decodes < limits[MAX_DECODES]:
                    row = heappop(heap)[2]
                    if evicted_s[row] == now_s:
                        continue
                    own = (lanes[row], quanta[row], entered_s[row], row)
                    needed = 1 if slot[row] == 0 else 0
                    has_block = True
                    while has_block and total - used < max(needed, limits[HEADROOM]):
                        victim = own
                        for other in decoding:
                            if placed_tick[other] != tick:
                                one = (lanes[other], quanta[other], entered_s[other], other)
                                if one > victim:
                                    victim = one
                        for one in prefilling:
                            if placed_tick[one[3]] != tick and one > victim:
                                victim = one
                        gone = victim[3]
                        if left[gone] > 0:
                            prefilling.remove(victim)
                            used -= ceil_div(context[gone], size)
                        else:
                            decoding.remove(gone)
                            counts[lanes[gone]] -= 1
                            growth[lanes[gone]] -= slot[gone] == 0
                            used -= ceil_div(context[gone] - 1, size)
                        has_block = gone != row
                        evicted_s[gone] = now_s
                        preemptions[gone] += 1
                        evictions += 1
                        heappush(waiting, victim)
                    if has_block:
                        used += needed
                        budget -= 1
                        emitting[num_decodes] = row
                        placed_tick[row] = tick
                        num_decodes += 1
            for one in prefilling:
                if one[0] == lane and budget > 0:
                    row = one[3]
                    placed_tick[row] = tick
                    chunk_rows[num_chunks] = row
                    chunks[num_chunks, 0] = context[row] - left[row]
                    chunks[num_chunks, 1] = min(left[row], budget)
                    budget -= chunks[num_chunks, 1]
                    num_chunks += 1

        num_live = len(waiting) + len(prefilling) + len(decoding)
        if num_decodes + num_chunks == 0 or evictions > MAX_EVICTIONS_PER_REQUEST * num_live:
            break
        decode_context = 0
        for row in emitting[:num_decodes]:
            decode_context += context[row]
        for row in chunk_rows[:num_chunks]:
            if np.isnan(scheduled_s[row]):
                scheduled_s[row] = now_s
        duration_s = step_s(
            kind, numbers, dense, decode, prefill, num_decodes, decode_context, chunks, num_chunks
        )
        if not duration_s > 0:
            break
        now_s = now_s + duration_s
        ticks.append(now_s)

        num_emitting = num_decodes
        for i in range(num_chunks):
            row = chunk_rows[i]
            left[row] -= chunks[i, 1]
            if left[row] == 0:
                decoding.append(row)
                emitting[num_emitting] = row
                num_emitting += 1
        if num_emitting > num_decodes:
            prefilling = [one for one in prefilling if left[one[3]] > 0]
        if num_emitting:
            evictions = 0
        for i in range(num_emitting):
            row = emitting[i]
            if last_tick[row] != tick - 1:
                if last_tick[row] >= 0:
                    runs.append((row, first_tick[row], last_tick[row]))
                first_tick[row] = tick
            last_tick[row] = tick
            context[row] += 1
            slot[row] += 1
            if slot[row] == size:
                slot[row] = 0
            generated = context[row] - prompt[row]
            if generated == 1:
                first_token_s[row] = now_s
            if generated == output[row]:
                finished_s[row] = now_s
                decoding.remove(row)
                used -= ceil_div(context[row] - 1, size)
                runs.append((row, first_tick[row], tick))
            elif i >= num_decodes or generated >= ask_at[row] or generated == think_tokens[row]:
                answers = phases[row] == ANSWERING or generated >= think_tokens[row]
                phase, used_up, ask_at[row] = _queue_of(
                    generated, think_tokens[row], answers, demoted_at[row], limits[QUANTUM]
                )
                if phase != phases[row] or used_up != quanta[row]:
                    entered_s[row] = now_s
                phases[row], quanta[row], lanes[row] = phase, used_up, phase != REASONING
    columns = scheduled_s, first_token_s, finished_s, preemptions
    return status, columns, np.array(ticks), joined_runs(runs, count_all)
