"""Phasor: routing, defragmentation and pool sizes by one measure, virtual freeness."""

from collections.abc import Iterator, Sequence
from functools import partial
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

from lengthwise.errors import require
from lengthwise.settings import Count, Positive, Range, settings
from scheduler_adapters.placement import InstanceId, Move, Placement, SetRole, of_role, with_room
from scheduler_adapters.placements.freeness import PAPER, Freeness, PrefillCost, read_prefill_cost
from scheduler_adapters.views import InstanceView, RequestView

Serving = Literal["prefill", "decode"]
_HIGH_REMAINDER = 0.25
"""Share of a large request's blocks from which a remainder is high."""


@settings
class PhasorSettings:
    """Settings of the paper, and settings for what the paper leaves open."""

    cost: PrefillCost | str | Path = "paper"
    """Prefill cost: the file written by `python -m training calibrate`, or "paper" for the paper's
    constants, whose unit is a guess. `simulate` calibrates it on its own instance by default."""
    force_cost: bool = False
    """Accept a file with a poor fit."""
    ttft_slo_s: Positive = 0.4
    """Budget of a prefill queue."""
    theta_frag: Annotated[float, Range(below=1)] = 0.168
    """Phi below which a decode instance is defragmented; -Infinity: never."""
    theta_flow: Annotated[float, Range(above=0, below=1)] = 0.62
    """Share of the other pool's mean Phi below which a pool gets an instance."""
    cool_down_ticks: Count = 20
    """Ticks for which a promoted instance keeps its role."""
    output_tokens: Count = 256
    """Expected output of a request without a prediction."""
    idle: Literal["standby", "mixed"] = "standby"
    """Work of elastic instances outside the pools: none, or prefills and decodes."""
    routing: Literal["freeness", "queue-length"] = "freeness"
    """queue-length: by the number of requests, Phasor without Phi."""


