"""A KV connector whose loads take some steps: what it keeps stays in this process."""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)

STEPS = 4
"""Steps that a load takes."""
caches: dict[str, Any] = {}
"""Layer -> vLLM's KV tensor, whose first dimension is the block."""
kept: dict[tuple[int, ...], dict[str, Any]] = {}
"""Prompt -> its blocks per layer."""
loads: dict[str, tuple[int, list[int], dict[str, Any]]] = {}
"""Request -> steps left, its blocks, and what they are to hold."""
hesitates = 0
"""How often it does not know yet what it has of a prompt."""
asked: dict[str, int] = {}


def forget() -> None:
    for store in (kept, loads, asked):
        store.clear()


class DelayedLoads(KVConnectorBase_V1):
    """Both sides of the connector."""

    @property
    def block_tokens(self) -> int:
        return int(self._vllm_config.cache_config.block_size)

    # The scheduler's side.

    def get_num_new_matched_tokens(self, request: Any, computed: int) -> tuple[int | None, bool]:
        found = kept.get(tuple(request.prompt_token_ids))
        if found is None or request.num_preemptions:
            return 0, False
        asked[request.request_id] = asked.get(request.request_id, 0) + 1
        if asked[request.request_id] <= hesitates:
            return None, False
        size = self.block_tokens
        new = (request.num_prompt_tokens - 1) // size * size - computed
        return max(0, new), new > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external: int) -> None:
        if num_external:
            held = blocks.get_block_ids()[0]
            count = (request.num_prompt_tokens - 1) // self.block_tokens
            loads[request.request_id] = STEPS, held[:count], kept[tuple(request.prompt_token_ids)]

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        count = request.num_prompt_tokens // self.block_tokens
        kept[tuple(request.prompt_token_ids)] = {
            layer: cache[block_ids[:count]].clone() for layer, cache in caches.items()
        }
        return False, None

    # The worker's side.

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        caches.update(kv_caches)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[None, set[str] | None]:
        done = set()
        for name, (left, blocks, content) in list(loads.items()):
            loads[name] = left - 1, blocks, content
            if left == 1:
                for layer, cache in caches.items():
                    cache[blocks] = content[layer][: len(blocks)]
                del loads[name]
                done.add(name)
        return None, done or None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...
    def wait_for_layer_load(self, layer_name: str) -> None: ...
    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None: ...
    def wait_for_save(self) -> None: ...
