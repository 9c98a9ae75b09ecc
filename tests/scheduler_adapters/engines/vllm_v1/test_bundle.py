"""A tracker bundle inside the real vLLM: `LLM.generate` and `LLM.chat`, token ids and lists."""

import random
import re
import shutil
from typing import Any

import numpy as np
import pytest

from lengthwise.errors import BundleError
from scheduler_adapters.engines.engine_metrics import observers_from_environment
from scheduler_adapters.engines.engine_sockets import SHARED_FOLDER
from scheduler_adapters.engines.random_model import VOCABULARY, make_tiny_model
from scheduler_adapters.engines.vllm_v1.in_process import scheduler_of, set_environment
from scheduler_adapters.planner.request_annotations import AnnotationCounts
from scheduler_adapters.policy import load_policy
from scheduler_adapters.timeline.live_log import VARIABLE
from scheduler_adapters.timeline.timeline import read_timeline
from tests.scheduler_adapters.engines.chat_templates import CHATML, byte_tokenizer
from tests.scheduler_adapters.late_burst import SEATS, ByRank
from tests.scoring_service.waiting import wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

WORDS = ("yes", "no", "short", "poem", "long", "essay")
PROMPT = "Write a long essay about rain."


@pytest.fixture(scope="module")
def llm(tmp_path_factory, tiny_bundle):
    set_environment()
    from vllm import LLM

    folder = make_tiny_model(tmp_path_factory.mktemp("model"))
    byte_tokenizer(CHATML, VOCABULARY).save_pretrained(folder)
    settings = {"bundle": str(tiny_bundle.path), "deadline_s": 30, "guard": "none"}
    made = LLM(
        str(folder),
        scheduler_cls="scheduler_adapters.engines.vllm_v1.pars",
        additional_config={"lengthwise": settings},
        dtype="bfloat16",
        enforce_eager=True,
        enable_prompt_embeds=True,
        max_model_len=1024,
        max_num_seqs=SEATS,
        max_num_batched_tokens=1024,
        kv_cache_memory_bytes=64 << 20,
    )
    yield made
    made.llm_engine.engine_core.shutdown()


@pytest.fixture
def watched(llm):
    """The engine's tracker, newly made, and the requests that started under it."""
    scheduler = scheduler_of(llm.llm_engine)
    by_rank = ByRank(lambda: (each.lengthwise.rank for each in scheduler.waiting.queue))
    started: list[Any] = []
    by_rank.admitted, before = (
        lambda view, at_s: (started.append(view), before(view, at_s)),
        (by_rank.admitted),
    )
    observers = [by_rank, scheduler._lengthwise_watch]
    scheduler.lengthwise_start(scheduler.lengthwise_tracker.policy, observers=observers)
    return scheduler.lengthwise_tracker, started


def few() -> Any:
    """Answers of one token, whose length is open to the scheduler."""
    from vllm import SamplingParams

    return SamplingParams(max_tokens=900, stop_token_ids=[*range(VOCABULARY)])


def test_a_burst_of_200_is_ranked_before_its_first_step(llm, watched):
    dice = random.Random(0)
    prompts = [" ".join(dice.choices(WORDS, k=12)) for _ in range(200)]
    llm.generate(prompts, few(), use_tqdm=False)
    tracker, started = watched
    counts = tracker.annotation_counts
    assert counts == AnnotationCounts(scored=200)
    assert all(view.score is not None for view in started)
    scores = [view.score for view in started]
    assert max(scores[:SEATS]) <= min(scores[SEATS:])


def test_arrival_orders_once_it_is_wanted_and_the_watch_counts(llm, watched, monkeypatch):
    watch = scheduler_of(llm.llm_engine)._lengthwise_watch
    monkeypatch.setattr(watch, "_order_by", lambda reason: None)
    (tracker, started), engine, before = watched, llm.llm_engine, watch.figures.num_answers
    for n in range(200):
        engine.add_request(f"{n}", f"{WORDS[n % 6]} {n}", few())
    engine.step()
    engine.step()
    tracker.policy.is_wanted, num_ranked = True, len(started)
    while engine.has_unfinished_requests():
        engine.step()
    tracker.policy.is_wanted = False
    numbers = [view.number for view in started]
    assert num_ranked < 200 == len(numbers)
    assert numbers[num_ranked:] == sorted(numbers[num_ranked:])
    assert numbers[:num_ranked] != sorted(numbers[:num_ranked])
    wait_until(lambda: watch.figures.num_answers > before)


