"""Settings and config files of the application; it runs in `test_replica.py`."""

from dataclasses import fields

import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.commands.serving.ray_application import RayServeConfig, build, serve_file

pytest.importorskip("ray.serve")


def test_a_config_file_fits_ray_serve_and_starts_the_same_app():
    from ray.serve.schema import ServeDeploySchema

    config = RayServeConfig(model="m", replicas=3, device="cpu", roles=["prefill", "decode"])
    read = ServeDeploySchema.model_validate(serve_file(config, "127.0.0.1", 8000)).applications[0]
    assert read.import_path == f"{build.__module__}:{build.__name__}"
    again = RayServeConfig(**read.args)
    assert [getattr(again, one.name) for one in fields(again)] == [
        getattr(config, one.name) for one in fields(config)
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": "pascal"}, "give --think-end"),
        ({"policy": "nothing"}, "nothing"),
        ({"placement": "distserve"}, "need replicas with roles"),
        ({"engine": {"max_model_len": 9}}, r"engine is \['max_model_len'\]"),
        ({"replicas": 0}, "replicas is 0; use a whole number, 1 or more"),
        ({"move_every_tokens": 0}, "move_every_tokens is 0"),
    ],
)
def test_wrong_settings_are_refused_before_anything_starts(settings, message):
    with pytest.raises(ConfigError if "placement" not in settings else Exception, match=message):
        RayServeConfig(model="m", **settings)
