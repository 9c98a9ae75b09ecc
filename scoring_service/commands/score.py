"""`score`: scores of a few prompts from a running service."""

from dataclasses import asdict, dataclass, field

from lengthwise.command_line.options import POSITIONAL
from lengthwise.errors import ScoringError
from lengthwise.strict_json import to_json
from scoring_service.client import Score, ScoringClient
from scoring_service.client.channel import ClientSecurity


@dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """Prompts, and the service that scores them."""

    prompts: list[str] = field(metadata=POSITIONAL)
    """Prompts to score."""
    target: str = "127.0.0.1:50051"
    """HOST:PORT of the service."""
    timeout_s: float = 5.0
    """Deadline, seconds."""
    target_model: str | None = None
    """Model whose response length to estimate as well, in tokens."""
    json: bool = False
    """Print one JSON object."""


def score(options: ScoreOptions, security: ClientSecurity) -> None:
    """Score prompts with a running service; one line per prompt: score, TAB, prompt.

    A score has no unit; higher means that a longer response is expected. With --target-model the
    expected tokens stand between the two. A prompt without a score gets "-" instead, and the exit
    code is 2.

    Example:
      python -m scoring_service score --target 127.0.0.1:50051 "Say hello." "Write a long essay."
    """
    with ScoringClient(
        options.target,
        timeout_s=options.timeout_s,
        target_model=options.target_model,
        security=security,
    ) as client:
        results = client.score_batch(options.prompts)
    failed = {n: s for n, s in enumerate(results, 1) if not isinstance(s, Score)}
    if len(failed) == len(results):
        raise failed[1]
    if options.json:
        found = [asdict(s) if isinstance(s, Score) else {"error": str(s)} for s in results]
        rows = [{"prompt": p} | row for p, row in zip(options.prompts, found, strict=True)]
        print(to_json({"scores": rows}))
    else:
        for prompt, result in zip(options.prompts, results, strict=True):
            columns = ["-", "-"]
            if isinstance(result, Score):
                columns = [f"{result.value:+.4f}", f"{result.expected_tokens or 0:.0f}"]
            print(*columns[: 2 if options.target_model else 1], prompt, sep="\t")
    if failed:
        reasons = "; ".join(f"prompt {n} of {len(results)}: {e}" for n, e in failed.items())
        raise ScoringError(reasons)
