"""The data folder: given, named by the environment, or missing with a next step."""

import pytest

from lengthwise.errors import ConfigError, DataError
from scheduler_adapters.workload.data_folder import ENVIRONMENT, data_file


def test_a_given_folder_comes_before_that_of_the_environment(tmp_path, monkeypatch):
    for name in ("given", "named"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.csv").touch()
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "named"))
    assert data_file("a.csv") == tmp_path / "named" / "a.csv"
    assert data_file("a.csv", tmp_path / "given") == tmp_path / "given" / "a.csv"


def test_without_a_folder_the_option_is_named(monkeypatch):
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    with pytest.raises(ConfigError, match=r"pass --data-dir or set \$LENGTHWISE_DATA"):
        data_file("a.csv")


def test_a_folder_without_the_file_says_which_part_is_missing(tmp_path):
    with pytest.raises(DataError, match="holds vidur/"):
        data_file("vidur/a.csv", tmp_path)
