"""Tokens per CPU second of `serve-vllm` without a scorer, beside plain vLLM of the same options.

    python tests/peers/server_price.py --pairs 30
    python tests/peers/server_price.py --pairs 30 --bundle BUNDLE    with a ranker in the engine
    python tests/peers/server_price.py --pairs 30 --control          plain vLLM beside plain vLLM

Both servers run at once and serve the same bursts, in pairs of a shuffled order. Each computes its
model in the engine's own process, since an engine core and a worker spin while they wait for each
other. Two equal servers differ by some percent as long as they live (--control shows by how much),
so that both are started anew several times, in turn. After each burst both serve a few streams one
by one, in turn, for the time to their first token. The figures are medians of pairs, with 95%
intervals by the bootstrap over starts. Without a server are `request_price.py` (API server) and
`bench-engine --running 16 --waiting 100` (engine core).
"""

import argparse
import asyncio
import random
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.scheduler_adapters.commands.test_serve_vllm_live import serving

OPTIONS = ["--max-model-len=2048", "--max-num-seqs=16", "--max-num-batched-tokens=2048"]
OPTIONS += ["--distributed-executor-backend=uni"]
OPEN = 16
PARTS = ("API server", "engine core")


def cpu_s(server: psutil.Process) -> np.ndarray[Any, Any]:
    """Return the CPU seconds of each of `PARTS`, to a nanosecond."""
    spent = dict.fromkeys(("", "VLLM::EngineCore"), 0)
    for process in (server, *server.children(recursive=True)):
        tasks = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
        name = process.name() if process.name() in spent else ""
        spent[name] += sum(int(task.read_text().split()[0]) for task in tasks)
    return np.array([*spent.values()]) / 1e9


