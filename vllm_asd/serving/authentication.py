"""The key that vLLM asks for under ``/v1``, asked for under ``/plugins/asd`` as well.

vLLM's ``AuthenticationMiddleware`` guards a fixed list of prefixes
(``vllm/entrypoints/serve/middleware/authenticate.py``, vLLM 0.32) that plugins are not on.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from argparse import Namespace
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.responses import Response

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class ApiKeys:
    """The keys a server was started with; without any, everyone is let in."""

    def __init__(self, keys: Iterable[str]) -> None:
        """Keep the keys' hashes alone, which are of one length, as a comparison in constant time needs."""
        self._hashes = [_hash(key) for key in keys]

    @classmethod
    def of_server(cls, args: Namespace) -> ApiKeys:
        """Those of ``--api-key``, else of ``VLLM_API_KEY``; empty ones don't count, as in vLLM."""
        given = getattr(args, "api_key", None) or [os.environ.get("VLLM_API_KEY")]
        return cls(key for key in given if key)

    def admit(self, authorization: str | None) -> bool:
        """Whether a request with this ``Authorization`` header, None without one, is let in."""
        if not self._hashes:
            return True
        scheme, _, key = (authorization or "").partition(" ")
        found = _hash(key)
        # All are compared: how long it takes says nothing about which one matched.
        matches = [secrets.compare_digest(found, known) for known in self._hashes]
        return scheme.lower() == "bearer" and any(matches)


class KeyedRoute(APIRoute):
    """A route that answers like vLLM's guarded ones: 401 unless the request bears a key of the server's.

    Only requests that match the route get here: OPTIONS is answered without a key, as by vLLM, and a
    ``--root-path`` is off already.
    """

    def get_route_handler(self) -> Handler:
        """Ask for the key before anything else is read of the request."""
        answer = super().get_route_handler()

        async def answer_with_key(request: Request) -> Response:
            keys: ApiKeys | None = getattr(request.app.state, "asd_api_keys", None)
            # None: `init_state` has not run, so nobody knows yet whether there is a key.
            if keys is None or not keys.admit(request.headers.get("Authorization")):
                return JSONResponse({"error": "Unauthorized"}, status_code=401)
            return await answer(request)

        return answer_with_key


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8")).digest()
