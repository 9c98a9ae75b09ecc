"""The step rules of the simulated engine, compiled with numba: one loop for all policies.

A step in which every decode has a token is a common step. It changes no record of a decode: fields
that would change in each of them are stored less the number of common steps.
"""

from heapq import heapify, heappop, heappush

import numpy as np

from scheduler_adapters.simulator.compiled.quanta import displace, enter_level
from scheduler_adapters.simulator.compiled.residents import (
    GUARDED,
    LANE,
    LAST,
    NO_LIMIT,
    QUANTA,
    SLAI,
    ceil_div,
    count_decode,
    enter_queue,
    evict,
    insert,
    jit,
    last_resident,
)  # fmt: skip
from scheduler_adapters.simulator.compiled.slai import CRITICAL, DEFERRED, needs_ranks, rank_decodes
from scheduler_adapters.simulator.compiled.step_times import step_s
from scheduler_adapters.simulator.engine.memory import MAX_EVICTIONS_PER_REQUEST


@jit
def _cost(padded, num_chunks, longest, tokens):
    """Return the budget that a prefill of `tokens` takes beside chunks up to `longest`."""
    if not padded:
        return tokens
    return (num_chunks + 1) * max(tokens, longest) - num_chunks * longest


@jit
def _chunk(limits, state, tokens):
    """Return the part of `tokens` that a further prefill computes in this step."""
    if (state.decodes and not limits.mixed) or state.chunks >= limits.max_prefills:
        return 0
    if limits.whole_prompts:
        cost = _cost(limits.padded_tokens, state.chunks, state.longest, tokens)
        return tokens if state.chunks == 0 or cost <= state.budget else 0
    return max(0, min(tokens, limits.chunk, state.budget))


@jit
def _place_decodes(requests, lanes, growing, limits, waiting, prefilling, decoding, state, lane):
    """Place decodes one by one in order, and evict requests where blocks are missing."""
    size = limits.block_tokens
    ranks = [(requests[i].level, requests[i].turn, i) for i in decoding if requests[i].lane == lane]
    heapify(ranks)
    while len(ranks) and state.budget > 0 and state.decodes < limits.max_decodes:
        rank = heappop(ranks)
        request = requests[rank[2]]
        needed = 1 if request.bucket == state.common % size else 0
        while not request.waits and limits.blocks - state.used < max(needed, limits.headroom):
            # All decodes and chunks of the step so far have lower ranks.
            victim = rank
            if limits.kind != SLAI:
                victim = last_resident(requests, prefilling, decoding, rank, LAST)
            elif len(prefilling) > state.continued:
                victim = prefilling[-1]
            evict(requests, lanes, growing, limits, waiting, prefilling, decoding, state, victim[2])
        if not request.waits:
            request.placed_tick = state.tick
            state.used += needed
            state.budget -= 1
            state.decodes += 1
            state.decode_context += request.context + state.common


@jit
def _extend_run(runs, request, row, last_tick, tick):
    """Record a token at `tick`; the request's previous token was at `last_tick`."""
    if last_tick != tick - 1:
        if last_tick >= 0:
            runs.append((row, request.first_tick, last_tick))
        request.first_tick = tick


@jit
def _emit_placed(requests, lanes, growing, limits, decoding, state, runs):
    """Give a token to each decode in the step."""
    for row in decoding:
        request = requests[row]
        if state.tick in (request.placed_tick, lanes[request.lane].placed_tick):
            _extend_run(runs, request, row, max(request.own_tick, state.common_tick), state.tick)
            request.own_tick = state.tick
            request.context += 1
            lanes[request.lane].context += 1
            growing[request.lane, request.bucket] -= 1
            request.bucket = (request.bucket or limits.block_tokens) - 1
            growing[request.lane, request.bucket] += 1
            request.due -= 1
            state.soonest = min(state.soonest, request.due)


@jit
def _finish(request, row, limits, state, runs):
    state.used -= ceil_div(request.end - 1, limits.block_tokens)
    request.finished_s = state.now_s
    runs.append((row, request.first_tick, state.tick))


