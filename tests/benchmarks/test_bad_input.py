"""Bad input of benchmarks: one line and exit code 2, before an engine starts."""

import pytest

from benchmarks.__main__ import main
from benchmarks.validation import validate

BAD = [
    ("validate; --num-requests=3", "num_requests is 3"),
    ("validate; --pieces=1", "pieces is 1"),
    ("validate; --repeats=0", "repeats is 0"),
    ("validate; --rate-per-s=0", "rate_per_s is 0"),
    ("validate; --policy=nobody", "no policy named 'nobody'"),
    ('validate; --policy=slai; --settings={"default_tbt_s": -3}', "default_tbt_s"),
    ("validate; --trace=nowhere.csv", "nowhere.csv"),
    ("simulator; --repeats=0", "repeats is 0"),
]


@pytest.mark.parametrize(("words", "complaint"), BAD)
def test_bad_input_is_one_line(words, complaint, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(validate, "open_driver", None)
    assert main(words.split("; ")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert complaint in line
