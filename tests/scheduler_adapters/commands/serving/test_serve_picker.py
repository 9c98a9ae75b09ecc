import pytest

from scheduler_adapters.__main__ import main


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "give --endpoints or --dns"),
        ("--endpoints none.txt", "none.txt: cannot be read"),
        ("--endpoints bad.txt", "row 0: 'engine:80' is no endpoint"),
        ("--dns nothing.invalid:80", "dns is 'nothing.invalid:80'"),
        ("--endpoints engines.txt --placement phasor", "set routing_only"),
        ("--endpoints engines.txt --address 127.0.0.1", "address is '127.0.0.1'; use HOST:PORT"),
        ("--endpoints engines.txt --address 192.0.2.1:80", "use another --address"),
    ],
)
def test_wrong_settings_end_in_one_line(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "engines.txt").write_text("127.0.0.1:1")
    (tmp_path / "bad.txt").write_text("engine:80")
    assert main(["serve-picker", *options.split()]) == 2
    assert message in capsys.readouterr().err