@jit
def _update_due(requests, lanes, growing, limits, decoding, state, runs):
    """Finish the decodes that are complete, and compute ranks anew that end here."""
    state.soonest = NO_LIMIT
    i = len(decoding)
    while i > 0:
        i -= 1
        row = decoding[i]
        request = requests[row]
        if request.due <= state.common:
            count_decode(lanes, growing, request, -1)
            context = request.context + state.common
            if context == request.end:
                _finish(request, row, limits, state, runs)
                decoding[i] = decoding[-1]
                decoding.pop()
                continue
            generated = context - request.prompt
            until = enter_level(request, limits.quantum_tokens, generated, state.now_s)
            request.due = until - request.context
            count_decode(lanes, growing, request, 1)
        state.soonest = min(state.soonest, request.due)


@jit
def _sorted_runs(runs, num_requests):
    """Return the runs (R, 3) in order of row; the runs of one row keep their order."""
    places = np.zeros(num_requests + 1, np.int64)
    for row, _, _ in runs:
        places[row + 1] += 1
    places = np.cumsum(places)
    columns = np.empty((len(runs), 3), np.int64)
    for row, first, last in runs:
        columns[places[row], 0], columns[places[row], 1], columns[places[row], 2] = row, first, last
        places[row] += 1
    return columns


