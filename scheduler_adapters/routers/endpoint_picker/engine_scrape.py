"""Load of engines from their own Prometheus metrics, as reports for a router.

vLLM and SGLang (`--enable-metrics`) are read by their own names, the engines of one server summed.
`serve-vllm` adds PASCAL's pacers.
"""

import asyncio
import logging
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import inf, isfinite
from typing import Any, Final

import httpx

from lengthwise.errors import DataError

log = logging.getLogger(__name__)

MAX_PAGE_BYTES: Final = 8 << 20
SETTLE_S: Final = 0.02
"""Time in which a request reaches its engine; a page shows requests chosen so long before it."""
_SAMPLE: Final = re.compile(
    rb"^(vllm:(?:num_requests_running|num_requests_waiting|kv_cache_usage_perc|cache_config_info)"
    rb"|sglang:(?:num_running_reqs|num_queue_reqs|num_used_tokens|max_total_num_tokens)"
    rb"|lengthwise_pacers)(?:\{(.*)\})? ([-+.\deE]+)$",
    re.MULTILINE,
)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
Samples = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]


def report_of(page: bytes) -> dict[str, Any]:
    """Return the load of a server as fields of `InstanceView`. Raises DataError: one is missing."""
    samples = defaultdict(list)
    for name, labels, value in _SAMPLE.findall(page):
        known = dict(_LABEL.findall(labels.decode(errors="replace")))
        # Each rank of a tensor-parallel SGLang may show the same requests.
        if known.get("tp_rank", "0") == "0" and isfinite(float(value)):
            samples[name.decode()].append((known, float(value)))
    report = _of_sglang(samples) if "sglang:num_running_reqs" in samples else _of_vllm(samples)
    pacers = samples.get("lengthwise_pacers", ())
    is_dry = any(number and known.get("state") == "empty" for known, number in pacers)
    return report | {"paced_for_s": -1.0 if is_dry else inf}


def _sum(samples: Samples, name: str) -> int:
    if name not in samples:
        raise DataError(f"no {name} among the metrics; is this vLLM, or SGLang --enable-metrics?")
    return int(sum(number for _, number in samples[name]))


def _of_vllm(samples: Samples) -> dict[str, Any]:
    running, waiting = (_sum(samples, f"vllm:num_requests_{w}") for w in ("running", "waiting"))
    used = total = block_tokens = 0
    usage = {known.get("engine"): n for known, n in samples.get("vllm:kv_cache_usage_perc", ())}
    for known, _ in samples.get("vllm:cache_config_info", ()):
        blocks, size = (known.get(key, "") for key in ("num_gpu_blocks", "block_size"))
        if blocks.isdigit() and size.isdigit() and known.get("engine") in usage:
            used += round(usage[known.get("engine")] * int(blocks))
            total, block_tokens = total + int(blocks), int(size)
    if not total or not block_tokens:
        raise DataError("no KV blocks in vllm:cache_config_info and vllm:kv_cache_usage_perc")
    return {
        **{"num_waiting": waiting, "num_answering": running},
        **{"used_blocks": used, "total_blocks": total, "block_tokens": block_tokens},
    }


def _of_sglang(samples: Samples) -> dict[str, Any]:
    return {
        "num_waiting": _sum(samples, "sglang:num_queue_reqs"),
        "num_answering": _sum(samples, "sglang:num_running_reqs"),
        "used_blocks": _sum(samples, "sglang:num_used_tokens"),
        "total_blocks": max(1, _sum(samples, "sglang:max_total_num_tokens")),
        "block_tokens": 1,
    }


class EngineScrape:
    """Scrapes of endpoints at regular times, apart from any request.

    `received` is given the endpoint, the report, and what `begins` returned as the scrape began.
    """

    def __init__(
        self,
        begins: Callable[[], Any],
        received: Callable[[str, dict[str, Any], Any], None],
        *,
        every_s: float = 0.5,
        timeout_s: float = 1.0,
    ) -> None:
        self.begins, self.received = begins, received
        self.every_s, self.timeout_s = every_s, timeout_s
        # Engines are on this network: no proxy of the environment is on the way.
        limits = httpx.Limits(max_connections=None)
        self._client = httpx.AsyncClient(timeout=timeout_s, limits=limits, trust_env=False)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def update(self, names: Sequence[str]) -> None:
        """Scrape these endpoints from now on, and no others."""
        for name in self._tasks.keys() - set(names):
            self._tasks.pop(name).cancel()
        for name in set(names) - self._tasks.keys():
            self._tasks[name] = asyncio.create_task(self._repeat(name))

    async def close(self) -> None:
        """End all scrapes."""
        self.update(())
        await self._client.aclose()

    async def _repeat(self, name: str) -> None:
        is_failing = False
        while True:
            begun_s, mark = time.monotonic(), self.begins()
            await asyncio.sleep(SETTLE_S)
            try:
                async with asyncio.timeout(self.timeout_s):
                    page = await self._page(name)
                self.received(name, report_of(page), mark)
                is_failing = False
            except Exception as error:  # whatever a page holds, the next one is read
                if not is_failing:
                    log.warning("no metrics of %s: %s %s", name, type(error).__name__, error)
                is_failing = True
            await asyncio.sleep(max(0.0, begun_s + self.every_s - time.monotonic()))

    async def _page(self, name: str) -> bytes:
        page = bytearray()
        async with self._client.stream("GET", f"http://{name}/metrics") as response:
            response.raise_for_status()
            async for part in response.aiter_bytes():
                page += part
                if len(page) > MAX_PAGE_BYTES:
                    raise DataError(f"page above {MAX_PAGE_BYTES} bytes")
        return bytes(page)
