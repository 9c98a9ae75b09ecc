"""A teacher's scores are kept, standardised, and those of its own bundle."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import zscore

from lengthwise.bundle import ModelBundle
from lengthwise.errors import BundleError, ConfigError
from training.config import DataConfig, SplitConfig, TrainConfig
from training.export import teacher
from training.export.bundle_scores import score_prompts

PROMPTS = [f"long poem {'essay ' * (number % 7)}" for number in range(30)]


def test_scores_are_those_of_the_bundle_and_are_computed_once(tiny_bundle, tmp_path, monkeypatch):
    kept = tmp_path / "out" / "teacher.parquet"
    made = teacher.teach([[tiny_bundle]], PROMPTS[:20], PROMPTS[20:], kept, with_states=False)
    scores = score_prompts(tiny_bundle, PROMPTS)
    np.testing.assert_allclose(made.scores_NK[:, 0], (scores - scores.mean()) / scores.std())
    assert made.unlabelled == PROMPTS[20:]
    # The vector of a token is what the model makes of it between the tokenizer's own two.
    (alone,) = made.embeddings_VH[made.tokenizer.token_to_id("essay")]
    assert alone == pytest.approx(score_prompts(tiny_bundle, ["essay"])[0])

    calls = []
    monkeypatch.setattr(teacher, "score_prompts", lambda *a, **k: calls.append(a) or scores)
    again = teacher.teach([[tiny_bundle]], PROMPTS[:20], PROMPTS[20:], kept, with_states=False)
    np.testing.assert_array_equal(again.scores_NK, made.scores_NK)
    assert not calls
    teacher.teach([[tiny_bundle]], PROMPTS[:30], [], kept, with_states=False)
    assert not calls
    monkeypatch.setattr(teacher, "score_prompts", lambda *a, **k: np.zeros(10))
    with pytest.raises(BundleError, match="gives every prompt one score"):
        teacher.teach([[tiny_bundle]], PROMPTS[:10], [], kept, with_states=False)


def test_states_of_tokens_are_principal_components_of_variance_1(tiny_bundle, tmp_path):
    made = teacher.teach([[tiny_bundle]], PROMPTS, [], tmp_path / "kept", with_states=True)
    ids = [made.tokenizer.encode(prompt).ids for prompt in PROMPTS]
    assert [state.shape for state in made.states] == [(len(each), 1) for each in ids]
    # The tiny model has one number per token, so its only component is that number, scaled.
    states = np.concatenate(made.states)[:, 0].astype(float)
    assert (states.mean(), states.std()) == pytest.approx((0, 1), abs=0.02)
    alone = np.concatenate([made.embeddings_VH[each, 0] for each in ids])
    assert abs(np.corrcoef(states, alone)[0, 1]) > 0.999


def test_of_several_teachers_the_mean_is_learnt(tiny_bundle, write_bundle, tmp_path, monkeypatch):
    other = write_bundle(tmp_path / "other", shift=1.0)
    noise = np.random.default_rng(0).normal(size=30)
    scored = {tiny_bundle.path: 9 * noise, other.path: noise**2}
    monkeypatch.setattr(teacher, "score_prompts", lambda bundle, _: scored[bundle.path])
    made = teacher.teach(
        [[tiny_bundle], [other]], PROMPTS, [], tmp_path / "kept.parquet", with_states=False
    )
    expected = zscore(zscore(noise) + zscore(noise**2))
    np.testing.assert_allclose(made.scores_NK[:, 0], expected, atol=1e-9)
    assert made.revision == f"{tiny_bundle.manifest.revision} {other.manifest.revision}"


def test_a_teacher_of_other_test_prompts_or_lengths_is_refused(tiny_bundle):
    def bundle(seed: int = 0, label: str = "output_tokens") -> ModelBundle:
        split = {"seed": seed, "val_fraction": 0.05, "test_fraction": 0.15}
        manifest = replace(tiny_bundle.manifest, label=label, training={"split": split})
        return replace(tiny_bundle, manifest=manifest)

    config = TrainConfig()
    assert teacher.find_teachers(bundle(), config) == [bundle()]
    for wrong, of, message in (
        (bundle(seed=3), config, "its --split.seed 3"),
        (bundle(), replace(config, split=SplitConfig(test_fraction=0.2)), "at most 0.2 together"),
        (bundle(label="answer_tokens"), config, "give --data.label answer_tokens"),
    ):
        with pytest.raises(ConfigError, match=message):
            teacher.find_teachers(wrong, of)
    heads = replace(config, data=DataConfig(heads=("answer_tokens",)))
    with pytest.raises(BundleError):
        teacher.find_teachers(bundle(), heads)
