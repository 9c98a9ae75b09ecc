"""Time to first token through Envoy with the endpoint picker, in turn with round-robin and direct.

Three engines answer at once; each of 400 rounds sends one request on each way. Prints medians and
90th percentiles, and the medians above that of Envoy's own round-robin.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np

from lengthwise.child_processes import started
from tests.scheduler_adapters.routers.endpoint_picker import gateway

ALONE = "request_header_mode: SKIP, response_header_mode: SKIP}"
MODES = {"round-robin": ALONE, "buffered": gateway.BUFFERED, "full-duplex": gateway.FULL_DUPLEX}
BODY = json.dumps({"tokens": 1, "messages": [{"role": "user", "content": "essay " * 200}]})
HEAD = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {len(BODY)}\r\n\r\n"


async def first_token_s(port: int) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begun_s = time.perf_counter()
    writer.write((HEAD + BODY).encode())
    await reader.readuntil(b"data: 0")
    taken_s = time.perf_counter() - begun_s
    writer.close()
    return taken_s


async def main() -> None:
    async with AsyncExitStack() as running:
        made = [await running.enter_async_context(gateway.FakeEngine()) for _ in range(3)]
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        names = [one.name for one in made]
        (folder / "engines.txt").write_text("\n".join(names))
        command = [sys.executable, "-m", "scheduler_adapters", "serve-picker"]
        command += [f"--endpoints={folder}/engines.txt", "--address=127.0.0.1:0"]
        _, line = running.enter_context(started(command, ready="choosing"))
        ports, times_s = {"direct": int(names[0].split(":")[1])}, defaultdict(list)
        for name, mode in MODES.items():
            (folder / name).mkdir()
            envoy = gateway.envoy(names, int(line.rpartition(":")[2]), folder / name, mode)
            ports[name] = running.enter_context(envoy)
        await asyncio.sleep(2)
        for _ in range(420):
            for name, port in ports.items():
                times_s[name].append(await first_token_s(port))
    quantiles = {name: np.quantile(taken[20:], (0.5, 0.9)) for name, taken in times_s.items()}
    for name, (p50_s, p90_s) in quantiles.items():
        added_ms = 1e3 * (p50_s - quantiles["round-robin"][0])
        print(f"{name:12} p50 {p50_s * 1e3:.2f} p90 {p90_s * 1e3:.2f} added {added_ms:+.2f} ms")


if __name__ == "__main__":
    asyncio.run(main())
