"""Where a store lies and what is said where it cannot be used."""

from types import SimpleNamespace

import pytest
from mlflow.exceptions import MlflowException

from lengthwise.errors import ConfigError
from lengthwise.mlflow_store import MlflowStore, find_store, tags_of_run


class Client:
    """An MLflow client of experiments by name."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str | None]] = []
        self.runs: list[tuple[str, str, str]] = []

    def get_experiment_by_name(self, name):
        names = [made for made, _ in self.made]
        return type("E", (), {"experiment_id": names.index(name)}) if name in names else None

    def create_experiment(self, name, artifact_location=None, tags=None):
        assert tags["mlflow.experimentKind"] == "custom_model_development"
        self.made.append((name, artifact_location))
        return str(len(self.made) - 1)

    def create_run(self, experiment, run_name, tags):
        self.runs.append((str(experiment), run_name, tags.get("note")))
        return SimpleNamespace(info=SimpleNamespace(run_id=len(self.runs)))


def test_a_folder_is_a_database_with_artefacts_beside_it(tmp_path):
    store, client = MlflowStore(tmp_path / "runs"), Client()
    assert store.uri == f"sqlite:///{tmp_path}/runs/mlflow.db"
    ids = [store.start_run(client, name, "", "run", note=name) for name in ("a", "b", "a")]
    assert ids == ["1", "2", "3"]
    assert client.runs == [("0", "run", "a"), ("1", "run", "b"), ("0", "run", "a")]
    artifacts = (tmp_path / "runs" / "artifacts").as_uri()
    assert client.made == [("a", artifacts), ("b", artifacts)]


def test_an_address_is_a_server_which_has_no_folder_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store, client = MlflowStore("https://mlflow.example:5000/"), Client()
    assert store.is_server
    assert store.uri == str(store) == "https://mlflow.example:5000"
    store.make_folder()
    store.require()
    store.start_run(client, "a", "", "run")
    assert client.made == [("a", None)]
    assert not list(tmp_path.iterdir())


def test_a_folder_without_a_store_is_refused_until_there_is_one(tmp_path):
    store = MlflowStore(tmp_path / "runs")
    with pytest.raises(ConfigError, match="holds no MLflow store"):
        store.require()
    store.make_folder()
    store.database.touch()
    store.require()
    with pytest.raises(ConfigError, match="cannot be written"):
        MlflowStore(store.database / "runs").make_folder()


def test_foreign_errors_become_one_line_and_others_pass(tmp_path):
    store = MlflowStore(tmp_path)
    for error in (MlflowException("bad revision\nof many lines"), PermissionError("bad revision")):
        with (
            pytest.raises(ConfigError, match=r"cannot be used: bad revision; choose another"),
            store.errors_in_one_line(),
        ):
            raise error
    with pytest.raises(ZeroDivisionError), store.errors_in_one_line():
        raise ZeroDivisionError


def test_the_default_place_gives_way_to_the_mlflow_tracking_uri(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert find_store("mlruns").root.name == "mlruns"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert find_store("mlruns").uri == "http://127.0.0.1:5000"
    assert find_store(tmp_path).root == tmp_path
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/own.db")
    store = find_store("mlruns")
    assert (store.uri, store.is_server) == (f"sqlite:///{tmp_path}/own.db", False)
    store.make_folder()
    store.require()


def test_a_run_names_command_version_and_a_checkouts_commit(monkeypatch):
    monkeypatch.setattr("sys.argv", ["training", "fit", "a b"])
    tags = tags_of_run()
    assert tags["command"] == "training fit 'a b'"
    assert tags["version"]
    monkeypatch.setenv("PATH", "")
    assert "mlflow.source.git.commit" not in tags_of_run()
