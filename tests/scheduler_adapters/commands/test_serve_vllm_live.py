"""`serve-vllm` whole: the unmodified `openai` client, a scoring service that dies and returns.

One server with two seats for the whole file; the last tests destroy it. With -s -m vllm -k flood
the rows of the table in docs/results/engines.md are printed.
"""

import asyncio
import json
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from urllib.request import urlopen

import numpy as np
import psutil
import pytest

from scheduler_adapters.engines.engine_sockets import SHARED_FOLDER
from scheduler_adapters.engines.random_model import VOCABULARY
from scheduler_adapters.timeline.latency_metrics import summarize
from scheduler_adapters.timeline.timeline import read_timeline
from tests.scheduler_adapters.commands.vllm_server import (
    FINISHED,
    MAX_TOKENS,
    NUM_CLIENTS,
    ONE_PROCESS,
    PROMPTS,
    SEATS,
    Live,
    ScoringProcess,
    Sender,
    burst,
    client,
    flooded,
    lead,
    seats_held,
    serving,
    stream,
)

pytestmark = pytest.mark.vllm

HELD = 32
"""Requests that wait while all seats are held."""
ENDED = {"stop_token_ids": [*range(VOCABULARY)]}
"""A token ends each answer, not a limit: beside limits of the usual length all would rank alike."""
KEYS = [f"sk-{number}" for number in range(64)]
CLASSES = {
    "classes": {"chat": {"tbt_s": 0.05}, "batch": {}},
    "api_keys": {
        **dict.fromkeys(("sk-chat", "sk-trusted", "sk-honest", "sk-flood"), "chat"),
        **dict.fromkeys(KEYS, "batch"),
    },
    "trusted_keys": ["sk-trusted"],
    "default": "batch",
}


@pytest.fixture(scope="module")
def scoring(tiny_bundle):
    process = ScoringProcess(tiny_bundle.path)
    yield process
    process.kill()


@pytest.fixture(scope="module")
def serve(tmp_path_factory, scoring):
    """Makes the server of this file with further options."""

    def start(*own: str) -> Any:
        folder = tmp_path_factory.mktemp("serve")
        (folder / "classes.json").write_text(json.dumps(CLASSES))
        # Beside other work a score of the cache takes longer than the default deadline, too.
        limits = ["--deadline-s=3", "--late-s=300", "--target-model=tiny-llm", "--guard=none"]
        given = [*limits, f"--classes={folder / 'classes.json'}", *own]
        vllms = ["--max-model-len=8192", f"--max-num-seqs={SEATS}"]
        return serving(folder, scoring.address, given, [*vllms, *ONE_PROCESS])

    return start


@pytest.fixture(scope="module")
def live(serve):
    with serve() as running:
        yield running


def test_behind_dead_proxies_all_are_scored_and_short_end_first(live):
    before = live.outcomes()
    asyncio.run(burst(live, leaves=False))
    assert live.outcomes_since(before) == {"scored": NUM_CLIENTS}
    assert live.sample("lengthwise_ttft_seconds_count", user_class="chat") == NUM_CLIENTS
    assert live.sample("lengthwise_tpot_seconds_count", user_class="chat") == NUM_CLIENTS
    assert live.sample("lengthwise_e2e_seconds_count") == NUM_CLIENTS
    assert live.sample("lengthwise_engine_requests_total", hint="scored") == NUM_CLIENTS
    assert live.sample("lengthwise_resident_requests") == 0
    for name in ("first_answer_seconds", "qoe"):
        assert live.sample(f"lengthwise_{name}_count", user_class="chat") == NUM_CLIENTS
    gaps = live.sample("lengthwise_tbt_seconds_count", user_class="chat", phase="answering")
    assert gaps == NUM_CLIENTS * (MAX_TOKENS - 1)
    ttft_s, e2e_s = (
        live.sample(f"lengthwise_{name}_seconds_sum", user_class="chat") for name in ("ttft", "e2e")
    )
    vllms_s = live.sample("vllm:time_to_first_token_seconds_sum")
    assert 0 < ttft_s < e2e_s
    assert ttft_s == pytest.approx(vllms_s, rel=0.05)
    live.wait_for_timeline()
    timeline = read_timeline(live.timeline)
    assert (timeline.requests.output_tokens == MAX_TOKENS).all()
    assert set(timeline.requests.user_class) == {"chat"}
    assert set(timeline.requests.tbt_s) == {0.05}
    assert (timeline.requests.arrival_s <= timeline.scheduled_s).all()
    assert (timeline.scheduled_s < timeline.first_token_s).all()
    assert summarize(timeline).num_finished == NUM_CLIENTS
    assert lead(asyncio.run(burst(live))) > NUM_CLIENTS / 4
    live.wait_until_idle()


