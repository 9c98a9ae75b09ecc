"""Views of replicas: their newest reports, and this router's own decisions since.

Decisions are booked as in the simulated cluster, so a placement decides alike on both.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, Final

from scheduler_adapters.placement import Watch
from scheduler_adapters.routers.legs import Leg
from scheduler_adapters.views import InstanceView, RequestView, Role

log = logging.getLogger(__name__)

COUNTS: Final = frozenset({
    *("used_blocks", "total_blocks", "block_tokens", "used_host_blocks", "brought_blocks"),
    *("num_waiting", "num_prefilling", "num_reasoning", "num_answering", "num_thinking"),
    *("num_fresh_answering", "waiting_prompt_tokens", "stored_prompt_tokens", "booked_blocks"),
    *("prefill_tokens", "prefill_squares"),
})  # fmt: skip
"""Whole numbers of `InstanceView` that a report may hold."""
_BOOKING_S: Final = 10.0
"""Seconds after which a booking that no report has shown is void: its leg was lost."""


@dataclass(slots=True)
class Replica:
    """One replica as known to a router."""

    instance_id: int
    role: Role = "both"
    view: InstanceView | None = None
    """None without a valid report."""
    report_number: int = -1
    received_s: float = -inf
    fields: dict[str, Any] = field(default_factory=dict)
    """Fields of the view as reported."""
    bookings: dict[str, tuple[Leg, int, float]] = field(default_factory=dict)
    """Legs sent there that no report has shown yet, their numbers and times, by call."""

    @property
    def num_legs(self) -> int:
        """Legs in the newest report, and booked since."""
        legs = ("num_waiting", "num_reasoning", "num_answering")
        return len(self.bookings) + sum(int(self.fields.get(name, 0)) for name in legs)


class ReplicaViews:
    """Views by name of the replica.

    A booking ends with the report that shows its leg, with the leg, or after 10 s. The age of a
    report is counted from its receipt, so that clocks of machines need not agree. A report may name
    an age that it had already when it was made.
    """

    def __init__(self, watch: Watch | None, roles: Sequence[Role] = ()) -> None:
        self.watch, self.roles = watch, roles
        self.replicas: dict[str, Replica] = {}
        self.names: list[str] = []
        """Names by number of the instance."""
        self.num_invalid_reports = 0

    def update(self, router: str, reports: Mapping[str, Mapping[str, Any]], now_s: float) -> None:
        """Take the present replicas with their newest reports; others are forgotten."""
        for name in self.replicas.keys() - reports.keys():
            del self.replicas[name]
        for name in sorted(reports.keys() - self.replicas.keys()):
            self.replicas[name] = Replica(len(self.names))
            self.names.append(name)
        for name, report in reports.items():
            replica = self.replicas[name]
            if not report or report.get("number") == replica.report_number:
                continue
            if not is_valid(report):
                if not self.num_invalid_reports:
                    log.warning("report of replica %s is left out: %s", name, report)
                self.num_invalid_reports += 1
                continue
            replica.fields = {key: report[key] for key in COUNTS & report.keys()}
            if replica.report_number < 0 and report.get("rank", inf) < len(self.roles):
                replica.role = self.roles[report["rank"]]
            replica.fields["paced_until_s"] = now_s + report.get("paced_for_s", inf)
            decodes = tuple(
                RequestView(name, n, 0.0, prompt, generated_tokens=generated)
                for n, (name, prompt, generated) in enumerate(report.get("decodes", ()))
            )
            replica.fields["decodes"] = partial(tuple, decodes)
            replica.report_number = report["number"]
            replica.received_s = now_s - report.get("age_s", 0.0)
            arrived = report.get("arrived", {}).get(router, 0)
            replica.bookings = {
                call: (leg, number, made_s)
                for call, (leg, number, made_s) in replica.bookings.items()
                if number > arrived and now_s - made_s <= _BOOKING_S
            }
            self._show(replica)

    def _show(self, replica: Replica) -> None:
        """Make the view anew: the newest report, and the bookings."""
        replica.view = view = InstanceView(
            instance_id=replica.instance_id,
            now_s=replica.received_s,
            role=replica.role,
            **replica.fields,
        )
        for leg, _, _ in replica.bookings.values():
            self._add(view, leg)

    def fresh(self, names: Sequence[str], since_s: float) -> list[InstanceView]:
        """Return the views of these replicas with a report received since then."""
        replicas = [self.replicas[name] for name in names if name in self.replicas]
        return [one.view for one in replicas if one.view and one.received_s >= since_s]

    def set_role(self, instance_id: int, role: Role) -> None:
        """Change the role of an instance, here and in its view."""
        replica = self.replicas[self.names[instance_id]]
        replica.role = role
        self._show(replica)

    def book(self, name: str, call: str, leg: Leg, number: int, now_s: float) -> None:
        """Book the leg of a call at its replica; a leg that stays only changes its phase."""
        if (replica := self.replicas.get(name)) is not None and leg.current != name:
            replica.bookings[call] = leg, number, now_s
            if replica.view is not None:
                self._add(replica.view, leg)

    def cancel(self, call: str) -> None:
        """Remove the booking of a call that has ended, or is sent elsewhere."""
        for replica in self.replicas.values():
            if replica.bookings.pop(call, None) is not None and replica.view is not None:
                self._show(replica)

    def thinking_ended(self, name: str, leg: Leg) -> None:
        """Count a request that begins to answer among the answers, until the next report."""
        replica = self.replicas.get(name)
        if replica is not None and (view := replica.view) is not None and self.watch is not None:
            view.num_thinking = max(0, view.num_thinking - self._is_counted(leg))
            view.num_fresh_answering += 1

    def _add(self, view: InstanceView, leg: Leg) -> None:
        context = len(leg.token_ids)
        view.num_waiting += 1
        if leg.is_thinking or not leg.generated_tokens:
            view.num_thinking += self._is_counted(leg)
        if leg.current:
            # As in the simulated cluster: the newest token has no KV yet.
            view.booked_blocks += view.blocks_of(context - 1)
            view.num_fresh_answering += leg.kind == "phase_change" and self.watch is not None
            return
        view.waiting_prompt_tokens += leg.prompt_tokens
        view.prefill_tokens += context
        view.prefill_squares += context**2

    def _is_counted(self, leg: Leg) -> bool:
        return self.watch is not None and len(leg.token_ids) <= self.watch.demote_above_tokens


def is_valid(report: Mapping[str, Any]) -> bool:
    """Return whether a report has what a view needs, in numbers that can be."""
    least = {"used_blocks": 0, "number": 0, "total_blocks": 1, "block_tokens": 1}
    counts = least.keys() | COUNTS & report.keys()
    paced_for_s, arrived = report.get("paced_for_s", inf), report.get("arrived", {})
    age_s = report.get("age_s", 0.0)
    return (
        all(type(report.get(key)) is int and report[key] >= least.get(key, 0) for key in counts)
        and type(paced_for_s) in (int, float)
        and -inf < paced_for_s <= inf
        and type(age_s) in (int, float)
        and 0 <= age_s < inf
        and isinstance(arrived, Mapping)
        and all(type(number) is int for number in arrived.values())
    )
