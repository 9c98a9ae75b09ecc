"""Tokens per CPU second of `serve-vllm` without a scorer, beside vLLM's own scheduler alone.

    python -m benchmarks server-price
    python -m benchmarks server-price --bundle BUNDLE    with a ranker in the engine
    python -m benchmarks server-price --control          vLLM's own beside vLLM's own
    python -m benchmarks server-price --shape 7b -- --max-num-seqs=64    on a GPU

Two equal servers differ by up to 5 percent as long as they live. So one server has both: between
two bursts, while it is idle, vLLM's own scheduler takes the place of ours, and requests pass our
middleware by. The order of each pair of bursts is drawn. The model is computed in the engine's own
process, since an engine core and a worker spin while they wait for each other. After each burst
both serve a few streams one by one, for the time to their first token. The figures are medians of
pairs, with 95% intervals by the bootstrap over pairs. `engine-step --running 16
--waiting 100` measures the engine core without a server.
"""

import argparse
import asyncio
import mmap
import os
import random
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.soak.engine import with_interval
from scheduler_adapters.engines.random_model import VOCABULARY, write_config
from tests.scheduler_adapters.commands.vllm_server import Live, serving as serve_vllm

OPTIONS = ["--max-model-len=2048", "--max-num-seqs=16"]
OPTIONS += ["--max-num-batched-tokens=2048", "--distributed-executor-backend=uni"]
OPTIONS += ["--load-format=dummy", f'--hf-overrides={{"vocab_size": {VOCABULARY}}}']
NAME = "benchmarks.peers.server_price"
START = f"""
from scheduler_adapters.commands import serve_vllm
serve_vllm.SCHEDULER, serve_vllm.MIDDLEWARE = "{NAME}.switching", "{NAME}.Switch"
from scheduler_adapters.__main__ import main
main()
"""
SIDE = "LENGTHWISE_SIDE"
"""Environment variable with the file of two bytes: the serving side, 0 vLLM's own, and whether the
engine has requests."""


def _side() -> mmap.mmap:
    with open(os.environ[SIDE], "r+b") as file:
        return mmap.mmap(file.fileno(), 2)


def turn(side: mmap.mmap, to: int) -> None:
    """Change the serving side once the engine is idle."""
    while side[1]:
        time.sleep(0.01)
    side[0] = to


class Switch:
    """Our middleware, which requests pass by on side 0."""

    def __init__(self, app: Any) -> None:
        from scheduler_adapters.engines.vllm_v1.middleware import VllmScores

        self.side, self.apps = _side(), (app, VllmScores(app))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.apps[self.side[0]](scope, receive, send)


class SwitchScheduler:
    """vLLM's own scheduler or ours; they change places while the engine is idle."""

    def __init__(self, *schedulers: Any) -> None:
        self.side, self.schedulers, self.now = _side(), schedulers, schedulers[0]

    def add_request(self, request: Any) -> None:
        if not self.now.has_requests():
            self.now = self.schedulers[self.side[0]]
        self.side[1] = 1
        self.now.add_request(request)

    def has_requests(self) -> bool:
        self.side[1] = found = self.now.has_requests()
        return bool(found)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.now, name)


def switching(*arguments: Any, vllm_config: Any, **named: Any) -> SwitchScheduler:
    """Make both schedulers, as `--scheduler-cls`."""
    from benchmarks.speed.engine import stock_class
    from scheduler_adapters.engines.vllm_v1 import rank_scheduler

    named["vllm_config"], stock = vllm_config, stock_class(vllm_config)
    return SwitchScheduler(
        stock(*arguments, **named), rank_scheduler.scheduler(*arguments, **named)
    )


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
    url: str, seed: int, *, words: int, tokens: int, count: int, most: int = OPEN
) -> None:
    import aiohttp

    dice, places = random.Random(seed), asyncio.Semaphore(most)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, connector=connector) as session:

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


async def lone_ttft_s(url: str, seed: int, length: int) -> list[float]:
    """Return the times to the first token of lone streams."""
    import aiohttp

    dice, taken_s = random.Random(-seed), list[float]()
    async with aiohttp.ClientSession(url) as session:
        for _ in range(LONE):
            words = " ".join(f"w{dice.randrange(40)}" for _ in range(length))
            body = {"model": "tiny", "max_tokens": 4, "stream": True, "prompt": words}
            started_s = time.perf_counter()
            async with session.post("/v1/completions", json=body) as answer:
                await answer.content.readany()
                taken_s.append(time.perf_counter() - started_s)
                await answer.read()
    return taken_s


