import pytest
import yaml

from scheduler_adapters.__main__ import main

pytest.importorskip("ray.serve")


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
