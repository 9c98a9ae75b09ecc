"""The configuration of an engine for its driver, and the environment that vLLM reads."""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.validation.engine_trial import StepRecorder
from lengthwise.errors import ConfigError, UnsupportedByEngine
from scheduler_adapters.engines.engine_clock import WallClock
from scheduler_adapters.engines.random_model import VOCABULARY
from scheduler_adapters.engines.vllm_v1.in_process import (
    ENVIRONMENT,
    OfflineConfig,
    _model_args,
    _scheduler_args,
    _watched_steps,
    longest_context,
    open_engine,
    random_prompts,
    set_environment,
)
from scheduler_adapters.timeline.steps import StepRecord
from scheduler_adapters.workload.requests import make_requests


def test_vllm_is_told_our_scheduler_and_its_settings_or_nothing():
    assert _scheduler_args(OfflineConfig()) == {}
    told = _scheduler_args(OfflineConfig(scheduler="pars", settings={"starve_after_s": 9}))
    assert told["additional_config"] == {"lengthwise": {"policy": "pars", "starve_after_s": 9}}
    with pytest.raises(ConfigError, match="the stock scheduler takes none"):
        _scheduler_args(OfflineConfig(settings={"a": 1}))
    with pytest.raises(ConfigError, match="no policy named 'nobody'"):
        _scheduler_args(OfflineConfig(scheduler="nobody"))


def test_weights_of_a_large_model_are_drawn_by_vllm(tmp_path):
    large, small = tmp_path / "large", tmp_path / "small"
    told = _model_args(OfflineConfig(shape="7b"), large)
    assert told == {"model": str(large), "load_format": "dummy"}
    assert [path.name for path in large.iterdir()] == ["config.json"]
    written = json.loads((large / "config.json").read_text())
    assert written["architectures"] == ["LlamaForCausalLM"]
    assert written["hidden_size"] == 4096
    assert _model_args(OfflineConfig(), small) == {"model": str(small)}
    assert (small / "model.safetensors").is_file()
    assert _model_args(OfflineConfig(model=small, shape="7b"), large) == {"model": str(small)}


def test_a_variable_that_is_set_keeps_its_value(monkeypatch):
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VLLM_HOST_IP", "10.0.0.1")
    set_environment()
    assert os.environ["VLLM_HOST_IP"] == "10.0.0.1"
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"


CLOCK = WallClock()


class Scheduler:
    """Schedules what it is given, as (request, tokens before the step, tokens in it)."""

    def __init__(self) -> None:
        self.requests: dict[str, Any] = {}

    def schedule(self, *ran: tuple[str, int, int]) -> Any:
        for name, before, tokens in ran:
            self.requests[name] = SimpleNamespace(
                num_computed_tokens=before + tokens, num_prompt_tokens=10
            )
        new = [SimpleNamespace(req_id=name) for name, before, _ in ran if not before]
        sizes = {name: tokens for name, _, tokens in ran}
        return SimpleNamespace(num_scheduled_tokens=sizes, scheduled_new_reqs=new)

    def update_from_output(self, scheduled: Any) -> None:
        """Nothing to do."""

    def step(self, *ran: tuple[str, int, int]) -> None:
        self.update_from_output(self.schedule(*ran))


def test_steps_are_reported_with_durations_unless_empty():
    scheduler, recorder = Scheduler(), StepRecorder()
    with _watched_steps(scheduler, CLOCK, [recorder]) as (first_s, took):
        scheduler.step(("a", 0, 6), ("b", 14, 1))
        took(0.5)
        scheduler.step()
        took(0.25)
        scheduler.step(("a", 9, 1), ("b", 10, 1))  # the last token of a prompt is no decode
        took(0.125)
    scheduler.step(("a", 0, 6))
    assert recorder.steps == [
        StepRecord.of(1, 15, [(0, 6)], 0.5),
        StepRecord.of(1, 11, [(9, 1)], 0.125),
    ]
    assert first_s.keys() == {"a"}
    with _watched_steps(scheduler, CLOCK, []) as (first_s, took):
        scheduler.step(("a", 0, 6))
        took(1.0)
    assert len(recorder.steps) == 2
    assert first_s.keys() == {"a"}


def test_a_step_lasts_until_its_outcome():
    """An asynchronous engine: a turn schedules a step and has the outcome of the last."""
    scheduler, recorder = Scheduler(), StepRecorder()
    with _watched_steps(scheduler, CLOCK, [recorder]) as (_, took):
        first = scheduler.schedule(("a", 0, 6))
        took(0.25)  # nothing has ended
        second = scheduler.schedule(("a", 10, 1))
        scheduler.update_from_output(first)
        took(0.5)
        scheduler.update_from_output(second)
        took(0.125)
    assert recorder.steps == [StepRecord.of(0, 0, [(0, 6)], 0.5), StepRecord.of(1, 11, [], 0.125)]


def test_without_vllm_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(
        "scheduler_adapters.engines.vllm_v1.in_process.find_spec", lambda name: None
    )
    with pytest.raises(UnsupportedByEngine, match="install vllm"), open_engine(OfflineConfig()):
        pass


REQUESTS = make_requests(prompt_tokens=[5, 9], output_tokens=[3, 4], request_id=["a", "b"])


def test_prompts_are_seeded_and_as_long_as_the_requests_say():
    prompts = random_prompts(REQUESTS, 0)
    assert [len(prompt) for prompt in prompts] == [5, 9]
    assert all(3 <= token < VOCABULARY for prompt in prompts for token in prompt)
    assert prompts == random_prompts(REQUESTS, 0) != random_prompts(REQUESTS, 1)
    alike = random_prompts(REQUESTS, 0, shared_tokens=2)
    shared = max(alike, key=len)[:2]
    for same, own in zip(alike, prompts, strict=True):
        size = min(2, len(own) - 1)
        assert same == shared[:size] + own[size:]


def test_the_longest_context_has_room_for_one_more_token():
    assert longest_context(REQUESTS) == 14
    assert longest_context(REQUESTS.take(np.arange(0))) == 2


@pytest.mark.vllm
def test_the_engine_arguments_shown_for_a_gpu_are_vllms(tmp_path):
    from vllm import EngineArgs
    from vllm.config import CompilationConfig, KernelConfig

    page = (Path(__file__).parents[4] / "docs/results/gpu.md").read_text()
    shown = {*re.findall(r"(?:--engine |GPU_TESTS_ENGINE=)'(.*)'", page)}
    assert len(shown) > 1
    for text in shown:
        engine = json.loads(text)
        KernelConfig(**engine.pop("kernel_config"))
        CompilationConfig(**engine.pop("compilation_config", {}))
        EngineArgs(model=str(tmp_path), **engine)  # A folder is not looked up elsewhere.
