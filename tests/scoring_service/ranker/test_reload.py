"""A new bundle takes over, a bad one does not, and no call notices either."""

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from lengthwise.bundle import FP32, TOKENIZER, ModelBundle
from lengthwise.errors import BundleError
from scoring_service.client import Score, ScoringClient
from scoring_service.ranker import reload
from scoring_service.ranker.model import RankerModel
from scoring_service.ranker.reload import ModelReloader
from scoring_service.server.server import ScoringServer
from scoring_service.service.config import ServerConfig
from tests.scoring_service.waiting import wait_until


@pytest.fixture
def reloader(service, folder, outcomes):
    return ModelReloader(service, lambda: folder, outcomes.append)


def rewrite(folder: Path, change=lambda work: None, **manifest) -> None:
    """Push an altered copy of the bundle into its own folder."""
    bundle = ModelBundle.load(folder)

    def fill(work: Path) -> None:
        for name in bundle.manifest.files:
            shutil.copy(bundle.path / name, work / name)
        change(work)

    ModelBundle.write(folder, replace(bundle.manifest, **manifest), fill)


def test_a_new_version_takes_over_and_the_same_changes_nothing(
    write_bundle, service, reloader, folder, outcomes
):
    before = service.model
    write_bundle(folder)
    reloader.poll()
    reloader.poll()
    assert service.model is before
    write_bundle(folder, shift=1.0)
    reloader.poll()
    assert service.model.score([[5]])[0] == pytest.approx(before.score([[5]])[0] + 1)
    assert service.model.revision != before.revision
    assert outcomes == ["loaded"]


def other(**manifest):
    """A function that pushes a bundle with other files and other fields."""
    return lambda folder: rewrite(folder, lambda work: (work / "note").write_text("x"), **manifest)


@pytest.mark.parametrize(
    "push",
    [
        lambda folder: (folder / FP32).write_bytes(b"damaged"),
        lambda folder: (folder / TOKENIZER).unlink(),
        other(name="another"),
        other(label="reasoning_tokens"),
        other(golden={"yes": 5.0, "no": 6.0, "essay": 7.0}),
    ],
)
def test_a_bad_bundle_is_refused_and_the_old_one_serves_on(
    service, reloader, folder, outcomes, caplog, push
):
    before = service.model
    push(folder)
    reloader.poll()
    reloader.poll()
    assert service.model is before
    assert outcomes == ["refused"]  # once: the same files would fail again
    assert "serves on" in caplog.text


def test_a_bundle_that_is_copied_slowly_takes_over_when_whole(
    write_bundle, service, reloader, folder, tmp_path, outcomes
):
    new = write_bundle(tmp_path / "new", shift=1.0)
    for path in sorted(new.path.iterdir()):
        shutil.copy(path, folder / path.name)
        reloader.poll()
    assert service.model.revision == new.manifest.revision
    assert outcomes[0] == "refused"  # A bad one before does not count.
    assert outcomes[-1] == "loaded"


def test_a_folder_that_is_gone_is_waited_for(
    write_bundle, service, reloader, folder, outcomes, caplog
):
    shutil.rmtree(folder)
    reloader.poll()
    reloader.poll()
    assert caplog.text.count("no bundle to reload") == 1
    write_bundle(folder, shift=1.0)
    reloader.poll()
    assert outcomes == ["loaded"]


def test_golden_prompts_that_are_met_are_accepted(service, folder):
    golden = dict(zip(("yes", "essay"), service.model.score_texts(["yes", "essay"]), strict=True))
    rewrite(folder, golden=golden)
    RankerModel.load(ModelBundle.load(folder))
    rewrite(folder, golden={**golden, "poem": 3.0})
    with pytest.raises(BundleError, match="golden"):
        RankerModel.load(ModelBundle.load(folder))


def test_no_call_fails_while_versions_change_under_load(write_bundle, service, folder, monkeypatch):
    monkeypatch.setattr(reload, "POLL_S", 0.02)
    config = ServerConfig(address="127.0.0.1:0", cache_entries=0)
    server = ScoringServer(service.model, config, lambda: folder)
    server.start()
    stop = threading.Event()
    seen: set[tuple[str, float]] = set()

    def ask(_: int) -> None:
        with ScoringClient(server.target, timeout_s=60) as client:
            while not stop.is_set():
                (score,) = client.score_batch(["essay"])
                assert isinstance(score, Score)
                seen.add((score.revision, round(score.value, 3)))

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(ask, n) for n in range(4)]
        for shift in (1.0, 2.0, 3.0):
            wait_until(lambda shift=shift: len(seen) == shift)
            write_bundle(folder, shift=shift)
        wait_until(lambda: len(seen) == 4)
        stop.set()
        for future in futures:
            future.result(60)
    server.stop()
    assert len({revision for revision, _ in seen}) == len(seen) == 4, "each has one score"
