import json
from pathlib import Path
from typing import Any

import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.engines.user_classes import read_user_classes


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_class_file_says_who_is_who(tmp_path: Path) -> None:
    content = {
        "classes": {"chat": {"tbt_s": 0.05}, "batch": {}},
        "api_keys": {"sk-1": "chat"},
        "header": "X-User-Class",
        "trusted_proxies": ["10.0.0.1"],
        "default": "batch",
        "trusted_keys": ["sk-gate"],
    }
    classes = read_user_classes(write(tmp_path / "classes.json", content))
    assert classes.of([(b"authorization", b"bearer sk-1")]) == "chat"
    assert classes.of([(b"x-user-class", b"chat")], "10.0.0.1") == "chat"
    assert classes.of([(b"x-user-class", b"chat")], "10.0.0.2") == "batch"
    assert classes.trusts([(b"authorization", b"Bearer sk-gate")])
    assert not classes.trusts([(b"authorization", b"Bearer sk-1")])
    assert not classes.trusts([])
    assert classes.of([]) == "batch"
    assert classes.annotations("chat") == {"lengthwise_class": "chat", "lengthwise_tbt_s": 0.05}
    assert classes.annotations("batch") == {"lengthwise_class": "batch"}
    assert classes.annotations(None) == {}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot be read as JSON"),
        ([], 'has no "classes"'),
        ({"classes": {}, "keys": {}}, "unknown keys"),
        ({"classes": {"a": {"tbt": 1}}}, "unknown keys"),
        ({"classes": {"a": {"tbt_s": 0}}}, "seconds > 0"),
        ({"classes": {"a": {"tbt_s": "fast"}}}, "fast"),
        ({"classes": {"a": 5}}, "classes.json"),
        ({"classes": {"a": {}}, "api_keys": {"k": "b"}}, "no class 'b'"),
        ({"classes": {"a": {}}, "default": "b"}, "no class 'b'"),
        ({"classes": {"a": {}}, "header": "X-Class"}, "name the gateways"),
        ({"classes": {}, "header": "X", "trusted_proxies": ["gate"]}, "no IP address"),
    ],
)
def test_a_wrong_class_file_is_refused(tmp_path: Path, content: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_user_classes(write(tmp_path / "classes.json", content))
    with pytest.raises(ConfigError, match="give a class file"):
        read_user_classes(tmp_path / "none.json")
