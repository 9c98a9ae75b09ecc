import random
from dataclasses import replace

import pytest

from benchmarks.validation.step_fit import EngineLatency, fit_steps
from lengthwise.errors import DataError
from scheduler_adapters.timeline.steps import StepRecord

TRUE = EngineLatency(
    decodes=(1, 2, 3, 32),
    decodes_s=(5.2e-3, 6e-3, 5.6e-3, 11e-3),
    per_context_token_s=1e-6,
    per_prefill_s=3e-3,
    per_prefill_token_s=2.5e-4,
    per_attention_pair_s=1e-7,
)


def steps(noise: float, count: int = 2000) -> list[StepRecord]:
    dice, made = random.Random(0), []
    for _ in range(count):
        chunks = [(0, dice.randint(8, 400))] if dice.random() < 0.2 else []
        decodes = dice.randint(1, 32)
        context = decodes * dice.randint(50, 400)
        seconds = TRUE.step_s(decodes, context, chunks)
        seconds *= dice.lognormvariate(0.0, noise)
        made.append(StepRecord.of(decodes, context, chunks, seconds))
    return made


def test_exact_steps_give_the_model_that_made_them():
    latency, error = fit_steps(steps(noise=0.0))
    assert error < 1e-9
    for decodes in (0, 1, 2, 3, 7, 31, 32):
        step = (decodes, 100 * decodes, [(32, 100), (0, 8)])
        assert latency.step_s(*step) == pytest.approx(TRUE.step_s(*step))


def test_what_was_never_seen_is_continued_from_what_was():
    assert TRUE.step_s(0, 0, []) == TRUE.step_s(1, 0, [])
    per_decode_s = (TRUE.decodes_s[-1] - TRUE.decodes_s[0]) / 31
    assert TRUE.step_s(34, 0, []) == pytest.approx(TRUE.decodes_s[-1] + 2 * per_decode_s)
    latency, _ = fit_steps([replace(step, num_decodes=5) for step in steps(noise=0.0, count=50)])
    assert latency.decodes == (5,)
    assert latency.step_s(4, 900, []) == latency.step_s(6, 900, [])


def test_noise_does_not_make_the_fit_too_fast():
    latency, _ = fit_steps(steps(noise=0.3))
    mean_of_noise = 1.046  # exp(0.3^2 / 2)
    for step in ((16, 3200, []), (8, 800, [(0, 200)])):
        assert latency.step_s(*step) == pytest.approx(mean_of_noise * TRUE.step_s(*step), rel=0.05)


def test_too_few_steps_and_steps_without_time_are_refused():
    made = steps(noise=0.0, count=10)
    with pytest.raises(DataError, match="record more"):
        fit_steps(made[:5])
    with pytest.raises(DataError, match="record more"):
        fit_steps([*made, replace(made[0], seconds=0.0)])
