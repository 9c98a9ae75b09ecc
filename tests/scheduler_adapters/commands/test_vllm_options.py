"""vLLM's model and options in our command line, refused before vLLM is loaded."""

import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.commands.serve_vllm import ServeConfig
from scheduler_adapters.commands.vllm_options import require_model, require_own


def test_a_path_that_leads_to_no_model_is_refused(tmp_path):
    for name in (tmp_path / "absent", tmp_path, "./absent", "~/absent/x"):
        with pytest.raises(ConfigError, match="; name a model's folder"):
            require_model(str(name))
    (tmp_path / "config.json").touch()
    for name in (tmp_path, "Qwen/Qwen3-0.6B", "m", "s3://bucket/models/m"):
        require_model(str(name))


def test_an_option_of_vllm_before_the_dashes_is_named():
    own = ServeConfig.__dataclass_fields__
    for word in ("--max-num-seqs", "--tensor_parallel_size=2", "--no-enable-prefix-caching"):
        with pytest.raises(ConfigError, match=f"{word} is an option of vLLM; put it behind a --"):
            require_own(["--model=m", word, "64"], own)
    require_own(["--model=m", "--polcy", "pars", "--policy", "pars", "--help-all"], own)