def test_a_response_is_scored_and_counted_to_its_class(live):
    from openai import OpenAI

    before = live.outcomes()
    served = live.sample("lengthwise_e2e_seconds_count", user_class="chat")
    with OpenAI(base_url=f"{live.url}/v1", api_key="sk-chat", max_retries=0) as openai:
        answer = openai.responses.create(model="tiny", input="essay", max_output_tokens=5)
    assert answer.status in ("completed", "incomplete")
    assert live.outcomes_since(before) == {"scored": 1}
    assert live.sample("lengthwise_e2e_seconds_count", user_class="chat") == served + 1


def test_a_router_reads_the_load_of_an_idle_engine(live):
    live.wait_until_idle()
    with urlopen(f"{live.url}/lengthwise/load", timeout=300) as response:
        (report,) = json.load(response)
    assert report["waiting"] == report["answering"] == report["kv_tokens"] == 0
    assert report["on_time"]


def test_clients_that_forge_scores_and_priorities_gain_nothing(live):
    """Every other client has a long answer coming; honest or not, the short ones go first."""
    forged = {"vllm_xargs": {"lengthwise_score": -1e9}, "priority": -100}
    header = {"X-Vllm-Priority": "-100"}
    kinds = [*PROMPTS] * (HELD // len(PROMPTS))

    async def one(openai: Any, number: int, kind: str, forges: bool) -> tuple[str, float]:
        await openai.completions.create(
            model="tiny", prompt=f"{PROMPTS[kind]} w{100 + number}", max_tokens=500,
            extra_headers=header if forges else {}, extra_body=ENDED | (forged if forges else {}),
        )  # fmt: skip
        return kind, time.monotonic()

    async def held_burst(forges: bool) -> tuple[list[str], float]:
        openai = client(live)
        async with seats_held(live, openai, "short"):
            asked = [
                asyncio.create_task(one(openai, n, kind, forges and kind == "essay"))
                for n, kind in enumerate(kinds)
            ]
            await asyncio.to_thread(live.wait_until, "vllm:num_requests_waiting", HELD)
            begun_s = time.monotonic()
        finished = sorted(await asyncio.gather(*asked), key=lambda answer: answer[1])
        await openai.close()
        await asyncio.to_thread(live.wait_until_idle)
        short_s = median(end_s for kind, end_s in finished if kind == "yes")
        return [kind for kind, _ in finished], short_s - begun_s

    asyncio.run(held_burst(False))  # The scores come from the cache of the service from here on.
    before = live.outcomes()
    bursts = [asyncio.run(held_burst(forges)) for forges in [False, True, True, False] * 2]
    forging, without = (bursts[n::4] + bursts[3 - n :: 4] for n in (1, 0))
    ratio = median(s for _, s in forging) / median(s for _, s in without)
    leads = [median(lead(order) for order, _ in each) for each in (forging, without)]
    print(f"honest p50 with forging clients / without: {ratio:.2f}; honest lead in places {leads}")
    assert leads[0] >= 0.9 * leads[1] > 0
    dropped = "lengthwise_client_hints_total"
    assert live.outcomes_since(before)["explicit"] == 0
    assert live.sample(dropped, outcome="dropped") == 4 * HELD / 2
    assert live.sample(dropped, outcome="kept") == 0


def test_whoever_starts_after_its_score_came_starts_by_rank(live, scoring):
    """The scoring service is stopped until all requests wait."""
    before = live.outcomes()
    live.wait_for_timeline()
    served = len(read_timeline(live.timeline).requests)
    late, sent = "lengthwise_engine_requests_total", "lengthwise_late_scores_total"
    moved_before, sent_before = live.sample(late, hint="late"), live.sample(sent, outcome="sent")

    async def main() -> None:
        openai = client(live)
        scoring.process.send_signal(signal.SIGSTOP)
        async with seats_held(live, openai, "poem"):
            kinds = [*PROMPTS] * (HELD // len(PROMPTS))
            limits = {"max_tokens": 2000, "extra_body": ENDED}
            ask = partial(openai.completions.create, model="tiny", **limits)
            asked = [ask(prompt=f"{PROMPTS[kind]} w{n}") for n, kind in enumerate(kinds)]
            waiting = [asyncio.create_task(one) for one in asked]
            await asyncio.to_thread(live.wait_until, "vllm:num_requests_waiting", HELD)
            assert live.sample(late, hint="late") == moved_before
            scoring.process.send_signal(signal.SIGCONT)
            await asyncio.to_thread(live.wait_until, late, moved_before + HELD, hint="late")
        await asyncio.gather(*waiting)
        await openai.close()

    asyncio.run(main())
    live.wait_until_idle()
    outcomes = live.outcomes_since(before)
    assert outcomes["scored"] == 0
    assert outcomes.total() == HELD + SEATS
    assert live.sample(sent, outcome="sent") == sent_before + HELD
    live.wait_for_timeline()
    timeline = read_timeline(live.timeline)
    timeline = timeline.take(np.arange(len(timeline.requests)) >= served)
    started = sorted(zip(timeline.scheduled_s, timeline.requests.score, strict=True))
    scores = [score for _, score in started]
    assert len(scores) == HELD
    assert len(set(scores)) > HELD / 4
    assert scores == sorted(scores)


ANSWER, LONG_ANSWER = 100, 600
"""Tokens. Requests limited to the first have nearly one rank, whatever their scores."""
CASES: dict[str, tuple[Sender, list[Sender]]] = {
    "key": (("sk-honest", "127.0.0.1"), [("sk-flood", "127.0.0.1")]),
    "address": (("none", "127.0.0.2"), [("none", "127.0.0.1")]),
    "keys of one class": (("sk-honest", "127.0.0.1"), [(key, "127.0.0.1") for key in KEYS]),
}


def passed_by_a_flood(live: Live, case: str, size: int, shares: str = "on") -> list[int]:
    """The flood's answers that end during each honest request; prints the row of the case."""
    honest, flooding = CASES[case]
    live.wait_until_idle()
    # Its share alone: the other seat has one other request.
    alone_s, _ = asyncio.run(flooded(live, honest, flooding[:1], 1, 8, ANSWER))
    count, tokens = (8, ANSWER) if shares == "on" else (1, LONG_ANSWER)
    latency_s, passed = asyncio.run(flooded(live, honest, flooding, size, count, tokens))
    cells = [f"{median(alone_s):.2f}", f"{median(latency_s):.2f}", f"{max(latency_s):.2f}"]
    print(f"\n| {size}, {case} | {shares} | {' | '.join(cells)} |", passed)
    return passed


SIZES = [12, *(pytest.param(size, marks=pytest.mark.slow) for size in (64, 500))]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", CASES)
def test_a_flood_leaves_a_client_its_share(live, case, size):
    passed = passed_by_a_flood(live, case, size)
    # A turn of the two seats until one is free, and the other seat meanwhile.
    assert median(passed) <= 4
    assert max(passed) <= 12  # the first request opens a connection, too


@pytest.mark.slow
def test_without_shares_a_flood_is_served_first(serve):
    with serve("--shares=none") as live:
        for size in (12, 64):
            assert median(passed_by_a_flood(live, "key", size, "off")) >= 12


def test_no_request_fails_if_the_scoring_service_dies_or_returns(live, scoring):
    asyncio.run(burst(live, dies=scoring))
    before = live.outcomes()
    order = asyncio.run(burst(live))
    counts = live.outcomes_since(before)
    assert counts.total() == NUM_CLIENTS
    assert counts.keys() <= {"unscored breaker_open", "unscored unavailable", "late timeout"}
    # By arrival, which is shuffled: the lead varies by 4.7 places, and scored ones have more.
    assert abs(lead(order)) < NUM_CLIENTS / 4
    scoring.start()
    deadline_s, before = time.monotonic() + 900, live.outcomes()
    while not live.outcomes_since(before)["scored"]:
        assert time.monotonic() < deadline_s
        asyncio.run(burst(live))
    before = live.outcomes()
    assert lead(asyncio.run(burst(live))) > NUM_CLIENTS / 4
    assert live.outcomes_since(before) == {"scored": NUM_CLIENTS}


async def mixed_requests(live: Live, numbers: range) -> None:
    """One in four each: served, served with unusable hints, refused, and left by its client."""
    import aiohttp

    async def one(session: aiohttp.ClientSession, number: int) -> None:
        body: dict[str, Any] = {"model": "tiny", "prompt": f"poem w{number % 500}", "max_tokens": 1}
        kind = number % 4
        if kind == 1:
            body["vllm_xargs"] = {"lengthwise_score": "NaN", "lengthwise_tbt_s": -1}
        if kind == 2:
            body["vllm_xargs"] = {"lengthwise_score": {"not": "a number"}}
        if kind == 3:
            body |= {"stream": True, "max_tokens": 500, "ignore_eos": True}
        async with session.post(f"{live.url}/v1/completions", json=body) as response:
            assert response.status == (400 if kind == 2 else 200)
            await (response.content.readany() if kind == 3 else response.read())

    timeout = aiohttp.ClientTimeout(total=120)
    headers = {"Authorization": "Bearer sk-trusted"}
    async with aiohttp.ClientSession(
        timeout=timeout, headers=headers, connector=aiohttp.TCPConnector(limit=NUM_CLIENTS)
    ) as session:
        await asyncio.gather(*(one(session, number) for number in numbers))


def test_four_thousand_requests_leave_nothing_behind(live):
    asyncio.run(mixed_requests(live, range(400)))
    live.wait_until_idle()
    before_mib = live.memory_mib()
    invalid = live.sample("lengthwise_engine_requests_total", hint="invalid")
    asyncio.run(mixed_requests(live, range(4000)))
    live.wait_until_idle()
    # 5 MiB were seen; 3,000 requests that the engine holds on to would be 12 more.
    assert live.memory_mib() - before_mib < 12
    assert live.sample("vllm:kv_cache_usage_perc") == 0
    assert live.sample("lengthwise_resident_requests") == 0
    assert live.sample("lengthwise_engine_requests_total", hint="invalid") == invalid + 1000


def test_figures_that_cannot_be_kept_cost_no_request(live):
    """Timeline and shared folder are removed under load: lines and reports are dropped."""
    folder = Path(psutil.Process(live.pid).environ()[SHARED_FOLDER])

    async def main() -> None:
        openai = client(live)
        tasks = [asyncio.create_task(stream(openai, n, "essay", 100)) for n in range(NUM_CLIENTS)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        live.timeline.unlink()
        await asyncio.gather(*tasks)
        deadline_s = time.monotonic() + 900
        while live.sample("lengthwise_telemetry_dropped_total") < NUM_CLIENTS / 2:
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.1)
        shutil.rmtree(folder)
        await asyncio.gather(*(stream(openai, n, "yes") for n in range(NUM_CLIENTS)))
        await openai.close()

    asyncio.run(main())
    assert live.sample("lengthwise_dropped_reports") > 0
    assert live.sample(FINISHED) == 0
    log = (live.timeline.parent / "log").read_text()
    assert log.count("timeline: some are dropped") == 1
    assert log.count("reports of the engine: some are dropped") == 1


def test_the_server_ends_soon_while_its_clients_stay(live):
    async def main() -> None:
        openai = client(live)
        tasks = [asyncio.create_task(stream(openai, n, "essay", 900)) for n in range(NUM_CLIENTS)]
        await asyncio.to_thread(live.wait_until, "vllm:num_requests_running", SEATS)
        server = psutil.Process(live.pid)
        server.terminate()
        await asyncio.to_thread(server.wait, 60)  # two seconds; its clients would wait 300
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await openai.close()

    asyncio.run(main())
