"""Named instances with measured step times: their files, GPUs and KV memory."""

from collections.abc import Callable, Mapping

import pandas as pd

from scheduler_adapters.simulator.latency.facts import GPUS, MEASURED_GPUS, MEASURED_MODELS, MODELS
from scheduler_adapters.simulator.latency.first_principles import kv_blocks
from scheduler_adapters.simulator.latency.kernels.kernel_database import read_kernel_database
from scheduler_adapters.simulator.latency.kernels.kernel_latency import Link
from scheduler_adapters.simulator.latency.kernels.layer_profile import read_layer_profile
from scheduler_adapters.simulator.latency.kernels.lockstep import read_expert_profile
from scheduler_adapters.simulator.latency.kernels.phase_times import (
    PhaseLatency,
    make_phase_latency,
    read_phase_times,
)
from scheduler_adapters.simulator.latency.models import LatencyModel
from scheduler_adapters.simulator.latency.time_tables import TableLatency
from scheduler_adapters.workload.data_folder import DataDir, data_file

KERNEL_FOLDERS = {
    "a100-80g": "aiconfigurator/a100_sxm/vllm-0.14.0",
    "h100-80g": "aiconfigurator/h100_sxm/vllm-0.24.0",
    "h200": "aiconfigurator/h200_sxm/vllm-0.24.0",
    "l40s": "aiconfigurator/l40s/vllm-0.24.0",
}
"""GPU -> its measurements inside the data folder."""
KERNEL_INSTANCES = {
    f"{model}@{gpu}": (model, gpu, 1)
    for gpu in KERNEL_FOLDERS
    for model in MODELS
    if (model, gpu) != ("deepseek-r1-distill-qwen-32b", "l40s")
} | {"deepseek-r1-distill-qwen-32b@2x-l40s": ("deepseek-r1-distill-qwen-32b", "l40s", 2)}
"""Instance -> model, GPU, number of GPUs; one L40S is too small for the largest model."""
LAYER_FOLDERS = {
    "llama-3.1-8b@rtx-4090": "llmservingsim/v1/RTX4090/meta-llama/Llama-3.1-8B/bf16/tp1",
    "llama-3.1-8b@rtx-pro-6000": "llmservingsim/v1/RTXPRO6000/meta-llama/Llama-3.1-8B/bf16/tp1",
    "qwen3-32b@2x-rtx-pro-6000": "llmservingsim/v1/RTXPRO6000/Qwen/Qwen3-32B/bf16/tp2",
    "qwen3-30b-a3b@2x-rtx-pro-6000": (
        "llmservingsim/v1/RTXPRO6000/Qwen/Qwen3-30B-A3B-Instruct-2507/bf16/tp1"
    ),
}
"""Instance -> the profile of one of its GPUs."""
PHASE_FILE = "splitwise-sim/perf_model.csv"
PHASE_SERVERS = {
    f"{model}@{num_gpus}x-{gpu}": (model, gpu, num_gpus)
    for model, sizes in (("llama-2-70b", (2, 4, 8)), ("bloom-176b", (8,)))
    for gpu in ("a100-80g", "h100-80g")
    for num_gpus in sizes
}
_VIDUR_BLOCKS = 30_208
"""KV memory of the golden runs with these tables."""

_PCIE = Link(latency_s=20e-6, bytes_per_s=16e9)
"""Between two RTX PRO 6000, as LLMServingSim describes the machine of its recordings; not measured.

The bandwidth matters: 12 or 24 GB/s move the E2E of the 32B replay by 9 to 12%. Fitted to either of
the two recordings on that machine, it is 15 to 16 GB/s.
"""
_PCIE_L40S = Link(latency_s=10e-6, bytes_per_s=32e9)
"""Between two L40S, from aiconfigurator's `l40s.yaml`."""
_RTX_4090_BLOCKS = 2588 - 1
"""Number reported by vLLM where the timings were recorded; it keeps one block empty."""


def _kernels(name: str, data_dir: DataDir) -> tuple[LatencyModel, int]:
    """Return an instance of `KERNEL_INSTANCES`."""
    model_name, gpu_name, num_gpus = KERNEL_INSTANCES[name]
    model, gpu = MODELS[model_name], GPUS[gpu_name]
    blocks = kv_blocks(name, model, gpu, num_gpus=num_gpus)
    latency = read_kernel_database(
        data_file(KERNEL_FOLDERS[gpu_name], data_dir),
        model=model,
        gpu=gpu,
        num_gpus=num_gpus,
        link=_PCIE_L40S if num_gpus > 1 else None,
    )
    return latency, blocks


def _layers(name: str, data_dir: DataDir) -> tuple[LatencyModel, int]:
    """Return an instance of `LAYER_FOLDERS`.

    The 32B model is split over its two GPUs (tensor parallel). The mixture runs twice, each with
    half of the requests and half of the experts; both together are one instance here.
    """
    folder = data_file(LAYER_FOLDERS[name], data_dir)
    model_name, _, gpu_name = name.partition("@")
    model = MEASURED_MODELS[model_name]
    if gpu_name == "rtx-4090":
        return read_layer_profile(folder, layers=model.layers), _RTX_4090_BLOCKS
    num_gpus = 2 if gpu_name.startswith("2x-") else 1
    blocks = kv_blocks(name, model, MEASURED_GPUS["rtx-pro-6000"], num_gpus=num_gpus)
    if model_name == "qwen3-30b-a3b":
        latency = read_expert_profile(
            folder, model=model, num_experts=128, per_token=8, num_ranks=2, link=_PCIE
        )
        return latency, blocks
    link = _PCIE if num_gpus == 2 else None
    return read_layer_profile(folder, layers=model.layers, link=link, hidden=model.hidden), blocks


def phases(name: str, data_dir: DataDir) -> tuple[PhaseLatency, int]:
    """Return a server of `PHASE_SERVERS`."""
    model_name, gpu_name, num_gpus = PHASE_SERVERS[name]
    blocks = kv_blocks(name, MEASURED_MODELS[model_name], GPUS[gpu_name], num_gpus=num_gpus)
    return make_phase_latency(phase_rows(name, data_dir)), blocks


def phase_rows(name: str, data_dir: DataDir) -> pd.DataFrame:
    """Return all measurements of a server of `PHASE_SERVERS`."""
    model_name, gpu_name, num_gpus = PHASE_SERVERS[name]
    return read_phase_times(
        data_file(PHASE_FILE, data_dir),
        model=model_name.replace("llama-2", "llama2"),
        hardware=f"{gpu_name}b",
        tensor_parallel=num_gpus,
    )


def _tables(_: str, data_dir: DataDir) -> tuple[LatencyModel, int]:
    """Return the instance of Vidur's golden runs."""
    layers = MODELS["llama-3-8b"].layers
    return TableLatency.load(data_file(_TABLES_FILE, data_dir), layers=layers), _VIDUR_BLOCKS


_TABLES_FILE = "vidur-golden/tables.npz"
MEASURED: Mapping[
    str, tuple[Callable[[str, DataDir], tuple[LatencyModel, int]], Mapping[str, str]]
] = {
    "tables": (_tables, {"llama-3-8b@a100-80g": _TABLES_FILE}),
    "kernels": (
        _kernels,
        {name: KERNEL_FOLDERS[gpu] for name, (_, gpu, _) in KERNEL_INSTANCES.items()},
    ),
    "layers": (_layers, LAYER_FOLDERS),
    "phases": (phases, dict.fromkeys(PHASE_SERVERS, PHASE_FILE)),
}
"""Source -> its reader, and what each of its instances reads inside the data folder."""
