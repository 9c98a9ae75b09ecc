"""Phasor: routing, defragmentation and pool sizes by one measure, virtual freeness."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from lengthwise.errors import require
from scheduler_adapters.placement import InstanceId, Move, Placement, SetRole, of_role
from scheduler_adapters.placements.freeness import PAPER, Freeness, PrefillCost, read_prefill_cost
from scheduler_adapters.views import InstanceView, RequestView, require_at_least

Serving = Literal["prefill", "decode"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PhasorSettings:
    """What the paper states, and one setting for each thing that it leaves open."""

    cost: PrefillCost | str | Path = "paper"
    """Of a prefill: the file that `python -m training calibrate` wrote, or "paper": its constants,
    whose unit is a guess."""
    force_cost: bool = False
    """Whether to take a file whose fit is poor."""
    parameter_ratio: float | None = None
    """P_m, parameters of the served model / those of the file's; None: the file is of this model,
    which is checked."""
    ttft_slo_s: float = 0.4
    """Budget of a prefill queue."""
    theta_frag: float = 0.168
    """A decode instance below this is defragmented; -Infinity: never."""
    theta_flow: float = 0.62
    """A pool whose mean is below this share of the other's gets an instance."""
    cool_down_ticks: int = 20
    """An instance keeps its role so long; the time between two promotions, too."""
    high_fragment: float = 0.25
    """Share of a large request's blocks from which fragments are high."""
    output_tokens: int = 256
    """Expected output of a request, where none is predicted."""
    gap: float = 0.0
    """Pools whose means differ by less are left alone."""
    idle: Literal["standby", "mixed"] = "standby"
    """What elastic instances do meanwhile: nothing, or both, each as far as the other leaves them
    free."""
    recall: Literal["unneeded", "opposite", "never"] = "unneeded"
    """When one goes back: if its pool would not get it now; if the other pool would not get one
    after that; or not at all."""
    routing: Literal["freeness", "queue-length"] = "freeness"
    """queue-length: by the number of requests, Phasor without Phi."""
    migration: Literal["live", "copy"] = "live"
    """How requests leave an instance: while they decode, or stopped until their KV is copied."""

    def __post_init__(self) -> None:
        require_at_least(1, cool_down_ticks=self.cool_down_ticks, output_tokens=self.output_tokens)
        require("ttft_slo_s", self.ttft_slo_s, self.ttft_slo_s > 0, "seconds above 0")
        require("theta_flow", self.theta_flow, 0 < self.theta_flow < 1, "a share in (0, 1)")
        require("theta_frag", self.theta_frag, self.theta_frag < 1, "a number below 1")
        ratio = self.parameter_ratio
        require("parameter_ratio", ratio, ratio is None or 0 < ratio < inf, "a number above 0")
        for name, known in _CHOICES.items():
            chosen = getattr(self, name)
            require(name, repr(chosen), chosen in known, "one of " + ", ".join(known))


_CHOICES = {
    "idle": ("standby", "mixed"),
    "recall": ("unneeded", "opposite", "never"),
    "routing": ("freeness", "queue-length"),
    "migration": ("live", "copy"),
}


