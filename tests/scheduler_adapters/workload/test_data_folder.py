"""The data folder: named by the environment, or missing with a next step."""

import pytest

from lengthwise.errors import ConfigError, DataError
from scheduler_adapters.workload.data_folder import ENVIRONMENT, data_file


def test_the_folder_is_that_of_the_environment(tmp_path, monkeypatch):
    (tmp_path / "a.csv").touch()
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path))
    assert data_file("a.csv") == tmp_path / "a.csv"


def test_without_a_folder_the_variable_is_named(monkeypatch):
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    with pytest.raises(ConfigError, match=r"set \$LENGTHWISE_DATA"):
        data_file("a.csv")


def test_a_folder_without_the_file_says_which_part_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path))
    with pytest.raises(DataError, match="holds vidur/"):
        data_file("vidur/a.csv")