@jit
def run(requests, state, limits, latency):
    """Run all requests; their results become fields of `requests` (N,).

    The caller keeps the records `state` and `limits`: numba counts no references to records.

    Returns:
        Whether the run is complete, the ticks (K,) in seconds, and the runs of tokens (R, 3).
    """
    # Arrays and lists in a call cost reference counts, even inlined: in parts the loop takes up to
    # 3.5 times as long. So only what few steps need is called, from above.
    model, numbers, dense, decode, prefill = latency
    kind, blocks, size = limits.kind, limits.blocks, limits.block_tokens
    waiting = [(0.0, 0.0, np.int64(0))][:0]  # heap of (key, turn, row)
    yielding = [(np.inf, np.int64(0))]  # heap of (admissions from which on it is first, row)
    prefilling = waiting[:0]  # ranks, ascending
    decoding = [np.int64(0)][:0]  # rows in any order
    lanes = np.zeros(3, LANE)
    growing = np.zeros((3, size), np.int64)  # decodes by lane and bucket
    chunks = np.zeros((limits.seats, 3), np.int64)  # tokens before, tokens, row
    runs = [(np.int64(0), np.int64(0), np.int64(0))][:0]
    ticks = [0.0][:0]
    margins = [0.0][:0]  # SLAI's offset by tick, in seconds
    state.common_tick, state.soonest = -2, NO_LIMIT
    coming, starving, mean_s = 0, 0, 0.0
    while True:
        if len(waiting) + len(prefilling) + len(decoding) == 0:
            while coming < len(requests) and requests[coming].rejected:
                coming += 1
            if coming == len(requests):
                return True, np.array(ticks), _sorted_runs(runs, len(requests))
            state.now_s = max(state.now_s, requests[coming].arrival_s)
        while coming < len(requests) and requests[coming].arrival_s <= state.now_s:
            if not requests[coming].rejected:
                if kind == GUARDED:
                    state.waiting += 1
                    limit = np.floor(limits.at_least + limits.times * state.waiting)
                    heappush(yielding, (state.admissions + limit, coming))
                if kind == QUANTA:
                    enter_level(requests[coming], limits.quantum_tokens, 0, state.now_s)
                enter_queue(waiting, requests[coming], coming, state.now_s)
            coming += 1
        while starving < coming and requests[starving].starves_s <= state.now_s:
            if requests[starving].waits and requests[starving].key > -np.inf:
                enter_queue(waiting, requests[starving], starving, state.now_s)
            starving += 1

        state.tick, state.budget = len(ticks), limits.budget
        state.decodes = state.decode_context = 0
        state.chunks = state.continued = state.longest = 0
        phase = state.common % size
        if kind == SLAI and needs_ranks(
            limits,
            state,
            len(prefilling),
            len(decoding),
            growing[CRITICAL, phase] + growing[DEFERRED, phase],
            requests[waiting[0][2]].context if len(waiting) else NO_LIMIT,
        ):
            rank_decodes(requests, lanes, growing, decoding, state, ticks, margins)
        elif kind == QUANTA and len(waiting):
            displace(requests, lanes, growing, limits, waiting, prefilling, decoding, state)
        for i in range(3):
            lane = lanes[i]
            if lane.count and (state.chunks == 0 or limits.mixed):
                needed = growing[i, phase]
                if (
                    lane.count <= min(state.budget, limits.max_decodes - state.decodes)
                    and state.used + needed + limits.headroom <= blocks
                ):
                    lane.placed_tick = state.tick
                    state.used += needed
                    state.budget -= lane.count
                    state.decodes += lane.count
                    state.decode_context += lane.context + lane.count * state.common
                else:
                    _place_decodes(
                        requests, lanes, growing, limits, waiting, prefilling, decoding, state, i
                    )
            while True:
                is_new = state.continued == len(prefilling)
                if not is_new:
                    row = prefilling[state.continued][2]
                elif len(waiting) and i == limits.prefill_lane:
                    key, _, row = waiting[0]
                    if key != requests[row].key:
                        heappop(waiting)  # it has starved since
                        continue
                    if kind == GUARDED and yielding[0][0] <= state.admissions:
                        first = requests[yielding[0][1]]
                        if first.waits and first.key > -np.inf:
                            first.key = -np.inf
                            heappush(waiting, (first.key, first.turn, yielding[0][1]))
                        heappop(yielding)
                        continue
                else:
                    break
                request = requests[row]
                tokens = _chunk(limits, state, request.left)
                if tokens == 0 or request.lane != i:
                    break
                if is_new:
                    needed = ceil_div(request.context, size)
                    num_new = state.chunks - state.continued
                    if (
                        len(prefilling) + len(decoding) + num_new >= limits.seats
                        or num_new >= limits.max_admissions
                        or state.used + needed + limits.watermark > blocks
                    ):
                        break
                    heappop(waiting)
                    request.waits = False
                    state.used += needed
                    if kind == SLAI:
                        request.turn = state.admissions
                    state.admissions += 1
                    state.waiting -= 1
                    if kind == GUARDED:
                        request.key = -np.inf  # first again after an eviction
                else:
                    state.continued += 1
                if np.isnan(request.scheduled_s):
                    request.scheduled_s = state.now_s
                state.budget -= _cost(limits.padded_tokens, state.chunks, state.longest, tokens)
                state.longest = max(state.longest, tokens)
                chunk = chunks[state.chunks]
                chunk[0], chunk[1], chunk[2] = request.context - request.left, tokens, row
                state.chunks += 1

        num_live = len(waiting) + len(prefilling) + len(decoding)
        is_endless = state.evictions > MAX_EVICTIONS_PER_REQUEST * num_live
        if state.decodes + state.chunks == 0 or is_endless:
            break
        duration_s = step_s(
            *(model, numbers, dense, decode, prefill),
            *(state.decodes, state.decode_context, chunks, state.chunks),
        )
        if not duration_s > 0:
            break
        state.now_s += duration_s
        ticks.append(state.now_s)

        if state.decodes:
            state.evictions = 0
        if state.decodes == len(decoding):
            if state.common_tick != state.tick - 1:
                for row in decoding:
                    last_tick = max(requests[row].own_tick, state.common_tick)
                    _extend_run(runs, requests[row], row, last_tick, state.tick)
            state.common += 1
            state.common_tick = state.tick
        elif state.decodes:
            _emit_placed(requests, lanes, growing, limits, decoding, state, runs)
        if state.soonest <= state.common:
            _update_due(requests, lanes, growing, limits, decoding, state, runs)
        for i in range(state.chunks):
            row = chunks[i, 2]
            request = requests[row]
            request.left -= chunks[i, 1]
            if request.left > 0:
                if i >= state.continued:
                    insert(prefilling, (request.level, request.turn, row))
                continue
            if i < state.continued:
                prefilling.remove((request.level, request.turn, row))
            state.evictions = 0
            _extend_run(runs, request, row, request.own_tick, state.tick)
            request.own_tick = state.tick
            request.context += 1
            if request.context == request.prompt + 1:
                request.first_token_s = state.now_s
            if request.context == request.end:
                _finish(request, row, limits, state, runs)
                continue
            until = request.end
            if kind == QUANTA:
                generated = request.context - request.prompt
                until = enter_level(request, limits.quantum_tokens, generated, state.now_s)
            else:
                request.lane = limits.decode_lane
            request.bucket = (state.common + 1 - request.context) % size
            request.context -= state.common
            request.due = until - request.context
            state.soonest = min(state.soonest, request.due)
            count_decode(lanes, growing, request, 1)
            decoding.append(row)
        if kind == SLAI:
            mean_s += (duration_s - mean_s) / len(ticks)
            is_full = state.used >= limits.memory_limit * limits.blocks
            margins.append(mean_s * (limits.offset_above if is_full else limits.offset_below))
    return False, np.array(ticks), _sorted_runs(runs, len(requests))
