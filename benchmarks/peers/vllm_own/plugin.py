"""A pytest plugin for vLLM's own tests: our schedulers in place of vLLM's, under one policy."""

import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

# vLLM picks kernels by what the processor has, and fails where the process may not use it.
torch.cpu._is_amx_tile_supported = lambda: False

SETTINGS: dict[str, Any] = json.loads(os.environ["LENGTHWISE_VLLM_OWN"])
"""The policy with its settings, as `additional_config` has them; empty for `stock`."""
outcomes: dict[str, str] = {}


def pytest_configure(config: pytest.Config) -> None:
    if not SETTINGS:
        return
    # Diffusion models have a scheduler of vLLM's own, which stays: a child of the stock one.
    from vllm.v1.core.sched import async_scheduler, diffusion_scheduler, scheduler  # noqa: F401

    from scheduler_adapters.engines.vllm_v1 import rank_scheduler as ours

    scheduler.Scheduler = _configured(ours.RankScheduler)
    async_scheduler.AsyncScheduler = _configured(ours.AsyncRankScheduler)


def _configured(made: type) -> type:
    """Return a subclass that puts our settings where a server's command line would."""

    class Configured(made):  # type: ignore[misc]
        @functools.wraps(made.__init__)
        def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
            vllm_config.additional_config = {"lengthwise": SETTINGS}
            super().__init__(vllm_config, *args, **kwargs)

    return Configured


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = (yield).get_result()  # type: ignore[func-returns-value]
    tells = report.when == "call" or not report.passed
    if tells and outcomes.get(item.nodeid, "passed") == "passed":
        outcomes[item.nodeid] = f"failed: {_reason(report)}" if report.failed else report.outcome


def _reason(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr).strip().splitlines()[0][:200]


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        outcomes[report.nodeid] = f"failed: {_reason(report)}"


def pytest_sessionfinish() -> None:
    Path(os.environ["LENGTHWISE_VLLM_OWN_OUT"]).write_text(json.dumps(outcomes))


def pytest_unconfigure() -> None:
    os._exit(0)  # some tests leave threads of a connector behind, which never end
