"""What the RPCs do, without gRPC: check the prompts, tokenize, run the model, estimate lengths."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from scoring_service.calibration import LengthCurve, LengthEstimate
from scoring_service.config import ServerConfig
from scoring_service.errors import InvalidPrompt, ScoringError, ScoringTimeout
from scoring_service.model import RankerModel
from scoring_service.tokenizing import TokenizedPrompt


@dataclass(frozen=True, slots=True)
class Scored:
    """One prompt's result."""

    score: float
    prompt_tokens: int
    truncated: bool
    length: LengthEstimate | None


@dataclass(slots=True)
class Timings:
    """Where a call's time went, seconds."""

    tokenize_s: float = 0.0
    queue_s: float = 0.0
    infer_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One call's results, in the order of its prompts; all from one revision."""

    items: Sequence[Scored | ScoringError]
    revision: str
    timings: Timings


class ScoringService:
    """Scores prompts with one model. Threads share it: each call runs on its caller's thread."""

    def __init__(self, model: RankerModel, config: ServerConfig) -> None:
        self.model = model
        self.config = config
        self._runners = threading.BoundedSemaphore(config.runners)

    def score_batch(self, prompts: Sequence[str], target_model: str, deadline_s: float) -> Answer:
        """Score `prompts`; a prompt that cannot be scored gets an error, the others a score.

        Args:
            prompts: at most `max_batch_prompts`.
            target_model: whose lengths to estimate; "" for none.
            deadline_s: instant of `time.monotonic` after which no one wants the answer.

        Raises:
            InvalidPrompt: no prompts, too many, or an unknown target model.
        """
        started_s = time.monotonic()
        if not 0 < len(prompts) <= self.config.max_batch_prompts:
            raise InvalidPrompt(
                f"the batch has {len(prompts)} prompts; send 1 to {self.config.max_batch_prompts}"
            )
        model, timings = self.model, Timings()
        curve = _length_curve(model, target_model)
        items: list[Scored | ScoringError | None] = [self._refusal(p) for p in prompts]
        accepted = [i for i, item in enumerate(items) if item is None]
        tokenized = model.tokenizer.tokenize([prompts[i] for i in accepted])
        timings.tokenize_s = time.monotonic() - started_s
        for i, prompt in zip(accepted, tokenized, strict=True):
            items[i] = self._run(model, prompt, curve, deadline_s, timings)
        timings.total_s = time.monotonic() - started_s
        return Answer([item for item in items if item is not None], model.revision, timings)

    def score(self, prompt: str, target_model: str, deadline_s: float) -> Answer:
        """Score one prompt: a batch of one whose error is raised.

        Raises:
            InvalidPrompt, ScoringTimeout, ScoringError: as their names say.
        """
        answer = self.score_batch([prompt], target_model, deadline_s)
        if isinstance(answer.items[0], ScoringError):
            raise answer.items[0]
        return answer

    def _refusal(self, prompt: str) -> InvalidPrompt | None:
        if not prompt:
            return InvalidPrompt("the prompt is empty; send at least one character")
        # A character is 1 to 4 bytes, so most prompts need no encoding to be measured.
        limit = self.config.max_prompt_bytes
        if len(prompt) * 4 <= limit or len(prompt.encode()) <= limit:
            return None
        return InvalidPrompt(
            f"the prompt has {len(prompt.encode())} bytes; the service takes up to {limit}, "
            "and reads only the beginning: send that"
        )

    def _run(
        self,
        model: RankerModel,
        prompt: TokenizedPrompt,
        curve: LengthCurve | None,
        deadline_s: float,
        timings: Timings,
    ) -> Scored | ScoringError:
        waiting_s = time.monotonic()
        if not self._runners.acquire(timeout=max(0.0, min(deadline_s - waiting_s, 3600.0))):
            return ScoringTimeout("the deadline passed while the prompt waited for a core")
        try:
            running_s = time.monotonic()
            (score,) = model.scorer.score([prompt.ids])
        except ScoringError as error:
            return error
        finally:
            self._runners.release()
        timings.queue_s += running_s - waiting_s
        timings.infer_s += time.monotonic() - running_s
        length = None if curve is None else curve.at(score)
        return Scored(score, len(prompt.ids), prompt.truncated, length)


def _length_curve(model: RankerModel, target_model: str) -> LengthCurve | None:
    if not target_model:
        return None
    try:
        return model.length_curves[target_model]
    except KeyError:
        known = ", ".join(sorted(model.length_curves)) or "none: it was not calibrated"
        raise InvalidPrompt(
            f"no calibration for target model {target_model!r}; this bundle knows {known}"
        ) from None
