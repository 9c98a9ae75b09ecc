import asyncio
from math import inf

import pytest

from lengthwise.errors import DataError
from scheduler_adapters.routers.endpoint_picker.engine_scrape import EngineScrape, report_of
from tests.scheduler_adapters.routers.endpoint_picker.gateway import FakeEngine

# As vLLM 0.32 and SGLang write them; labels that no reader needs are left out.
VLLM = b"""
# HELP vllm:num_requests_running Number of requests in model execution batches.
vllm:num_requests_running{engine="0",model_name="a}b"} 3.0
vllm:num_requests_running{engine="1",model_name="a}b"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="100"} 1.0
"""
PACERS = b'lengthwise_pacers{state="ahead"} 1.0\nlengthwise_pacers{state="empty"} 1.0\n'
SGLANG = b"""\
sglang:num_running_reqs{model_name="m",tp_rank="0"} 7.0
sglang:num_running_reqs{model_name="m",tp_rank="1"} 7.0
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 1.0
sglang:num_used_tokens{model_name="m",tp_rank="0"} 1234.0
sglang:max_total_num_tokens{model_name="m",tp_rank="0"} 5000.0
"""


def test_the_load_is_read_by_the_names_of_each_engine():
    kv = {"used_blocks": 75, "total_blocks": 200, "block_tokens": 16}
    summed = {"num_waiting": 2, "num_answering": 7, **kv, "paced_for_s": inf}
    assert report_of(VLLM) == summed
    assert report_of(VLLM + PACERS) == summed | {"paced_for_s": -1.0}
    kv = {"used_blocks": 1234, "total_blocks": 5000, "block_tokens": 1}
    assert report_of(SGLANG) == summed | kv | {"num_waiting": 1}  # ranks show the same requests


def test_a_missing_metric_is_named():
    nan = VLLM.replace(b" 3.0", b" nan").replace(b" 4.0", b" 1e999")
    for page, missing in (
        (VLLM.replace(b'"100"', b'"None"'), "KV blocks"),
        (nan, "vllm:num_requests_running"),
        (SGLANG.replace(b"num_used_tokens", b"used"), "sglang:num_used_tokens"),
    ):
        with pytest.raises(DataError, match=missing):
            report_of(page)


def test_scrapes_outlast_bad_pages_and_mark_their_begin(caplog):
    async def scrape():
        seen = asyncio.Queue()
        async with FakeEngine() as engine:
            engine.page, too_much = "nothing", VLLM.replace(b" 3.0", b" 1e308")
            scrapes = EngineScrape(lambda: 7, lambda *one: seen.put_nowait(one), every_s=0.01)
            scrapes.update([engine.name])
            for flaw in ("no vllm:num_requests_running", "OverflowError"):
                while flaw not in caplog.text:
                    await asyncio.sleep(0.01)
                engine.page = None
                name, report, mark = await seen.get()
                assert (name, report["total_blocks"], mark) == (engine.name, 1000, 7)
                engine.page = too_much.replace(b" 4.0", b" 1e308").decode()
            await scrapes.close()

    asyncio.run(asyncio.wait_for(scrape(), 60))
