"""Token ids -> scores: the ONNX model of a bundle, run by ONNX Runtime."""

import contextlib
import io
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from lengthwise.errors import BundleError, ScoringError

Device = Literal["cpu", "gpu"]

_INPUTS: Final = ("input_ids", "attention_mask")
_OUTPUT: Final = "score"
_CUDA: Final = "CUDAExecutionProvider"

logger = logging.getLogger(__name__)


class OnnxScorer:
    """A loaded model. Threads may call it at once; each run takes one core.

    Without a usable GPU it runs on the CPU; see `device`. Raises BundleError for a wrong model.
    """

    def __init__(self, path: Path, *, pad_id: int = 0, device: Device = "cpu") -> None:
        self._pad_id = pad_id
        try:
            self._session = ort.InferenceSession(
                path, session_options(), providers=_providers(device)
            )
        except Exception as error:  # onnxruntime's exceptions share no base class
            raise BundleError(
                f"{path} cannot be loaded: {error}; export the bundle again"
            ) from error
        _check_interface(self._session, path)
        self.device: Device = "gpu" if self._session.get_providers()[0] == _CUDA else "cpu"

    def score(self, prompts: Sequence[Sequence[int]]) -> list[float]:
        """Return the scores of tokenized prompts; higher = longer. Raises ScoringError."""
        try:
            (scores,) = self._session.run([_OUTPUT], self._feed(prompts))
        except Exception as error:  # onnxruntime's exceptions share no base class
            raise ScoringError(f"the model failed on {len(prompts)} prompts: {error}") from error
        values: list[float] = scores.tolist()
        if not all(map(math.isfinite, values)):
            raise ScoringError(f"the model scored {values}; its weights are broken")
        return values

    def _feed(self, prompts: Sequence[Sequence[int]]) -> dict[str, npt.NDArray[np.int64]]:
        if len(prompts) == 1:
            ids = np.array(prompts, dtype=np.int64)
            return {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        shape = (len(prompts), max(map(len, prompts)))
        ids = np.full(shape, self._pad_id, dtype=np.int64)
        mask = np.zeros(shape, dtype=np.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = prompt
            mask[row, : len(prompt)] = 1
        return {"input_ids": ids, "attention_mask": mask}


def has_gpu_runtime() -> bool:
    """Return whether the installed ONNX Runtime is the one for GPUs (onnxruntime-gpu)."""
    return _CUDA in ort.get_available_providers()


def _providers(device: Device) -> list[Any]:
    if device == "cpu":
        return ["CPUExecutionProvider"]
    # CUDA of the nvidia packages beside onnxruntime-gpu, which it does not search itself.
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        ort.preload_dlls()
    if printed.getvalue():
        logger.info("CUDA's libraries: %s", printed.getvalue().strip())
    # TF32 keeps 10 bits of each factor: a score would depend on its batch.
    return [(_CUDA, {"use_tf32": "0"}), "CPUExecutionProvider"]


def session_options() -> ort.SessionOptions:
    """Return the options of a session whose runs take one core each."""
    # On a CPU many one-thread runs side by side give about twice the throughput of one run on many
    # threads. Idle threads that spin for work would take the cores of an engine on this machine.
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Without the runtime's own arena each calling thread would warm up, and keep, a malloc arena:
    # three times the memory and a tenth more CPU. Runs are small, so the arena stays small.
    options.enable_cpu_mem_arena = True
    # Planned per shape, and prompts have every shape.
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    return options


def _check_interface(session: ort.InferenceSession, path: Path) -> None:
    inputs = {value.name: value.type for value in session.get_inputs()}
    outputs = {value.name: value.type for value in session.get_outputs()}
    if inputs != dict.fromkeys(_INPUTS, "tensor(int64)") or outputs != {_OUTPUT: "tensor(float)"}:
        raise BundleError(
            f"{path} maps {inputs} to {outputs}; a ranker maps int64 {', '.join(_INPUTS)} to "
            f"float {_OUTPUT}"
        )
