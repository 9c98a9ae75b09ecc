"""`profile-prefill`: the prefill latency of a model on a device, by prompt length.

The samples calibrate Phasor's prefill cost, alpha * l^2 + beta * l: latency times
`peak_flop_per_s`, in FLOP-equivalents.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lengthwise.errors import ConfigError, require
from lengthwise.progress import Progress
from lengthwise.report_page import save_table
from lengthwise.settings import Count, settings
from scheduler_adapters.commands.experiment_settings import check_place
from scheduler_adapters.engines.random_model import device_name, find_device, make_random_model
from scheduler_adapters.reporting.latency_tables import text_of
from scheduler_adapters.simulator.cluster.cluster_config import CALIBRATED_TOKENS
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.facts import GPUS, facts_of

log = logging.getLogger(__name__)

_PEAK_S = 1.0
"""Seconds for which matrix products are repeated for the peak rate."""


@settings
class ProfileConfig:
    """The model, the device and the prompts."""

    out: Path = Path("prefill.csv")
    """.csv file to write."""
    shape: str = "tiny"
    """Shape of the random model: tiny (1.2 M parameters), small (14 M), 7b (Llama-2-7B)."""
    device: str | None = None
    """cpu, cuda or cuda:N; none: the first GPU, else the CPU."""
    profile: str | None = None
    """MODEL@GPU of a simulated instance, for its step times in place of measurements."""
    prompt_tokens: list[Count] = field(default_factory=lambda: [*CALIBRATED_TOKENS])
    """Prompt lengths."""
    repeats: Count = 5
    """Timed runs of each length, after one untimed run."""
    seed: int = 0
    """Seed of weights and prompts."""
    json: bool = False
    """Print one JSON object instead of text."""

    def __post_init__(self) -> None:
        require("prompt_tokens", "empty", bool(self.prompt_tokens), "one length or more")
        check_place(self.out, ".csv")


def profile(config: ProfileConfig) -> None:
    """Measure prefill latency on this machine, to fit Phasor's prefill cost to it.

    A random model of the given shape prefills random prompts. Rows have prompt_tokens, latency_s,
    peak_flop_per_s, model and device, on a GPU also eager_s. Keys and values are computed but not
    kept. Prompts too large for the memory are left out, with a warning.
    `python -m training calibrate --samples FILE` fits the cost.

    Examples:
      python -m scheduler_adapters profile-prefill --prompt-tokens '[64, 128, 256]'
      python -m scheduler_adapters profile-prefill --shape 7b --out a100.csv
      python -m scheduler_adapters profile-prefill --profile qwen2.5-7b@v100-32g --out v100.csv
    """
    table = measure(config)
    save_table(table, config.out)
    about = table[["model", "device", "peak_flop_per_s"]].iloc[0].to_dict()
    about |= {"out": str(config.out), "num_samples": len(table)}
    if config.json:
        print(json.dumps(about))
    else:
        timed = [name for name in ("latency_s", "eager_s") if name in table]
        print(text_of(table.groupby("prompt_tokens")[timed].median().reset_index()))
        print(f"{about['peak_flop_per_s']:.3g} FLOP/s; samples in {config.out}; fit them by")
        print(f"python -m training calibrate --samples {config.out}")


def measure(config: ProfileConfig) -> pd.DataFrame:
    """Return the samples, with the columns of the file."""
    if config.profile is not None:
        return simulated(config.profile, config.prompt_tokens)
    device = find_device(config.device)
    model = make_random_model(
        config.shape, device, max_tokens=max(config.prompt_tokens), seed=config.seed
    )
    _attend_without_mask(model)
    if not (rows := list(_samples(model, device, config))):
        raise ConfigError(
            f"not one prompt of {min(config.prompt_tokens)} tokens fits on {device}; "
            "use shorter ones"
        )
    return pd.DataFrame(rows).assign(
        peak_flop_per_s=peak_flop_per_s(device),
        model=f"random-llama-{config.shape}-bfloat16",
        device=device_name(device),
    )


def simulated(profile: str, prompt_tokens: Sequence[int]) -> pd.DataFrame:
    """Return the samples of a simulated instance; the peak is that of its GPU's data sheet."""
    instance = Instance.preset(profile)
    model, _, device = profile.partition(":")[0].partition("@")
    latency_s = [instance.prefill_s(tokens) for tokens in prompt_tokens]
    return pd.DataFrame({"prompt_tokens": prompt_tokens, "latency_s": latency_s}).assign(
        peak_flop_per_s=facts_of("GPU", device, GPUS).flops_per_s, model=model, device=device
    )


def _attend_without_mask(model: Any) -> None:
    """Make a captured graph use flash attention without a mask tensor, as eager runs do."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    # transformers makes masks for known names only; SDPA without a mask is set to causal.
    AttentionInterface.register("unmasked_sdpa", sdpa_attention_forward)
    model.set_attn_implementation("unmasked_sdpa")


def _samples(model: Any, device: str, config: ProfileConfig) -> Iterator[dict[str, Any]]:
    import torch

    generator = torch.Generator(device=device).manual_seed(config.seed)
    with Progress(len(config.prompt_tokens)) as progress, torch.inference_mode():
        for length in config.prompt_tokens:
            prompts_BL = torch.randint(
                model.config.vocab_size, (1, length), generator=generator, device=device
            )
            prefill = partial(model, prompts_BL, logits_to_keep=1, use_cache=False)
            try:
                taken = {"latency_s": _timed(prefill, device, config.repeats)}
                if device.startswith("cuda"):
                    # As in engines: a short prompt's kernels take longer to launch than to run.
                    replay = _captured(prefill, device)
                    replayed_s = _timed(replay, device, config.repeats)
                    taken = {"latency_s": replayed_s, "eager_s": taken["latency_s"]}
                    del replay  # and with it the memory of the graph
            except torch.OutOfMemoryError:
                log.warning("a prompt of %d tokens does not fit: left out", length)
                torch.cuda.empty_cache()
            else:
                for seconds in zip(*taken.values(), strict=True):
                    yield {"prompt_tokens": length, **dict(zip(taken, seconds, strict=True))}
            progress.step(f"{length} tokens")


def _captured(run: Callable[[], Any], device: str) -> Callable[[], Any]:
    """Return `run`, after its first run, as one CUDA graph."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device), torch.cuda.graph(graph):
        run()
    return graph.replay


def _timed(run: Callable[[], Any], device: str, repeats: int) -> list[float]:
    """Return the seconds of each of `repeats` runs, after an untimed one."""
    import torch

    taken_s = []
    for _ in range(repeats + 1):
        start_s = time.perf_counter()
        run()
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)
        taken_s.append(time.perf_counter() - start_s)
    return taken_s[1:]


def peak_flop_per_s(device: str) -> float:
    """Return the best rate of a large bfloat16 matrix product on the device, over a second."""
    import torch

    size = 8192 if device.startswith("cuda") else 512
    left, right = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    fastest_s, until_s = np.inf, time.perf_counter() + _PEAK_S
    while time.perf_counter() < until_s:
        fastest_s = min([fastest_s, *_timed(lambda: left @ right, device, 5)])
    return float(2 * size**3 / fastest_s)