async def burst(
    port: int, seed: int, *, words: int, tokens: int, count: int, most: int = OPEN
) -> None:
    import aiohttp

    dice, places = random.Random(seed), asyncio.Semaphore(most)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=connector) as session:

        async def one(number: int) -> None:
            length = dice.randrange(words // 20, words)
            text = " ".join(f"w{dice.randrange(40)}" for _ in range(length))
            body = {"model": "tiny", "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
            path, body = "/v1/completions", body | {"prompt": text, "stream": number % 2 == 0}
            if number % 3 == 0:
                path, messages = "/v1/chat/completions", [{"role": "user", "content": text}]
                body = {**body, "messages": messages}
                del body["prompt"]
            async with places, session.post(path, json=body) as answer:
                assert answer.status == 200, await answer.text()
                await answer.read()

        await asyncio.gather(*map(one, range(count)))


LONE = 12
"""Streams of each server per pair, one by one."""


async def lone_ttft_s(ports: Sequence[int], seed: int, length: int) -> list[list[float]]:
    """Return the times to the first token of lone streams, for each server."""
    import aiohttp

    dice, taken_s = random.Random(-seed), [list[float](), list[float]()]
    async with aiohttp.ClientSession() as session:
        for turn in range(LONE):
            for side in (0, 1) if turn % 2 else (1, 0):
                words = " ".join(f"w{dice.randrange(40)}" for _ in range(length))
                body = {"model": "tiny", "max_tokens": 4, "stream": True, "prompt": words}
                started_s = time.perf_counter()
                url = f"http://127.0.0.1:{ports[side]}/v1/completions"
                async with session.post(url, json=body) as answer:
                    await answer.content.readany()
                    taken_s[side].append(time.perf_counter() - started_s)
                    await answer.read()
    return taken_s


def measured(
    options: argparse.Namespace, starts: int
) -> tuple[list[np.ndarray[Any, Any]], list[list[float]], list[list[list[float]]]]:
    """Return CPU seconds, seconds and times to first tokens of the pairs of one start."""
    load = {"words": options.words, "tokens": options.tokens, "count": options.requests}
    own = [f"--policy={options.policy}", "--timeline=null"]
    own += [f"--bundle={options.bundle}"] if options.bundle else []
    sides = {0: None, 1: None if options.control else own}
    spent, took_s, ttft_s = list[np.ndarray[Any, Any]](), list[list[float]](), []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        live = {
            side: stack.enter_context(serving(Path(folder) / str(side), "", sides[side], OPTIONS))
            for side in ((0, 1) if starts % 2 else (1, 0))
        }
        servers = [psutil.Process(live[side].pid) for side in sides]
        ports = [int(live[side].url.rpartition(":")[2]) for side in sides]
        for port in ports:
            asyncio.run(burst(port, 0, **load))
        dice = random.Random(starts)
        for pair in range(options.pairs):
            cpu, wall_s = np.zeros((2, len(PARTS))), [0.0, 0.0]
            for side in dice.sample((0, 1), 2):
                before, began_s = cpu_s(servers[side]), time.perf_counter()
                asyncio.run(burst(ports[side], pair + 1, **load))
                wall_s[side] = time.perf_counter() - began_s
                cpu[side] = cpu_s(servers[side]) - before
            spent.append(cpu)
            took_s.append(wall_s)
            ttft_s.append(asyncio.run(lone_ttft_s(ports, pair + 1, options.words // 4)))
        asyncio.run(burst(ports[1], -1, **load | {"count": 200}, most=200))
        with urlopen(f"http://127.0.0.1:{ports[1]}/metrics") as answer:
            found = re.findall(r"engine_requests_total\{(.*)\} (\S+)", answer.read().decode())
        print("requests by their score, a burst of 200 at once included:", found, flush=True)
    return spent, took_s, ttft_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=6, help="of both servers")
    parser.add_argument("--pairs", type=int, default=10, help="of bursts after each start")
    parser.add_argument("--requests", type=int, default=64, help="of a burst")
    parser.add_argument("--policy", default="pars")
    parser.add_argument("--bundle", default=None)
    parser.add_argument("--control", action="store_true", help="plain vLLM twice")
    parser.add_argument("--words", type=int, default=400, help="of the longest prompt")
    parser.add_argument("--tokens", type=int, default=16, help="of each answer")
    options = parser.parse_args()
    runs = [measured(options, number) for number in range(options.starts)]
    spent, took_s, ttft_s = (np.array([run[part] for run in runs]) for part in range(3))
    dice = np.random.default_rng(0)
    drawn = dice.integers(options.starts, size=(4_000, options.starts))

    def median(values: np.ndarray[Any, Any]) -> tuple[float, float, float]:
        """Return the median over starts (rows) and pairs, and its 95% interval."""
        low, high = np.quantile(np.median(values[drawn], axis=(1, 2)), (0.025, 0.975))
        return float(np.median(values)), float(low), float(high)

    first_ms = 1e3 * np.median(ttft_s, axis=3)
    plain_ms, ours_ms = np.median(first_ms, axis=(0, 1))
    more, low, high = median(first_ms[..., 1] - first_ms[..., 0])
    print(
        f"TTFT of a lone request, ms: {plain_ms:.2f} plain, {ours_ms:.2f} ours; "
        f"{more:+.2f} [{low:+.2f}, {high:+.2f}]"
    )
    ratio, low, high = median(took_s[..., 0] / took_s[..., 1])
    print(f"tokens per second, ours / plain: {ratio:.3f} [{low:.3f}, {high:.3f}]")
    parts = {"all": slice(None)} | {name: [number] for number, name in enumerate(PARTS)}
    for name, part in parts.items():
        plain_s, ours_s = np.moveaxis(spent[..., part].sum(axis=3), 2, 0)
        plain_ms, ours_ms = (1e3 * np.median(one) / options.requests for one in (plain_s, ours_s))
        ratio, low, high = median(plain_s / ours_s)
        print(
            f"{name:11} CPU ms per request: {plain_ms:.2f} plain, {ours_ms:.2f} ours; tokens per "
            f"CPU second, ours / plain: {ratio:.3f} [{low:.3f}, {high:.3f}]"
        )


if __name__ == "__main__":
    main()
