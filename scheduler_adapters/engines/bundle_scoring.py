"""A ranker bundle inside an engine: a thread scores each prompt that enters without a score.

A step never scores. It reads the scores that the thread has made since the last step
(`late_scores.py`). While seats are scarce, it holds a request back until then; while none waits,
nothing is scored (`ScoreHolds`). An error at one prompt leaves that request without a score.
Imports no engine.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter as Tally, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from lengthwise.bundle import ModelBundle
from lengthwise.errors import ConfigError, UnsupportedByEngine, raised_as, require
from lengthwise.settings import Range, settings
from lengthwise.tables.prompt_text import CutText
from scheduler_adapters.engines.chat_frames import ChatFrames
from scheduler_adapters.planner.late_scores import MAX_KEPT, LateScore

if TYPE_CHECKING:
    from scoring_service.ranker.model import RankerModel
    from scoring_service.ranker.reload import ModelReloader
    from scoring_service.tokenizing import TokenizedPrompt

log = logging.getLogger(__name__)

_CUT_SPAN: Final = 1e-3
_PACKAGES: Final = ("onnxruntime", "tokenizers", "numpy")
_TOGETHER: Final = 32
"""Prompts that are taken from the queue at once."""


Deadline = Annotated[float, Range(above=0, below=60)]


@settings
class BundleSettings:
    """A ranker in the engine, as named in the engine's settings."""

    bundle: str
    """Folder of the model bundle."""
    deadline_s: Deadline = 0.05
    """Most seconds that a request is held until its score arrives, while more requests wait than
    can start."""
    score_all: bool = False
    """True: hold and score the requests that could start at once as well."""
    target_model: str | None = None
    """Model of the bundle's calibration: requests then also get the quantiles of its response
    lengths. None: scores only."""
    unscored_last: bool = False
    """True: a request without text ranks like the highest score so far, one that the ranker reads
    in part just before it. False: like the median, and by that part."""
    chat_template: str | None = None
    """File or text of a chat template that replaces the model's own (vLLM's --chat-template)."""

    def __post_init__(self) -> None:
        for name in ("bundle", "target_model", "chat_template"):
            value = getattr(self, name)
            require(name, repr(value), isinstance(value or name, str), "a text")
        for name in ("score_all", "unscored_last"):
            require(name, getattr(self, name), type(getattr(self, name)) is bool, "true or false")

    def verify(self) -> ModelBundle:
        """Verify the bundle's files and what is needed to run it, without loading it.

        Raises BundleError for a bundle that is absent, damaged or of another format, ConfigError
        for an unknown target model, UnsupportedByEngine for a missing package.
        """
        bundle = ModelBundle.load(self.bundle)
        if lacking := [name for name in _PACKAGES if find_spec(name) is None]:
            raise UnsupportedByEngine(
                f"a bundle in the engine needs {', '.join(lacking)}; pip install {lacking[0]}"
            )
        known, _ = bundle.manifest.calibration, self.template
        if self.target_model is not None and self.target_model not in known:
            raise ConfigError(
                f"{self.bundle} is not calibrated for target_model {self.target_model!r}; it knows "
                f"{', '.join(known) or 'none'}; name one of these, or leave it out"
            )
        return bundle

    @property
    def template(self) -> str | None:
        """The chat template's text. Raises ConfigError for a file that cannot be read."""
        if (given := self.chat_template) is None or "{" in given:
            return given
        with raised_as(ConfigError, "chat_template cannot be read ({}); name a file", OSError):
            return Path(given).read_text()


OWN: Final = frozenset(field.name for field in fields(BundleSettings))
"""Names of the settings of a ranker in an engine."""


class _Waiting(NamedTuple):
    key: str
    prompt: Sequence[int]
    take: Callable[[LateScore], object]