class Phasor(Placement):
    """New prompts to the freest prefill instance, decodes to the freest decode instance with room.

    Roles at the start are the pools: prefill, decode, and both for elastic instances, which serve
    no pool until it runs short. At ticks, requests leave fragmented decode instances while they
    decode, and elastic instances are promoted and recalled.

    Args:
        tick_s: time between two ticks (dt).
        settings: those of `PhasorSettings`.

    Source: Phasor, its three control loops (micro, meso, macro).
    """

    name = "phasor"
    watches_prefills = True

    def __init__(self, *, tick_s: float = 0.05, **settings: Any) -> None:
        require("tick_s", tick_s, 0 < tick_s < inf, "seconds above 0")
        own = self.settings = PhasorSettings(**settings)
        cost = PAPER if own.cost == "paper" else own.cost
        if not isinstance(cost, PrefillCost):
            cost = read_prefill_cost(cost, force=own.force_cost)
            self.made_for = (None if own.parameter_ratio else cost.model, cost.device)
        self.tick_s = tick_s
        self.freeness = Freeness(
            cost,
            ttft_slo_s=own.ttft_slo_s,
            parameter_ratio=own.parameter_ratio or 1.0,
            output_tokens=own.output_tokens,
        )
        self.promoted: dict[InstanceId, float] = {}
        """Elastic instances that serve a pool, and since when."""
        self.leaving: set[InstanceId] = set()
        """Of these, the recalled that have not finished their work."""
        self.last_promotion_s = -inf

    def place(self, request: RequestView, instances: Sequence[InstanceView]) -> InstanceId:
        """Micro: the prefill instance with the highest Phi, then the fewest tokens."""
        self.freeness.note(request)

        def rank(view: InstanceView) -> tuple[float, ...]:
            if self.settings.routing == "queue-length":
                return view.num_requests, view.instance_id
            return -self._phi("prefill", view), view.prefill_tokens, view.instance_id

        return min(self._serving("prefill", instances) or instances, key=rank).instance_id

    def at_prefill_end(
        self, request: RequestView, instance: InstanceId, instances: Sequence[InstanceView]
    ) -> InstanceId | None:
        """The decode instance with the highest Phi among those with blocks for the context."""
        context, freeness = request.context_tokens, self.freeness
        pool = self._serving("decode", instances)
        fitting = [view for view in pool if view.unclaimed_blocks >= view.blocks_of(context)]
        if not fitting:
            freeness.waits(context + freeness.expected_output(request))
            return None
        freeness.waits(None)

        def rank(view: InstanceView) -> tuple[float, InstanceId]:
            by_queue = self.settings.routing == "queue-length"
            return view.num_requests if by_queue else -self._phi("decode", view), view.instance_id

        return min(fitting, key=rank).instance_id

    def _phi(self, role: Serving, view: InstanceView) -> float:
        """Return Phi for one part; of an elastic instance, which has both, the lesser of the two.

        Else its decodes would wait for each prompt that goes there because few prompts are there.
        """
        if role == "prefill" or view.role == "both":
            prefill = self.freeness.prefill(view)
            return prefill if view.role != "both" else min(prefill, self.freeness.decode(view))
        return self.freeness.decode(view)

    def tick(self, now_s: float, instances: Sequence[InstanceView]) -> list[Move | SetRole]:
        """Macro, then meso; one live migration at an instance at a time."""
        busy = {view.instance_id for view in instances if view.num_migrating}
        return [
            *self._size_pools(now_s, instances),
            *self._end_roles(instances, busy),
            *self._defragment(instances, busy),
        ]

    def _size_pools(
        self, now_s: float, instances: Sequence[InstanceView]
    ) -> Iterator[Move | SetRole]:
        """Promote an elastic instance to the pool that runs short; recall one that is not needed.

        The paper does not say how roles end: a recalled instance gets nothing new, and decodes
        leave it while they run.
        """
        prefills, decodes = self._pool("prefill", instances), self._pool("decode", instances)
        if not (prefills and decodes):
            return
        phi_p = fmean(map(self.freeness.prefill, prefills))
        phi_d = fmean(map(self.freeness.decode, decodes))
        # Half a tick less, as sums of ticks are rounded.
        cool_down_s = (self.settings.cool_down_ticks - 0.5) * self.tick_s
        short = self._short(phi_p, phi_d)
        if short and now_s - self.last_promotion_s >= cool_down_s:
            back = [v for v in instances if v.instance_id in self.leaving and v.role == short]
            idle = [v for v in instances if v.role == "both"]
            for view in (back or idle)[:1]:
                self.leaving.discard(view.instance_id)
                self.promoted[view.instance_id] = self.last_promotion_s = now_s
                if view in idle:
                    yield SetRole(instance=view.instance_id, role=short)
        for view in prefills + decodes:
            since_s = self.promoted.get(view.instance_id, inf)
            if now_s - since_s >= cool_down_s and self._may_go(view, prefills, decodes):
                self.leaving.add(view.instance_id)
                break

    def _short(self, phi_p: float, phi_d: float) -> Serving | None:
        """Return the pool that is to get an instance. Where both are below 0 it is still one."""
        theta = self.settings.theta_flow
        if abs(phi_p - phi_d) < self.settings.gap:
            return None
        if phi_p < theta * phi_d:
            return "prefill"
        return "decode" if phi_d < theta * phi_p else None

    def _may_go(
        self, view: InstanceView, prefills: list[InstanceView], decodes: list[InstanceView]
    ) -> bool:
        """Return whether a promoted instance may be recalled, by the means without it."""
        rest_p, rest_d = ([v for v in pool if v is not view] for pool in (prefills, decodes))
        if self.settings.recall == "never" or not (rest_p and rest_d):
            return False
        phi_p = fmean(map(self.freeness.prefill, rest_p))
        phi_d = fmean(map(self.freeness.decode, rest_d))
        short = self._short(phi_p, phi_d)
        if self.settings.recall == "unneeded":
            return short != view.role
        return short in (None, view.role)

    def _end_roles(
        self, instances: Sequence[InstanceView], busy: set[InstanceId]
    ) -> Iterator[Move | SetRole]:
        """Let recalled instances finish their work; one that has none left is idle again."""
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
        """Let the shortest requests leave decode instances with much unusable memory.

        One migration at an instance at a time, which the paper leaves open, as it does which
        requests go.
        """
        theta, phi = self.settings.theta_frag, self.freeness.decode
        pool = self._pool("decode", instances)
        for view in sorted(pool, key=phi):
            least = self.settings.high_fragment * self.freeness.large_blocks(view)
            is_high = self.freeness.fragment(view) >= least
            if phi(view) < theta and is_high:
                yield from self._move_out(view, pool, theta, busy)

    def _move_out(
        self,
        view: InstanceView,
        pool: Sequence[InstanceView],
        least: float,
        busy: set[InstanceId],
    ) -> Iterator[Move]:
        """Move the request with the least KV to the freest instance, if it stays above `least`."""
        phi = self.freeness.decode
        others = [v for v in pool if v is not view and v.instance_id not in busy]
        best = max(others, key=lambda v: (phi(v), -v.instance_id), default=None)
        if view.instance_id in busy or best is None or phi(best) < least:
            return
        if not (decodes := view.decodes()):
            return
        request = min(decodes, key=lambda one: (one.context_tokens, one.number))
        if phi(best, best.blocks_of(request.context_tokens)) >= least:
            how = self.settings.migration
            busy |= {view.instance_id, best.instance_id}
            yield Move(request_id=request.request_id, to=best.instance_id, how=how)

    def _pool(self, role: Serving, instances: Sequence[InstanceView]) -> list[InstanceView]:
        """Return the instances that serve a pool and stay there."""
        leaving = self.leaving
        return [v for v in instances if v.role == role and v.instance_id not in leaving]

    def _serving(self, role: Serving, instances: Sequence[InstanceView]) -> list[InstanceView]:
        """Return those that new work may go to; where a pool is empty that is any elastic one."""
        pool = self._pool(role, instances)
        if self.settings.idle == "mixed":
            pool += [view for view in instances if view.role == "both"]
        return pool or of_role(role, instances)
