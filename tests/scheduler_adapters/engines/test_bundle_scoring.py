"""A bundle's scores in an engine: the bundle's own, by a thread that no prompt stops."""

import json
import shutil
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lengthwise.bundle import MANIFEST, ModelBundle
from lengthwise.conversation import described
from lengthwise.errors import BundleError, ConfigError, UnsupportedByEngine
from scheduler_adapters.engines import bundle_scoring
from scheduler_adapters.engines.bundle_scoring import BundleScoring, BundleSettings, _groups
from scheduler_adapters.planner.late_scores import LateScore
from scoring_service.ranker import reload
from scoring_service.ranker.model import RankerModel
from tests.scheduler_adapters.engines.chat_templates import TEMPLATES, byte_tokenizer
from tests.scoring_service.waiting import wait_until

WORDS = ("yes", "no", "short", "poem", "long", "essay")
LONG = [*range(6)] * 20


class Words:
    """A tokenizer of the served model with a word per token."""

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return " ".join(WORDS[number] for number in ids)


@pytest.fixture
def scoring(request, tiny_bundle):
    settings = BundleSettings(bundle=str(tiny_bundle.path), **getattr(request, "param", {}))
    with closing(BundleScoring(settings, Words())) as made:
        yield made


def scores_of(scoring: BundleScoring, *prompts: Any, client: str = "") -> list[LateScore]:
    taken: dict[str, LateScore] = {}
    for number, prompt in enumerate(prompts):
        assert scoring.submit(str(number), prompt, client, lambda one: taken.update({one.key: one}))
    scoring.wait(60)
    return [taken[str(number)] for number in range(len(prompts))]


def test_scores_are_those_of_the_bundle(scoring, tiny_bundle):
    prompts = [[0], [4, 5], [4, 5], [3, 1, 2, 0], LONG]
    expected = RankerModel.load(tiny_bundle).score_texts(
        [" ".join(WORDS[number] for number in prompt) for prompt in prompts]
    )
    found = scores_of(scoring, *prompts)
    assert [late.score for late in found] == pytest.approx(expected, abs=1e-5)


def test_a_ranker_of_descriptions_gets_them(tiny_bundle, tmp_path):
    place = tmp_path / "described"
    shutil.copytree(tiny_bundle.path, place)
    content = json.loads((place / MANIFEST).read_text())
    content |= {"training": {"data": {"description": 1}}, "golden": {}}
    (place / MANIFEST).write_text(json.dumps(content))
    model = RankerModel.load(ModelBundle.load(place))
    with closing(BundleScoring(BundleSettings(bundle=str(place)), Words())) as scoring:
        (late,) = scores_of(scoring, [4, 5])
    expected = RankerModel.load(tiny_bundle).score_texts([described("long essay")])
    assert late.score == pytest.approx(expected[0], abs=1e-5)
    assert model.score_texts(["long essay"]) == pytest.approx(expected, abs=1e-5)


def test_a_prompt_at_which_something_fails_stops_no_other(scoring, monkeypatch, caplog):
    found = scores_of(scoring, [0], [99], [], [98])
    assert [late.reason for late in found] == ["", "undecodable", "undecodable", "undecodable"]
    assert len([one for one in caplog.messages if "cannot decode a prompt" in one]) == 1
    model = scoring.model
    with monkeypatch.context() as patch:
        parts = ("tokenizer", "costs", "manifest")
        broken = SimpleNamespace(**{name: getattr(model, name) for name in parts})
        patch.setattr(scoring, "model", broken)
        assert scores_of(scoring, [4], [4])[1] == LateScore("1", None, reason="failed")
    assert scores_of(scoring, [0])[0].score == pytest.approx(found[0].score)


@pytest.mark.parametrize("scoring", [{"target_model": "tiny-llm"}], indirect=True)
def test_scores_carry_the_quantiles_of_the_target_model(scoring):
    (found,) = scores_of(scoring, [5, 5])
    assert found.quantiles == ((0.5, 800.0), (0.9, 2000.0))


@pytest.mark.parametrize("scoring", [{"unscored_last": True}, {}], indirect=True)
def test_a_prompt_read_in_part_ranks_near_the_highest_if_set(scoring):
    high, low = (late.score for late in scores_of(scoring, [5, 5], LONG))
    (none,) = scores_of(scoring, [])
    if scoring._settings.unscored_last:
        assert high - 0.01 < low < high == none.score
    else:
        assert low < 0.5 < high
        assert none.score is None
    assert none.reason == "undecodable"