def serving(folder: Path, own: list[str], options: Any) -> AbstractContextManager[Live]:
    """`serve-vllm` with both sides; `_side` has the bytes of `SIDE`."""
    model = write_config(folder / "model", options.shape)
    (folder / "side").write_bytes(bytes(2))
    os.environ[SIDE] = str(folder / "side")
    vllms = [*OPTIONS, *options.vllms]
    return serve_vllm(folder, "", own, vllms, model=model, start=("-c", START))


Row = tuple[np.ndarray[Any, Any], list[float], list[list[float]]]
"""Of a pair, by side: CPU seconds of each part, seconds, times to first tokens."""


def measured(options: argparse.Namespace, start: int) -> list[Row]:
    """Return the pairs of one start."""
    load = {"words": options.words, "tokens": options.tokens, "count": options.requests}
    own, rows = [f"--policy={options.policy}", "--timeline=null"], list[Row]()
    own += [f"--bundle={options.bundle}"] if options.bundle else []
    ours = 0 if options.control else 1
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), own, options) as live:
        dice, server, side = random.Random(start), psutil.Process(live.pid), _side()
        for pair in range(-1, options.pairs):
            cpu, wall_s, ttft_s = np.zeros((2, len(PARTS))), [0.0, 0.0], [[0.0], [0.0]]
            for number in dice.sample((0, 1), 2):
                turn(side, number and ours)
                before, began_s = cpu_s(server), time.perf_counter()
                asyncio.run(burst(live.url, pair + 1, **load))
                wall_s[number] = time.perf_counter() - began_s
                cpu[number] = cpu_s(server) - before
                ttft_s[number] = asyncio.run(lone_ttft_s(live.url, pair + 1, options.words // 4))
            if pair >= 0:  # the first one loads code
                rows.append((cpu, wall_s, ttft_s))
        turn(side, 1)
        asyncio.run(burst(live.url, -1, **load | {"count": 200}, most=200))
        samples = live.samples("lengthwise_engine_requests_total")
        found = {sample.labels["hint"]: sample.value for sample in samples}
        expected = 200 + ours * (1 + options.pairs) * (options.requests + LONE)
        assert found["scored"] + found["unscored"] == expected, found
        print("our requests by their score, a burst of 200 at once included:", found, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=2, help="of the server")
    parser.add_argument("--pairs", type=int, default=30, help="of bursts after each start")
    parser.add_argument("--requests", type=int, default=64, help="of a burst")
    parser.add_argument("--policy", default="pars")
    parser.add_argument("--bundle", default=None)
    parser.add_argument("--control", action="store_true", help="vLLM's own twice")
    parser.add_argument("--words", type=int, default=400, help="of the longest prompt")
    parser.add_argument("--tokens", type=int, default=16, help="of each answer")
    parser.add_argument("--shape", default="tiny", help="of the random model")
    parser.add_argument("vllms", nargs="*", help="further options of vLLM, after --")
    options = parser.parse_args()
    rows = [row for start in range(options.starts) for row in measured(options, start)]
    spent, took_s, ttft_s = (np.array([row[part] for row in rows]) for part in range(3))
    first_ms = 1e3 * np.median(ttft_s, axis=2)
    plain_ms, ours_ms = np.median(first_ms, axis=0)
    more, low, high = with_interval(first_ms[:, 1] - first_ms[:, 0])
    print(
        f"TTFT of a lone request, ms: {plain_ms:.2f} plain, {ours_ms:.2f} ours; "
        f"{more:+.2f} [{low:+.2f}, {high:+.2f}]"
    )
    ratio, low, high = with_interval(took_s[:, 0] / took_s[:, 1])
    print(f"tokens per second, ours / plain: {ratio:.3f} [{low:.3f}, {high:.3f}]")
    parts = {"all": slice(None)} | {name: [number] for number, name in enumerate(PARTS)}
    for name, part in parts.items():
        plain_s, ours_s = np.moveaxis(spent[..., part].sum(axis=2), 1, 0)
        plain_ms, ours_ms = (1e3 * np.median(one) / options.requests for one in (plain_s, ours_s))
        ratio, low, high = with_interval(plain_s / ours_s)
        print(
            f"{name:11} CPU ms per request: {plain_ms:.2f} plain, {ours_ms:.2f} ours; tokens per "
            f"CPU second, ours / plain: {ratio:.3f} [{low:.3f}, {high:.3f}]"
        )


if __name__ == "__main__":
    main()
