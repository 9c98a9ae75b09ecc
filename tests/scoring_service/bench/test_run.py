"""The bench measures every figure it names, and its own parts measure what they say."""

from __future__ import annotations

import json
import os
import time

import numpy as np
import pytest
from tokenizers import Tokenizer

from scoring_service.__main__ import main
from scoring_service.bench.processes import cpu_s, rss_bytes
from scoring_service.bench.run import TARGETS
from scoring_service.bench.workload import PromptMaker


@pytest.mark.slow
def test_the_bench_prints_every_figure_as_one_json_object(tiny_bundle, capsys):
    options = ["--rounds", "2", "--slice-size", "20", "--overload-s", "0.5", "--num-shapes", "64"]
    assert main(["bench", "--bundle", str(tiny_bundle.path), "--json", "--mlserver", "false",
                 *options]) == 0  # fmt: skip
    result = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert set(TARGETS) <= set(result)
    assert result["vs_mlserver_cpu"] is None
    assert result["cpu_ratio_unary"] > 1
    assert result["batch_invariance"] <= 1e-5
    assert result["overload"]["expired_computed"] == 0
    assert result["reload"]["failed"] == 0


def test_no_bundle_is_one_clear_line(capsys, tmp_path):
    assert main(["bench", "--bundle", str(tmp_path)]) == 2
    assert "--bundle" in capsys.readouterr().err


def test_cpu_time_of_a_process_is_its_own():
    before_s = time.process_time()
    while time.process_time() < before_s + 0.05:
        pass
    assert before_s + 0.05 <= cpu_s(os.getpid()) <= time.process_time()
    assert rss_bytes(os.getpid()) > 10e6


def test_prompts_have_the_lengths_that_were_asked_for(tiny_bundle):
    tokenizer = Tokenizer.from_file(str(tiny_bundle.tokenizer_path))
    make = PromptMaker(tokenizer, 128, seed=3)
    for length in (4, 20, 128):
        assert len(tokenizer.encode(make.of_length(length)).ids) == length
    lengths = [len(tokenizer.encode(prompt).ids) for prompt in make.lognormal(2000)]
    assert np.mean(lengths) == pytest.approx(34, rel=0.1)
    assert len(make.of_characters(20_000)) == 20_000
    again = PromptMaker(tokenizer, 128, seed=3)
    assert again.of_length(4) == PromptMaker(tokenizer, 128, seed=3).of_length(4)
