"""Views and rules: queues remembered by a view, limits checked by a rule."""

from math import nan

import numpy as np
import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.views import RequestView, StepRule


def test_a_view_remembers_when_its_queue_was_entered():
    view = RequestView("r", 0, 0.0, 10)
    assert view.enqueued_s((1, 0), 3.0) == 3.0
    assert view.enqueued_s((1, 0), 9.0) == 3.0
    assert view.enqueued_s((1, 1), 9.0) == 9.0
    assert view.enqueued_s((1, 0), 12.0) == 12.0


AT_LEAST_ONE = ("max_tokens", "max_resident", "chunk")
AT_LEAST_ZERO = ("max_decodes", "max_prefills", "max_admissions")


@pytest.mark.parametrize(
    ("name", "least"), [(n, 1) for n in AT_LEAST_ONE] + [(n, 0) for n in AT_LEAST_ZERO]
)
def test_a_limit_starts_at_the_least_that_lets_work_be_done(name, least):
    assert getattr(StepRule(**{name: least}), name) == least
    assert StepRule(**{name: np.int64(5)}) == StepRule(**{name: 5})
    for wrong in (least - 1, 1.5, "2", nan):
        with pytest.raises(ConfigError, match=f"{name} is .*; use a whole number, {least} or more"):
            StepRule(**{name: wrong})
