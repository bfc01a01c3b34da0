"""Requests to a server that may ask for a key: the one in `VLLM_API_KEY`, as `vllm serve` itself reads it."""

import os
import urllib.request

_VARIABLE = "VLLM_API_KEY"


def use_api_key(key: str | None) -> None:
    """Send this key from now on; the servers and clients that this process starts have it, too."""
    if key:
        os.environ[_VARIABLE] = key


def api_key() -> str:
    """The server's key; OpenAI's client wants some word where there is none."""
    return os.environ.get(_VARIABLE) or "none"


def key_headers() -> dict[str, str]:
    """The header that bears the key; none where there is no key."""
    key = os.environ.get(_VARIABLE)
    return {"Authorization": f"Bearer {key}"} if key else {}


def keyed_request(url: str, body: bytes | None = None) -> urllib.request.Request:
    """A GET, or with a body a POST of JSON, with the key, which does not go along to another server."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    for name, value in key_headers().items():
        request.add_unredirected_header(name, value)
    return request