def test_a_new_bundle_takes_over_a_bad_one_does_not(write_bundle, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(reload, "POLL_S", 0.02)
    folder = write_bundle(tmp_path / "bundle").path
    settings = BundleSettings(bundle=str(folder), target_model="tiny-llm", unscored_last=True)
    with closing(BundleScoring(settings, Words())) as scoring:
        (before,) = scores_of(scoring, [5])
        first = scoring.model.revision
        write_bundle(folder, shift=-5.0)
        wait_until(lambda: scoring.reloads["loaded"])
        none, after = scores_of(scoring, [], [5])
        assert (none.score, after.score) == (None, pytest.approx(before.score - 5))
        assert scoring.model.revision != first
        manifest = folder / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"tiny-llm": {', '"other": {'))
        wait_until(lambda: scoring.reloads["refused"])
        assert scores_of(scoring, [5])[0].score == after.score
    assert "is not calibrated for target_model 'tiny-llm'" in caplog.text


def test_clients_are_scored_in_turn_and_their_number_is_bounded(scoring, monkeypatch):
    monkeypatch.setattr(bundle_scoring, "MAX_KEPT", 5)
    scoring.close()  # nothing is taken from here on
    for key, client in zip("abcdef", ("x", "x", "x", "y", "x", "y"), strict=True):
        assert scoring.submit(key, [0], client, print) == (key != "f")
    scoring._is_closed = False
    assert [one.key for one in scoring._take()] == ["a", "d", "b", "c", "e"]


def test_groups_hold_prompts_that_cost_less_together():
    class Costs:
        max_batch, max_batched_tokens = 4, 64

        def predict_s(self, batch: int, tokens: int) -> float:
            return 1.0 + batch * tokens

    lengths = {"a": 8, "b": 8, "c": 9, "d": 40, "e": 8, "f": 8, "g": 90, "h": 90}
    read: Any = {text: SimpleNamespace(ids=[0] * size) for text, size in lengths.items()}
    groups = [*_groups(SimpleNamespace(costs=Costs()), read)]  # type: ignore[arg-type]
    assert groups == [["a", "b", "e", "f"], ["c"], ["d"], ["g"], ["h"]]


@pytest.mark.parametrize("family", TEMPLATES)
def test_a_prompt_scores_in_a_chat_as_it_does_bare(family, tiny_bundle):
    tokenizer = byte_tokenizer(TEMPLATES[family])
    prompts = ["yes", "Write a long essay about rain.", "a short poem\n\n- no rhymes\n- [x] yes"]
    bare = [tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts]
    chats = [
        tokenizer.encode(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
            ),
            add_special_tokens=False,
        )
        for prompt in prompts
    ]
    settings = BundleSettings(bundle=str(tiny_bundle.path))
    with closing(BundleScoring(settings, tokenizer)) as scoring:
        scores = [late.score for late in scores_of(scoring, *bare, *chats)]
    assert len({*scores[:3]}) == 3
    assert scores[:3] == pytest.approx(scores[3:], abs=1e-6)


def test_settings_are_checked_by_themselves(tiny_bundle, tmp_path, monkeypatch):
    path = str(tiny_bundle.path)
    switches = ({"score_all": "true"}, {"unscored_last": 0}, {"unscored_last": None})
    for wrong in ({"bundle": 3}, {"deadline_s": "1"}, {"deadline_s": 0}, *switches):
        with pytest.raises(ConfigError):
            BundleSettings(**{"bundle": path} | wrong)
    with pytest.raises(ConfigError, match="it knows tiny-llm"):
        BundleSettings(bundle=path, target_model="other").verify()
    with pytest.raises(BundleError, match="is not a model bundle"):
        BundleSettings(bundle=str(tmp_path)).verify()
    older = Path(shutil.copytree(tiny_bundle.path, tmp_path / "older"))
    manifest = older / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 0'))
    with pytest.raises(BundleError, match="is not of format 1"):
        BundleSettings(bundle=str(older)).verify()
    monkeypatch.setattr(bundle_scoring, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedByEngine, match="pip install onnxruntime"):
        BundleSettings(bundle=path).verify()


def test_a_chat_template_is_a_text_or_a_file(tmp_path):
    (tmp_path / "template").write_text("{{ messages }}")
    for given in ("{{ messages }}", str(tmp_path / "template")):
        assert BundleSettings(bundle="b", chat_template=given).template == "{{ messages }}"
    with pytest.raises(ConfigError, match="chat_template"):
        print(BundleSettings(bundle="b", chat_template=str(tmp_path / "none")).template)
