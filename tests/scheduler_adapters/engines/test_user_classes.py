import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.engines.user_classes import UserClasses, bearer_token, read_user_classes


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_class_file_says_who_is_who(tmp_path):
    content = {
        "classes": {"chat": {"tbt_s": 0.05}, "batch": {}},
        "api_keys": {"sk-1": "chat"},
        "header": "X-User-Class",
        "trusted_proxies": ["10.0.0.1"],
        "default": "batch",
        "trusted_keys": ["sk-gate"],
    }
    classes = read_user_classes(write(tmp_path / "classes.json", content))
    assert classes.of(bearer_token(b"bearer sk-1")) == "chat"
    assert classes.of("", [(b"x-user-class", b"chat")], "10.0.0.1") == "chat"
    assert classes.of("", [(b"x-user-class", b"chat")], "10.0.0.2") == "batch"
    assert classes.trusts(bearer_token(b"Bearer sk-gate"))
    assert not classes.trusts("sk-1")
    assert not classes.trusts("")
    assert classes.of("") == "batch"
    assert classes.annotations("chat") == {"lengthwise_class": "chat", "lengthwise_tbt_s": 0.05}
    assert classes.annotations("batch") == {"lengthwise_class": "batch"}
    assert classes.annotations(None) == {}


CLASS: dict[str, Any] = {"classes": {"a": {}}}
WRONG: list[tuple[Any, str]] = [
    ("", "cannot be read as JSON"),
    ("{", "cannot be read as JSON"),
    ("[" * 100_000, "cannot be read as JSON"),
    ('{"classes": {"a": {"tbt_s": ' + "1" * 5000 + "}}}", "cannot be read as JSON"),
    *((content, 'no "classes"') for content in ([], "null", "1", '"text"', {}, {"header": "X"})),
    ('{"classes": {"a": {}}, "default": "a", "default": "a"}', "a field twice"),
    ({"classes": {}, "keys": {}}, "unknown keys"),
    ('{"classes": {"a": {}, "a": {}}}', "classes is of a wrong form"),
    ('{"classes": {"a": {"tbt_s": 1, "tbt_s": 2}}}', "class 'a' is of a wrong form"),
    ('{"classes": {}, "api_keys": {"k": "a", "k": "a"}}', "api_keys is of a wrong form"),
    *(({"classes": about}, "classes is of a wrong form") for about in (None, [], "a", 1)),
    *(
        ({"classes": {"a": about}}, "class 'a' is of a wrong form")
        for about in (5, None, [], "x", {"tbt": 1}, {"tbt_s": None})
    ),
    *(
        ({"classes": {"a": {"tbt_s": tbt_s}}}, "use seconds > 0")
        for tbt_s in (0, -1, True, "fast", "1", [1], {}, math.nan, math.inf, -math.inf)
    ),
    ('{"classes": {"a": {"tbt_s": 1e999}}}', "use seconds > 0"),
    *(({"classes": {name: {}}}, "entry 1 of classes") for name in ("", " ", "a ", "größe", "a\n")),
    *((CLASS | {"api_keys": given}, "api_keys is of") for given in (None, "k", ["k"], 1, True)),
    *((CLASS | {"api_keys": {key: "a"}}, "entry 1 of api_keys") for key in ("", " ", "k ", "ü")),
    *((CLASS | {"api_keys": {"k": name}}, "no class") for name in ("b", "", None, 1, [], {})),
    *((CLASS | {"trusted_keys": keys}, "trusted_keys is of") for keys in (None, "sk", {}, 1, True)),
    *(
        (CLASS | {"trusted_keys": ["sk", key]}, "entry 2 of trusted_keys")
        for key in ("", " ", "\t", "sk ", "schlüssel", None, 1, True, ["sk"], {})
    ),
    *((CLASS | {"default": name}, "default is of a wrong form") for name in (None, 1, [], {})),
    *((CLASS | {"default": name}, "no class") for name in ("b", "")),
    *((CLASS | {"header": name}, "header is of a wrong form") for name in (None, 1, ["X"], False)),
    *(
        (CLASS | {"header": name, "trusted_proxies": ["::1"]}, "entry 1 of header")
        for name in ("", " X", "X Class", "X:", "Klasse-ü", "X\r\nY", "X,Y")
    ),
    (CLASS | {"header": "X-Class"}, "name the gateways"),
    (CLASS | {"header": "X-Class", "trusted_proxies": []}, "name the gateways"),
    *((CLASS | {"trusted_proxies": it}, "trusted_proxies is of") for it in (None, "::1", {}, 1)),
    *(
        (CLASS | {"trusted_proxies": [address]}, "trusted")
        for address in ("", "gate", "10.0.0.1/8", "10.0.0.0/33", "*", 167772161, True, None, [])
    ),
    *((CLASS | {"trusted_proxies": [all_]}, "everybody's") for all_ in ("0.0.0.0/0", "::/0")),
]


@pytest.mark.parametrize(("content", "said"), WRONG)
def test_a_wrong_class_file_is_refused_in_one_line(tmp_path, content, said):
    path = write(tmp_path / "classes.json", content)
    with pytest.raises(ConfigError) as refused:
        read_user_classes(path)
    assert said in str(refused.value)
    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)
    assert not {"sk", "schlüssel"} & set(re.findall(r"\w+", str(refused.value).partition(";")[0]))


def test_a_missing_class_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="give a class file"):
        read_user_classes(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("8.8.8.8", ["1.1.1.1"], "8.8.8.8"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("10.0.0.1", ["1.1.1.1"], "1.1.1.1"),
        ("::ffff:10.0.0.1", ["1.1.1.1:80"], "1.1.1.1"),
        ("10.0.0.1", ["[2001:db8::1]:80"], "2001:db8::1"),
        ("10.0.0.1", ["9.9.9.9, 1.1.1.1, 10.0.0.2"], "1.1.1.1"),
        ("10.0.0.1", ["9.9.9.9, 1.1.1.1", "10.0.0.2"], "1.1.1.1"),
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("10.0.0.1", ["1.1.1.1, unknown, 10.0.0.2"], "10.0.0.2"),
        (None, ["1.1.1.1"], None),
        ("testclient", ["1.1.1.1"], "testclient"),
    ],
)
def test_a_client_is_behind_named_proxies_only(peer, forwarded, address):
    classes = UserClasses(trusted_proxies=("10.0.0.0/8",))
    headers = [(b"x-forwarded-for", value.encode()) for value in forwarded]
    assert classes.client_address(headers, peer) == address
