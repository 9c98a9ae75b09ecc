"""The model bundle: a folder that holds a trained ranker.

    bundle/
      manifest.json      what the model is, how it was made, SHA-256 of every other file
      model.onnx         input_ids, attention_mask int64 (batch, tokens) -> score float32 (batch,)
      model.int8.onnx    the same, quantised; absent where that lost too much order
      tokenizer.json     a `tokenizers` file, complete in itself

Standard library only: a scheduler may read a manifest without installing a runtime.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from lengthwise.conversation import VERSION
from lengthwise.errors import BundleError, raised_as

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
TOKENIZER: Final = "tokenizer.json"
FP32: Final = "model.onnx"
INT8: Final = "model.int8.onnx"
DIRECTION: Final = "higher_is_longer"
MAX_MANIFEST_BYTES: Final = 16_777_216
MAX_PROMPT_TOKENS: Final = 131_072
"""A ranker reads hundreds of tokens; the longest prompt is run once when a bundle is loaded."""
_MAX_TEXT: Final = 200
"""Characters of a name or label."""


@dataclass(frozen=True, slots=True)
class LengthEstimate:
    """Response length of one target model, tokens."""

    expected_tokens: float
    quantiles: Mapping[float, float]
    """Fraction in (0, 1) -> tokens."""


@dataclass(frozen=True, slots=True)
class LengthCurve:
    """Calibration of one target model: increasing scores, and quantiles of the lengths at each."""

    scores: Sequence[float]
    expected: Sequence[float]
    quantiles: Mapping[float, Sequence[float]]

    @classmethod
    def parse(cls, target_model: str, curve: Mapping[str, Any]) -> Self:
        """Read one entry of `Manifest.calibration`. Raises BundleError if it breaks the format."""
        about = f"calibration of {target_model!r:.80}"
        kinds = AttributeError, KeyError, TypeError, ValueError
        with raised_as(BundleError, f"{about} is malformed ({{}}); calibrate again", *kinds):
            scores = [float(score) for score in curve["scores"]]
            quantiles = {float(q): [float(t) for t in v] for q, v in curve["quantiles"].items()}
            expected = [float(t) for t in curve.get("mean") or quantiles[0.5]]
        rows = [expected, *quantiles.values()]
        are_scores = bool(scores) and sorted(scores) == scores and all(map(math.isfinite, scores))
        are_tokens = all(len(r) == len(scores) and all(0 <= t < math.inf for t in r) for r in rows)
        are_fractions = all(0 < fraction < 1 for fraction in quantiles)
        is_name = bool(target_model) and target_model.isprintable()
        if not (are_scores and are_tokens and are_fractions and is_name):
            raise BundleError(
                f"{about} needs a printable name, increasing finite scores, as many tokens of at "
                "least 0, and fractions between 0 and 1; calibrate again"
            )
        return cls(scores, expected, dict(sorted(quantiles.items())))

    def at(self, score: float) -> LengthEstimate:
        """Return the estimate at `score`: linear between points, constant beyond the ends."""
        right = bisect_right(self.scores, score)
        low, high = max(right - 1, 0), min(right, len(self.scores) - 1)
        width = self.scores[high] - self.scores[low]
        share = (score - self.scores[low]) / width if low < high else 0.0

        def between(tokens: Sequence[float]) -> float:
            return tokens[low] + share * (tokens[high] - tokens[low])

        quantiles = {fraction: between(tokens) for fraction, tokens in self.quantiles.items()}
        return LengthEstimate(between(self.expected), quantiles)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Description of a bundle, as stored in its manifest.json."""

    name: str
    """Name of the ranker, e.g. "alpaca-vicuna7b"; also its name in the model registry."""
    label: str
    """The learnt length, e.g. "output_tokens" (reasoning + answer) or "reasoning_tokens"."""
    label_tokenizer: str
    """Tokenizer that counted the label; lengths of different tokenizers are not comparable."""
    max_prompt_tokens: int
    """Prompts are cut to this many tokens, special tokens included."""
    files: Mapping[str, str] = field(default_factory=dict)
    """File name -> SHA-256, for every file of the bundle except the manifest."""
    score_direction: str = DIRECTION
    training: Mapping[str, Any] = field(default_factory=dict)
    """Resolved training configuration, enough to train again."""
    dataset: Mapping[str, Any] = field(default_factory=dict)
    """Id, SHA-256 of its card, and numbers of training and test prompts."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """On the test split: tau_b, tau_b_ci, the baselines, export parity, loss by INT8."""
    history: tuple[Mapping[str, float], ...] = ()
    """Training curve, one mapping per point: step, epoch, train/loss, val/tau_b and others."""
    calibration: Mapping[str, Any] = field(default_factory=dict)
    """Target model -> curve of tokens over increasing scores, with the keys scores, quantiles
    ({"0.5": tokens, "0.9": tokens}) and, where known, mean."""
    golden: Mapping[str, float] = field(default_factory=dict)
    """A few prompts -> their scores by the trained model. A service with other scores stops."""
    mlflow_run_id: str | None = None
    format: int = FORMAT

    @property
    def description(self) -> int | None:
        """Version of the descriptions that the ranker reads; None: it reads prompts."""
        data: Any = self.training.get("data")
        return data.get("description") if isinstance(data, dict) else None

    @property
    def revision(self) -> str:
        """Twelve hex digits that change with any file and any field of the manifest."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class ModelBundle:
    """A verified bundle on disk, made by `ModelBundle.load(folder)` only."""

    path: Path
    manifest: Manifest

    @property
    def tokenizer_path(self) -> Path:
        return self.path / TOKENIZER

    def model_path(self, precision: str = "auto") -> Path:
        """Return the ONNX file for "fp32", "int8", or "auto" (INT8 where the bundle has it).

        Raises BundleError if the bundle has no model of that precision.
        """
        names = {"fp32": [FP32], "int8": [INT8], "auto": [INT8, FP32]}.get(precision, [])
        for name in names:
            if name in self.manifest.files:
                return self.path / name
        raise BundleError(
            f"{self.path} has no {precision} model; it holds {sorted(self.manifest.files)}"
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ModelBundle:
        """Read a bundle and verify the SHA-256 of each of its files.

        Args:
            path: folder of the bundle, or of the run that holds it.

        Raises:
            BundleError: not a bundle, of a newer format, or a file is missing or damaged.
        """
        folder = bundle_folder(path)
        manifest = read_manifest(folder)
        for name, expected in manifest.files.items():
            if not (folder / name).is_file():
                raise BundleError(f"{folder} lacks {name}; export the bundle again")
            if (actual := sha256_of(folder / name)) != expected:
                raise BundleError(
                    f"{folder / name} is damaged (SHA-256 {actual[:12]}..., the manifest says "
                    f"{expected[:12]}...); export the bundle again"
                )
        return cls(folder, manifest)

    @classmethod
    def write(
        cls, path: str | os.PathLike[str], manifest: Manifest, fill: Callable[[Path], None]
    ) -> ModelBundle:
        """Write a bundle whole or not at all; an existing bundle at `path` is replaced.

        `fill` writes the files into an empty folder. The manifest's `files` are computed here. An
        error of `fill` leaves `path` as it was.
        """
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            fill(work)
            files = {p.name: sha256_of(p) for p in sorted(work.iterdir())}
            content = {**asdict(manifest), "files": files}
            (work / MANIFEST).write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
            work.chmod(0o755)
            if target.exists():
                shutil.rmtree(target)
            work.rename(target)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        return cls.load(target)


def bundle_folder(path: str | os.PathLike[str]) -> Path:
    """Return the folder of a bundle; in that of a run it is `bundle`."""
    folder, inside = Path(path), Path(path) / "bundle"
    is_run = (inside / MANIFEST).is_file() and not (folder / MANIFEST).exists()
    return inside if is_run else folder


def sha256_of(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file's bytes, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """Read a bundle's manifest; its other files are neither read nor verified.

    Raises:
        BundleError: not a bundle, of a newer format, or a field breaks its rule.
    """
    path = folder / MANIFEST
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise ValueError(f"it is larger than {MAX_MANIFEST_BYTES} bytes")
        content = json.loads(path.read_text(), parse_constant=_finite, parse_float=_finite)
    except FileNotFoundError as error:
        raise BundleError(
            f"{folder} is not a model bundle (no {MANIFEST}); "
            "make one with `python -m training fit`"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{path} cannot be read: {error}; export the bundle again") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise BundleError(f"{path} is not of format {FORMAT}; export the bundle again")
    text = f"{path} is incomplete or has unknown keys: {{}}; export the bundle again"
    with raised_as(BundleError, text, TypeError):
        manifest = Manifest(**{**content, "history": tuple(content.get("history", ()))})
    for name, (is_right, right) in _RULES.items():
        value = getattr(manifest, name)
        if not is_right(value):
            raise BundleError(
                f"{path}: {name} is {value!r:.80}; it must be {right}: export the bundle again"
            )
    if manifest.description not in (None, VERSION):
        raise BundleError(
            f"{path}: the ranker reads descriptions of version {manifest.description!r:.80}, known "
            f"here is {VERSION}; use the package that trained it, or train again"
        )
    for target_model, curve in manifest.calibration.items():
        LengthCurve.parse(target_model, curve)
    return manifest


def _finite(text: str) -> float:
    """Return a finite number; JSON's readers also accept NaN, Infinity and 1e999."""
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return value


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MAX_TEXT and value.isprintable()


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _are_files(value: object) -> bool:
    if not isinstance(value, dict) or MANIFEST in value or TOKENIZER not in value:
        return False
    names = all(re.fullmatch(r"\w[\w.-]*", name) for name in value)
    sums = all(re.fullmatch(r"[0-9a-f]{64}", str(found)) for found in value.values())
    return names and sums and bool(value.keys() & {FP32, INT8})


_TEXT: Final = (_is_text, f"a text of 1 to {_MAX_TEXT} printable characters")
_RULES: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    **dict.fromkeys(("name", "label", "label_tokenizer"), _TEXT),
    "max_prompt_tokens": (
        lambda value: type(value) is int and 1 <= value <= MAX_PROMPT_TOKENS,
        f"a whole number from 1 to {MAX_PROMPT_TOKENS}",
    ),
    "files": (
        _are_files,
        f"names in the bundle's folder with their SHA-256, {TOKENIZER} and a model among them",
    ),
    "score_direction": (lambda value: value == DIRECTION, repr(DIRECTION)),
    **dict.fromkeys(("training", "dataset", "metrics", "calibration"), (_is_object, "an object")),
    "history": (lambda value: all(map(_is_object, value)), "a list of objects"),
    "golden": (
        lambda value: _is_object(value) and {type(v) for v in value.values()} <= {int, float},
        "an object, a number for each prompt",
    ),
    "mlflow_run_id": (lambda value: value is None or _is_text(value), "a text or null"),
}
"""Field -> check, and the right values in words."""
