"""Addresses get their /v1, keys a header, and errors one line."""

import pytest

from lengthwise.errors import ConfigError
from lengthwise.openai_client import api_base, api_headers, error_message


def test_an_address_without_a_path_gets_one() -> None:
    assert api_base("http://llm:8000/") == "http://llm:8000/v1"
    assert api_base("https://llm/api/v2/") == "https://llm/api/v2"
    for wrong in ("llm:8000", "ftp://llm", "http://"):
        with pytest.raises(ConfigError, match="use an address such as"):
            api_base(wrong)


def test_a_key_is_a_bearer_token() -> None:
    assert api_headers("sk-1") == {"Authorization": "Bearer sk-1"}
    assert api_headers(None) == api_headers("") == {}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"error": {"message": "too\\nlong"}}', "too long"),
        ('{"error": "no"}', "no"),
        ('{"detail": [1]}', '{"detail": [1]}'),
        ("<html> bad \n gateway", "<html> bad gateway"),
        ("[1]", "[1]"),
        ("x" * 300, "x" * 200),
    ],
)
def test_an_error_is_one_line(body: str, message: str) -> None:
    assert error_message(body) == message
