"""`bench` says in one line what it lacks."""

from scoring_service.__main__ import main


def test_no_bundle_is_one_clear_line(capsys, tmp_path):
    assert main(["bench", "--bundle", str(tmp_path)]) == 2
    assert "--bundle" in capsys.readouterr().err
