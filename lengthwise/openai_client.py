"""Addresses, headers and messages of endpoints with OpenAI's API. Standard library only."""

import json
from urllib.parse import urlsplit, urlunsplit

from lengthwise.errors import ConfigError


def api_base(url: str) -> str:
    """Return the base of the API without a final slash, with /v1 if it has no path."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"endpoint is {url!r}; use an address such as http://127.0.0.1:8000/v1")
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/") or "/v1", "", ""))


def api_headers(key: str | None) -> dict[str, str]:
    """Return the headers that carry the key, if there is one."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def error_message(body: str) -> str:
    """Return the message in the body of an error, in one line of at most 200 characters."""
    try:
        error = json.loads(body)
    except ValueError:
        error = body
    for key in ("error", "message"):
        error = error.get(key, error) if isinstance(error, dict) else error
    text = error if isinstance(error, str) else json.dumps(error)
    return " ".join(text.split())[:200]