class BundleScoring:
    """Scores prompts in a thread, those of all clients in turn; see `PromptScoring`.

    A new bundle in the folder takes over between two batches: scores that were made stay as they
    are. Raises BundleError, ConfigError or UnsupportedByEngine for a bundle that cannot be used.

    Args:
        tokenizer: of the served model, as transformers or vLLM loads it.
    """

    def __init__(self, settings: BundleSettings, tokenizer: Any) -> None:
        bundle = settings.verify()
        from scoring_service.ranker.model import RankerModel
        from scoring_service.ranker.reload import ModelReloader

        self.model: RankerModel = RankerModel.load(bundle)
        self.reloads = Tally[str](loaded=0, refused=0)
        self._reloader: ModelReloader = ModelReloader(
            self,
            locate=lambda: bundle.path,
            count=lambda outcome: self.reloads.update([outcome]),
            verify=lambda _: settings.verify(),
        )
        self._frames = ChatFrames(tokenizer, settings.template)
        self._settings = settings
        self.hold_s, self.score_all = settings.deadline_s, settings.score_all
        self._changed = threading.Condition()
        self._clients: dict[str, deque[_Waiting]] = {}
        """Client -> its waiting prompts; the client that is next is first."""
        self._num_open = 0
        """Prompts that wait or are being scored."""
        self._is_closed = False
        self._highest = -inf
        """Of the scores by `_scored_by`."""
        self._scored_by = self.model
        self._logged: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="lengthwise-scores", daemon=True)
        self._thread.start()
        self._reloader.start()

    @property
    def info(self) -> dict[str, str]:
        """Names and values of the present scoring."""
        manifest, folder = self.model.manifest, self._settings.bundle
        tau_b = str(manifest.metrics.get("tau_b", "unknown"))[:7]
        named = {"ranker": manifest.name, "revision": manifest.revision, "tau_b": tau_b}
        return named | {"bundle": folder, "chat_frames": str(self._frames.is_learnt)}

    def submit(
        self, key: str, prompt: Sequence[int], client: str, take: Callable[[LateScore], object]
    ) -> bool:
        """Score a prompt later; False where `MAX_KEPT` prompts wait already."""
        with self._changed:
            if self._num_open >= MAX_KEPT:
                return False
            self._num_open += 1
            self._clients.setdefault(client, deque()).append(_Waiting(key, prompt, take))
            self._changed.notify_all()
        return True

    def wait(self, seconds: float) -> None:
        """Wait until no prompt is open, at most so long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._num_open, max(0.0, seconds))

    def close(self) -> None:
        """End the threads; prompts that still wait get no score."""
        self._reloader.stop(1.0)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while taken := self._take():
            for one, late in self._score(taken):
                one.take(late)
            with self._changed:
                self._num_open -= len(taken)
                self._changed.notify_all()

    def _take(self) -> list[_Waiting]:
        """Return the next prompts, of the clients in turn; nothing after the end."""
        taken: list[_Waiting] = []
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or bool(self._clients))
            while self._clients and len(taken) < _TOGETHER and not self._is_closed:
                client = next(iter(self._clients))
                waiting = self._clients.pop(client)
                taken.append(waiting.popleft())
                if waiting:
                    self._clients[client] = waiting
        return taken

    def _score(self, taken: Sequence[_Waiting]) -> Iterator[tuple[_Waiting, LateScore]]:
        """Yield a score, or the reason for none, for each prompt."""
        if self.model is not self._scored_by:
            self._scored_by, self._highest = self.model, -inf  # another scale
        same: dict[str, list[_Waiting]] = {}
        read: dict[str, TokenizedPrompt] = {}
        for one in taken:
            try:
                is_described = self._scored_by.manifest.description is not None
                text = (self._frames.description_of if is_described else self._frames.text_of)(
                    one.prompt
                )
                if text is not None and text not in read:
                    # One by one: several would be tokenized by threads on all cores.
                    (read[text],) = self._scored_by.tokenizer.tokenize([text])
            except Exception as error:  # of a tokenizer: the engine goes on
                self._log_once("decode", error)
                text = None
            if text is None:
                highest = self._highest if self._settings.unscored_last else -inf
                yield (
                    one,
                    LateScore(one.key, highest if highest > -inf else None, reason="undecodable"),
                )
            else:
                same.setdefault(text, []).append(one)
        for group in _groups(self._scored_by, read):
            try:
                scores = self._scored_by.score([read[text].ids for text in group])
                late = map(self._late, group, map(read.__getitem__, group), scores)
                found = dict(zip(group, late, strict=True))
            except Exception as error:  # of the ranker: the engine goes on
                self._log_once("score", error)
                found = dict.fromkeys(group, LateScore("", None, reason="failed"))
            for text, late_score in found.items():
                yield from ((one, late_score._replace(key=one.key)) for one in same[text])

    def _late(self, text: str, read: TokenizedPrompt, score: float) -> LateScore:
        self._highest = max(self._highest, score)
        if (read.truncated or isinstance(text, CutText)) and self._settings.unscored_last:
            score = cut_score(score, self._highest)
        quantiles: tuple[tuple[float, float], ...] = ()
        if (target := self._settings.target_model) is not None:
            quantiles = (*self._scored_by.length_curves[target].at(score).quantiles.items(),)
        return LateScore("", score, quantiles)

    def _log_once(self, what: str, error: Exception) -> None:
        if what not in self._logged:
            self._logged.add(what)
            log.warning("cannot %s a prompt (%s); such requests have no score", what, error)


def cut_score(score: float, highest: float) -> float:
    """Return the score of a request that the ranker read in part: just below the highest.

    Anything may be hidden. Requests that hide something keep their order.
    """
    return highest - (highest - score) * _CUT_SPAN


def _groups(model: RankerModel, read: Mapping[str, TokenizedPrompt]) -> Iterator[list[str]]:
    """Yield the texts in groups, of like length, that cost least per prompt."""
    costs, group, group_s = model.costs, list[str](), 0.0
    for text in sorted(read, key=lambda each: len(read[each].ids)):
        size, tokens = len(group) + 1, len(read[text].ids)
        fits = size <= costs.max_batch and tokens <= costs.max_batched_tokens
        together_s, alone_s = costs.predict_s(size, tokens), costs.predict_s(1, tokens)
        if group and not (fits and together_s < group_s + alone_s):
            yield group
            group, together_s = [], alone_s
        group.append(text)
        group_s = together_s
    if group:
        yield group