def test_counters_say_what_the_timeline_says(llm, tmp_path, monkeypatch):
    """In a burst under a strict guard, scored by the engine or by the client; then at once."""
    monkeypatch.setenv(SHARED_FOLDER, str(tmp_path))
    monkeypatch.setenv(VARIABLE, str(tmp_path / "timeline.jsonl"))
    scheduler, dice = scheduler_of(llm.llm_engine), random.Random(1)
    observers = observers_from_environment(scheduler, thinks=False)
    scheduler.lengthwise_start(load_policy("pars", times=0.1, at_least=4), observers=observers)
    sent = few()
    sent.extra_args = {"lengthwise_score": 2.5}
    llm.generate(
        [" ".join(dice.choices(WORDS, k=12)) for _ in range(100)],
        [sent if number % 5 == 0 else few() for number in range(100)],
        use_tqdm=False,
    )
    llm.generate(PROMPT, few(), use_tqdm=False)
    text = observers[-1].report()["metrics"]
    assert re.search(r'^lengthwise_info{.*limits="times 0.1, .*policy="s.*ranker="tiny', text, re.M)
    for observer in observers:
        observer.close()
    scheduler.lengthwise_start(load_policy("pars", guard="none"))
    (counted,) = re.findall(r"^lengthwise_admissions_past_lower_score_total (\S+)$", text, re.M)
    hints = dict(re.findall(r'^lengthwise_engine_requests_total{hint="(\w+)"} (\S+)$', text, re.M))
    timeline = read_timeline(tmp_path / "timeline.jsonl")
    scores, began_s = timeline.requests.score, timeline.scheduled_s
    assert float(hints["scored"]) == np.isfinite(scores).sum() == 100
    assert float(hints["unscored"]) == float(hints["at_once"]) == np.isnan(scores).sum() == 1
    past = sum(
        (scores[began_s > at_s] < score).any() for at_s, score in zip(began_s, scores, strict=True)
    )
    assert float(counted) == past > 10


def test_a_prompt_has_one_score_by_every_way_in(llm, watched):
    watched[0].holds._scores_all = True
    ids = llm.get_tokenizer().encode(PROMPT, add_special_tokens=False)
    llm.generate(PROMPT, few(), use_tqdm=False)
    llm.generate({"prompt_token_ids": ids}, few(), use_tqdm=False)
    llm.generate([PROMPT, {"prompt_token_ids": ids}], few(), use_tqdm=False)
    chat = [{"role": "user", "content": PROMPT}]
    llm.chat(chat, few(), use_tqdm=False)
    llm.chat([chat, chat], few(), use_tqdm=False)
    tracker, started = watched
    assert tracker.annotation_counts == AnnotationCounts(scored=7)
    assert len({view.score for view in started}) == 1


def test_a_prompt_that_cannot_be_decoded_is_unranked_and_counted(llm, watched):
    import torch

    watched[0].holds._scores_all = True
    embeds = torch.zeros((5, llm.model_config.get_hidden_size()), dtype=torch.bfloat16)
    llm.generate([{"prompt_embeds": embeds}, PROMPT], few(), use_tqdm=False)
    counted = AnnotationCounts(scored=1, unscored=1, undecodable=1)
    assert watched[0].annotation_counts == counted


def test_a_broken_bundle_is_refused_before_the_model_loads(llm, tiny_bundle, tmp_path):
    from vllm import EngineArgs

    broken = shutil.copytree(tiny_bundle.path, tmp_path / "broken")
    (broken / "model.onnx").write_bytes(b"")
    settings = {"lengthwise": {"policy": "pars", "bundle": str(broken)}}
    arguments = EngineArgs(
        model=llm.model_config.model,
        scheduler_cls="scheduler_adapters.engines.vllm_v1.scheduler",
        additional_config=settings,
    )
    with pytest.raises(BundleError, match=r"model\.onnx is damaged .*; export the bundle again"):
        arguments.create_engine_config()
