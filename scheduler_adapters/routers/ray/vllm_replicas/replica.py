"""A replica of vLLM on Ray Serve: the server of `ray.serve.llm`, serving legs.

Written for Ray 2.60 and vLLM 0.32. vLLM itself, its workers and its place on the cluster are those
of `ray.serve.llm`; the scheduler inside it is ours.
"""

import os
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from ray.serve.llm import LLMConfig
from ray.serve.llm.deployment import LLMServer

from lengthwise.errors import SchedulingError
from scheduler_adapters.engines.engine_sockets import SHARED_FOLDER, EngineReports
from scheduler_adapters.planner.request_annotations import score_annotations
from scheduler_adapters.routers.legs import Leg
from scheduler_adapters.routers.ray.replica import RayReplica, Tokens
from scheduler_adapters.routers.ray.vllm_replicas import kv_transfer
from scheduler_adapters.routers.replica_load import ReplicaLoad


class VllmReplica(RayReplica, LLMServer):  # type: ignore[misc]
    """vLLM that serves legs and reports its scheduler's own figures; for `LLMConfig.server_cls`.

    `counting`: `watch` and `lists_decodes` of `ReplicaLoad`.
    """

    # Ray awaits it.
    async def __init__(self, llm_config: LLMConfig, **counting: Any) -> None:  # type: ignore[misc]
        self._folder = tempfile.TemporaryDirectory(prefix="lengthwise-")
        os.environ[SHARED_FOLDER] = self._folder.name  # for the engine's process, started next
        if Path(llm_config.model_id).is_dir():  # nothing to download, by a process of its own
            llm_config.get_or_create_callback().ctx.run_init_node = False
        await LLMServer.__init__(self, llm_config)
        self._client = self.engine._engine_client  # Ray has no public name for it
        cache = self._client.vllm_config.cache_config
        size = {"total_blocks": cache.num_gpu_blocks, "block_tokens": cache.block_size}
        RayReplica.__init__(self, ReplicaLoad(**size, **counting))
        self._reports = EngineReports(Path(self._folder.name))
        self.pulled_tokens = 0
        """Tokens of moved legs whose KV was not computed here."""
        self._defaults = self._client.model_config.get_diff_sampling_param()

    async def tokens(self, leg: Leg) -> AsyncIterator[Tokens]:
        """Yield the tokens of a leg as vLLM generates them."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        extra = {} if leg.score is None else score_annotations(leg.score, dict(leg.quantiles))
        if (transfer := kv_transfer.parameters(leg, self.name)) is not None:
            extra["kv_transfer_params"] = transfer
        least, most = leg.sampling.get("min_tokens", 0), leg.max_tokens
        # vLLM lets no request stop before its least tokens, so such a leg does not pause there.
        pause = [leg.think_end] if leg.pauses_at_think_end and not least else []
        length = min(most, leg.pause_after or most)
        ours = {"max_tokens": length, "min_tokens": min(least, length)}
        params = SamplingParams.from_optional(
            **{**self._defaults, **leg.sampling, **ours},
            stop_token_ids=[*leg.stop_token_ids, *pause],
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args=extra or None,
        )
        prompt = {"prompt_token_ids": list(leg.token_ids)}
        name = f"{leg.request_id}-{time.time_ns()}"  # legs of one request may meet here
        context, pulls = len(leg.token_ids), bool(transfer and transfer["do_remote_prefill"])
        async for output in self._client.generate(prompt, params, name):
            (one,) = output.outputs
            if pulls and context == len(leg.token_ids):
                self.pulled_tokens += output.num_cached_tokens or 0
            context += len(one.token_ids)
            if (finish := one.finish_reason) not in (None, "stop", "length"):
                raise SchedulingError(f"vLLM ended a leg by {finish!r}; see its log")
            # The gateway ends a request at its own limits, so a pause there does no harm.
            if one.stop_reason in pause or (finish == "length" and length < most):
                finish = "paused"
            yield (
                one.token_ids,
                finish,
                kv_transfer.kept_kv(output.kv_transfer_params, context, self.load.block_tokens),
            )

    async def check_health(self) -> None:
        """Raise if vLLM has ended, or hangs."""
        await LLMServer.check_health(self)
        await RayReplica.check_health(self)

    async def record_routing_stats(self) -> dict[str, Any]:
        """Return the report for routers: the legs here, and the engine's own figures."""
        loads = [one["load"] for one in await self._reports.read() if one["load"]]
        own = {**self.rank, "pulled_tokens": self.pulled_tokens}
        return with_engine(self.load, loads, time.time()) | own


def with_engine(
    load: ReplicaLoad, engines: Sequence[Mapping[str, Any]], now_s: float
) -> dict[str, Any]:
    """Return the report of the legs, with KV, readers and age as the engines' schedulers see them.

    The router's bookings end by legs, so waiting and running requests are counted by legs. An idle
    engine takes no steps, and what it wrote last says nothing.
    """
    report = load.report()
    if not (engines and load.legs):
        return report
    busy_s = load.clock() - load.busy_since_s
    share = sum(one["kv_usage_fraction"] for one in engines) / len(engines)
    report |= {
        "used_blocks": round(share * load.total_blocks),
        "used_host_blocks": ceil(sum(one["host_kv_tokens"] for one in engines) / load.block_tokens),
        "age_s": min(busy_s, max(0.0, now_s - min(one["written_s"] for one in engines))),
    }
    if not all(one["on_time"] for one in engines):
        report["paced_for_s"] = min(report["paced_for_s"], 0.0)
    return report
