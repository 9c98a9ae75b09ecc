"""The load of one instance over virtual time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler_adapters.workload.requests import Floats


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LoadCurve:
    """The load during each of S steps, in the order of time."""

    end_s: Floats
    duration_s: Floats
    used_blocks: Floats
    num_waiting: Floats
    num_resident: Floats

    def mean(self, values: Floats, edges_s: Floats) -> Floats:
        """Mean over time of a column, between consecutive edges; idle time counts as 0."""
        if not len(self.end_s):
            return np.zeros(len(edges_s) - 1)
        integral = np.concatenate([[0.0], np.repeat(np.cumsum(values * self.duration_s), 2)])
        # Idle from the end of a step to the start of the next: the integral stands still.
        corners_s = np.column_stack([self.end_s - self.duration_s, self.end_s]).ravel()
        total = np.interp(edges_s, corners_s, integral[:-1], right=integral[-1])
        return np.asarray(np.diff(total) / np.diff(edges_s))