class Phasor(Placement):
    """New prompts to the freest prefill instance, decodes to the freest decode instance with room.

    The first roles are the pools: prefill, decode, and both for elastic instances, which serve no
    pool until it runs short. At ticks, requests are migrated live from fragmented decode instances,
    and elastic instances are promoted and recalled.

    Args:
        tick_s: time between two ticks (dt).
        settings: fields of `PhasorSettings`.

    Source: Phasor, its three control loops (micro, meso, macro). Ours: micro ties go by tokens,
    macro runs before meso, a remainder is high from a quarter of a large request on.
    """

    name = "phasor"
    watches_prefills = True

    def __init__(self, *, tick_s: float = 0.05, **settings: Any) -> None:
        require("tick_s", tick_s, 0 < tick_s < inf, "seconds above 0")
        own = self.settings = PhasorSettings(**settings)
        cost = PAPER if own.cost == "paper" else own.cost
        if not isinstance(cost, PrefillCost):
            cost = read_prefill_cost(cost, force=own.force_cost)
            self.made_for = cost.model, cost.device
        self.tick_s = tick_s
        self.freeness = Freeness(cost, ttft_slo_s=own.ttft_slo_s, output_tokens=own.output_tokens)
        self.promoted: dict[InstanceId, float] = {}
        """Elastic instances that serve a pool, with the times of their promotions."""
        self.leaving: set[InstanceId] = set()
        """Promoted instances that were recalled and still have work."""

    def place(self, request: RequestView, instances: Sequence[InstanceView]) -> InstanceId:
        """Micro: the prefill instance with the highest Phi, then the fewest tokens."""
        self.freeness.note(request)
        pool = self._serving("prefill", instances) or instances
        return min(pool, key=partial(self._order, "prefill")).instance_id

    def at_prefill_end(
        self, request: RequestView, instance: InstanceId, instances: Sequence[InstanceView]
    ) -> InstanceId | None:
        """The decode instance with the highest Phi among those with blocks for the context."""
        freeness = self.freeness
        if not (fitting := with_room(request, self._serving("decode", instances))):
            freeness.waits(request.context_tokens + request.expected_tokens(freeness.output_tokens))
            return None
        freeness.waits(None)
        return min(fitting, key=partial(self._order, "decode")).instance_id

    def _order(self, role: Serving, view: InstanceView) -> tuple[float, ...]:
        if self.settings.routing == "queue-length":
            return view.num_requests, view.instance_id
        # Of a mixed instance the lesser Phi: otherwise its decodes wait for too many prompts.
        parts = ("prefill", "decode") if view.role == "both" else (role,)
        phi = min(getattr(self.freeness, part)(view) for part in parts)
        return -phi, view.prefill_tokens if role == "prefill" else 0, view.instance_id

    def tick(self, now_s: float, instances: Sequence[InstanceView]) -> list[Move | SetRole]:
        """Macro, then meso, with one live migration at an instance at a time."""
        busy = {view.instance_id for view in instances if view.num_migrating}
        return [
            *self._size_pools(now_s, instances),
            *self._end_roles(instances, busy),
            *self._defragment(instances, busy),
        ]

    def _size_pools(
        self, now_s: float, instances: Sequence[InstanceView]
    ) -> Iterator[Move | SetRole]:
        """Promote an elastic instance to the pool that runs short; recall an unneeded instance.

        The paper leaves the end open. Here a recalled instance gets no requests; its decodes move.
        """
        prefills, decodes = self._pool("prefill", instances), self._pool("decode", instances)
        if not (prefills and decodes):
            return
        short = self._short(prefills, decodes, instances)
        # Half a tick less, as sums of ticks are rounded.
        cool_down_s = (self.settings.cool_down_ticks - 0.5) * self.tick_s
        if short:
            back = [v for v in instances if v.instance_id in self.leaving and v.role == short]
            idle = [v for v in instances if v.role == "both"]
            for view in (back or idle)[:1]:
                self.leaving.discard(view.instance_id)
                self.promoted[view.instance_id] = now_s
                if view in idle:
                    yield SetRole(instance=view.instance_id, role=short)
        for view in prefills + decodes:
            if now_s - self.promoted.get(view.instance_id, inf) < cool_down_s:
                continue
            # It is recalled if its pool would not get it now.
            rest_p, rest_d = ([v for v in pool if v is not view] for pool in (prefills, decodes))
            if rest_p and rest_d and self._short(rest_p, rest_d, instances) != view.role:
                self.leaving.add(view.instance_id)
                break

    def _short(
        self,
        prefills: Sequence[InstanceView],
        decodes: Sequence[InstanceView],
        instances: Sequence[InstanceView],
    ) -> Serving | None:
        """Return the pool that is to get an instance, by the paper's rule also below 0.

        The decode pool is short while a prefilled request finds no place: all prompts behind it
        wait for decodes. The paper does not name this case. Phi of a full decode pool is about 0,
        and Phi of a prefill queue has no limit, so a full decode pool would never get an instance.
        """
        if any(view.prefilled_blocks for view in instances):
            return "decode"
        theta = self.settings.theta_flow
        phi_p = fmean(map(self.freeness.prefill, prefills))
        phi_d = fmean(map(self.freeness.decode, decodes))
        if phi_p < theta * phi_d:
            return "prefill"
        return "decode" if phi_d < theta * phi_p else None

    def _end_roles(
        self, instances: Sequence[InstanceView], busy: set[InstanceId]
    ) -> Iterator[Move | SetRole]:
        """Empty the recalled instances; an empty one is elastic again."""
        for view in [v for v in instances if v.instance_id in self.leaving]:
            if not (view.num_requests or view.used_blocks or view.booked_blocks):
                self.leaving.discard(view.instance_id)
                del self.promoted[view.instance_id]
                yield SetRole(instance=view.instance_id, role="both")
            elif view.role == "decode":
                least = max(0.0, self.settings.theta_frag)
                yield from self._move_out(view, self._pool("decode", instances), least, busy)

    def _defragment(
        self, instances: Sequence[InstanceView], busy: set[InstanceId]
    ) -> Iterator[Move | SetRole]:
        """Move the shortest requests out of decode instances with much unusable memory.

        The paper leaves open which requests move, and how many at a time.
        """
        theta, freeness = self.settings.theta_frag, self.freeness
        pool = self._pool("decode", instances)
        for view in sorted(pool, key=freeness.decode):
            high = _HIGH_REMAINDER * freeness.large_blocks(view)
            if freeness.decode(view) < theta and freeness.remainder(view) >= high:
                yield from self._move_out(view, pool, theta, busy)

    def _move_out(
        self, view: InstanceView, pool: Sequence[InstanceView], least: float, busy: set[InstanceId]
    ) -> Iterator[Move]:
        """Move the request with the least KV to the freest instance, whose Phi stays `least`."""
        phi = self.freeness.decode
        others = [v for v in pool if v is not view and v.instance_id not in busy]
        best = max(others, key=lambda v: (phi(v), -v.instance_id), default=None)
        if view.instance_id in busy or best is None or phi(best) < least:
            return
        if not (decodes := view.decodes()):
            return
        request = min(decodes, key=lambda one: (one.context_tokens, one.number))
        if phi(best, best.blocks_of(request.context_tokens)) >= least:
            busy |= {view.instance_id, best.instance_id}
            yield Move(request_id=request.request_id, to=best.instance_id, how="live")

    def _pool(self, role: Serving, instances: Sequence[InstanceView]) -> list[InstanceView]:
        return [v for v in instances if v.role == role and v.instance_id not in self.leaving]

    def _serving(self, role: Serving, instances: Sequence[InstanceView]) -> list[InstanceView]:
        """Return the instances for new requests; any elastic instance if the pool is empty."""
        pool = self._pool(role, instances)
        if self.settings.idle == "mixed":
            pool += [view for view in instances if view.role == "both"]
        return pool or of_role(role, instances)
