"""The prefill profile: what it measures and writes."""

import json
from typing import Any

import pandas as pd
import pytest

from scheduler_adapters.__main__ import main
from scheduler_adapters.commands.profile_prefill import _attend_without_mask
from scheduler_adapters.engines.random_model import make_random_model
from scheduler_adapters.simulator.instance import Instance


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_attention_without_a_mask_is_the_models_own(monkeypatch):
    import torch
    from torch.nn import functional

    model = make_random_model("tiny", "cpu", max_tokens=64)
    prompts_BL = torch.arange(96).reshape(2, 48)
    with torch.inference_mode():
        own = model(prompts_BL, logits_to_keep=1).logits
        _attend_without_mask(model)
        attend, masks = functional.scaled_dot_product_attention, []

        def watched(*args: Any, **kwargs: Any) -> Any:
            masks.append((kwargs["attn_mask"], kwargs["is_causal"]))
            return attend(*args, **kwargs)

        monkeypatch.setattr(functional, "scaled_dot_product_attention", watched)
        monkeypatch.setattr(
            "transformers.utils.import_utils.is_cuda_stream_capturing", lambda: True
        )
        ours = model(prompts_BL, logits_to_keep=1, use_cache=False).logits
    assert torch.equal(own, ours)
    assert set(masks) == {(None, True)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_command_writes_a_row_per_run(tmp_path, capsys):
    out = tmp_path / "prefill.csv"
    lengths = ["--prompt_tokens", "[8, 16, 32]", "--repeats", "2"]
    assert main(["profile-prefill", *lengths, "--device", "cpu", "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    table = pd.read_csv(out)
    assert printed["num_samples"] == len(table) == 3 * 2
    assert (table["latency_s"] > 0).all()
    assert list(table) == [
        "prompt_tokens", "latency_s", "peak_flop_per_s", "model", "device",
    ]  # fmt: skip


def test_a_simulated_instance_is_profiled_by_its_step_times(tmp_path, capsys):
    out = tmp_path / "v100.csv"
    name = "qwen2.5-7b@v100-32g"
    assert main(["profile-prefill", "--profile", name, "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["device"] == "v100-32g"
    table = pd.read_csv(out)
    instance = Instance.preset(name)
    # Two steps of 2,048 tokens, the second behind the first.
    two_s = [instance.latency.step_s(0, 0, [(done, 2048)]) for done in (0, 2048)]
    assert table.latency_s[table.prompt_tokens == 4096].item() == pytest.approx(sum(two_s))
