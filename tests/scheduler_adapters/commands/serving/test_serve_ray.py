import os

import pytest
import yaml

from lengthwise.child_processes import free_port
from scheduler_adapters.__main__ import main

ray = pytest.importorskip("ray")
serve_ray = pytest.importorskip("scheduler_adapters.commands.serving.serve_ray")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--policy pascal", "give --think-end"),
        ("--bundle nothing", "nothing"),
        ("--bundle b --scorer service:127.0.0.1:1", "there are --bundle and --scorer"),
        ("--port 0", "port is 0; use a whole number from 1 to 65535"),
        ("", "no fast tokenizer in"),
    ],
)
def test_wrong_settings_end_in_one_line(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["serve-ray", f"{tmp_path}/none", *options.split()]) == 2
    assert message in capsys.readouterr().err


def test_a_config_file_names_the_ranker_as_the_source_of_scores(tmp_path, tiny_bundle):
    file = tmp_path / "serve.yaml"
    options = f"--replicas 2 --bundle {tiny_bundle.path} --write-config {file}"
    assert main(["serve-ray", "MODEL", *options.split()]) == 0
    args = yaml.safe_load(file.read_text())["applications"][0]["args"]
    assert args == {"model": "MODEL", "replicas": 2, "scorer": f"bundle:{tiny_bundle.path}"}


def test_a_ray_of_our_own_has_a_token_and_is_on_loopback(monkeypatch):
    def init(*_, _node_ip_address, **settings):
        raise KeyboardInterrupt(_node_ip_address)

    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(os, "execv", lambda *again: None)
    monkeypatch.setattr("scheduler_adapters.routers.text_stream.TransformersCodec", str)
    place = serve_ray.RayPlaceConfig(port=free_port())
    with pytest.raises(KeyboardInterrupt, match=r"127\.0\.0\.1"):
        serve_ray._serve(serve_ray.RayServeConfig(model="m"), place, {})
    assert (os.environ["RAY_AUTH_MODE"], len(os.environ["RAY_AUTH_TOKEN"])) == ("token", 64)
