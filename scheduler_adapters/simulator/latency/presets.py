"""Named instances: step times and free KV memory of a model on a GPU.

    latency, kv_blocks = preset("llama-3-8b@a100-80g")            # first principles, no data
    latency, kv_blocks = preset("llama-3-8b@a100-80g:tables")     # needs the data folder
    latency, kv_blocks = preset("llama-3-8b@a100-80g:affine=steps.csv")    # your own engine's steps

The part after the colon is the source of the step times (`SOURCES`).
"""

from collections.abc import Callable
from functools import partial
from itertools import product

from lengthwise.errors import ConfigError
from scheduler_adapters.simulator.latency.affine_fit import read_affine
from scheduler_adapters.simulator.latency.facts import BLOCK_TOKENS, GPUS, MODELS
from scheduler_adapters.simulator.latency.first_principles import (
    kv_blocks,
    phasor_testbed,
    roofline,
    slai_testbed,
    staircase,
)
from scheduler_adapters.simulator.latency.models import LatencyModel
from scheduler_adapters.simulator.latency.time_tables import TableLatency
from scheduler_adapters.workload.data_folder import data_file

__all__ = ["BLOCK_TOKENS", "PHASOR", "SLAI", "SOURCES", "Preset", "data_of", "preset", "presets"]

_AFFINE = ":affine="
SLAI = "mistral-7b@rtx-6000-ada:slai"
"""The testbed of the SLAI paper."""
PHASOR = tuple(f"{model}@v100-32g:phasor" for model in ("qwen2.5-7b", "llama-3-8b"))
"""The testbed of the Phasor paper, with its two models."""
_TABLES = "llama-3-8b@a100-80g:tables"
_TABLES_FILE = "vidur-golden/tables.npz"
_TABLES_BLOCKS = 30_208
"""KV memory of the golden runs with these tables."""
_TILED_GPUS = ("a100-40g", "a100-80g")
"""The RAD paper gives tiles for the A100 only."""
SOURCES = {
    "": "roofline from public sizes and data-sheet peaks",
    "staircase": "the RAD paper's tile model (eq. 2-7) at the roofline's rates",
    "slai": "roofline of the SLAI paper's testbed; one factor fitted to its Sarathi curve",
    "phasor": "roofline with the 121 TFLOP/s of matrix products that the Phasor paper measured",
    "tables": "lookup tables of the golden runs: linear layers from Vidur's A100 profile, "
    "attention synthetic (microsoft/vidur 7d475133)",
}


Preset = Callable[[], tuple[LatencyModel, int]]
"""Makes latency model and KV blocks."""


def data_of(name: str) -> str | None:
    """Return the file inside the data folder that a preset reads; None: no file."""
    return _TABLES_FILE if name == _TABLES else None


def preset(name: str) -> tuple[LatencyModel, int]:
    """Return latency model and KV blocks of a name in `presets()`, or of MODEL@GPU:affine=FILE.

    Raises ConfigError for an unknown name and without a data folder, DataError for a bad file.
    """
    known = presets()
    instance, is_affine, path = name.partition(_AFFINE)
    if is_affine and instance in known:
        return read_affine(path)[0], preset(instance)[1]
    if name not in known:
        raise ConfigError(
            f"no preset named {name!r}; use MODEL@GPU with a model of "
            f"{', '.join(MODELS)} and a GPU of {', '.join(GPUS)}, with {_AFFINE}FILE for steps of "
            f"your own and on an A100 with :staircase, or one of "
            f"{', '.join((SLAI, *PHASOR, _TABLES))}"
        )
    return known[name]()


def presets() -> dict[str, Preset]:
    """Return the presets by name, in the order of the list; a name ends with its source."""
    computed = {
        f"{model}@{gpu}{suffix}": partial(_compute, make, model, gpu)
        for make, suffix, gpus in ((roofline, "", GPUS), (staircase, ":staircase", _TILED_GPUS))
        for model, gpu in product(MODELS, gpus)
    }
    phasor = {
        name: partial(_compute, phasor_testbed, *name.split(":")[0].split("@")) for name in PHASOR
    }
    return {
        **computed,
        SLAI: slai_testbed,
        **phasor,
        _TABLES: lambda: (TableLatency.load(data_file(_TABLES_FILE)), _TABLES_BLOCKS),
    }


def _compute(
    make: Callable[..., LatencyModel], model_name: str, gpu_name: str
) -> tuple[LatencyModel, int]:
    model, gpu = MODELS[model_name], GPUS[gpu_name]
    return make(model, gpu), kv_blocks(f"{model_name}@{gpu_name}", model, gpu)
