"""Many requests at a time to one server, each kept as soon as it is answered."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
from rich.progress import Progress

from vllm_asd.tools.audit.responses import Record, RecordFile, record_key
from vllm_asd.tools.concurrency import run_all
from vllm_asd.tools.server.keyed_request import key_headers

_TIMEOUT_S = 1800.0
_ATTEMPTS = 3
_PAUSE_S = 2.0


class Unanswered(RuntimeError):
    """A request failed for good; the message is one line. What was answered is kept."""


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        name: What it is for, such as task, item and arm; part of the key.
        payload: The body.
    """

    name: tuple[str, ...]
    payload: dict[str, Any]

    @property
    def key(self) -> str:
        """The name and all that is sent: whatever differs is another request."""
        return record_key(self.name, self.payload)


@dataclass(frozen=True)
class Answered:
    """A response and how long it took."""

    body: dict[str, Any]
    latency_s: float


Parse = Callable[[Answered], Record]


class Sender:
    """Sends what is not kept yet."""

    def __init__(self, url: str, concurrency: int, kept: RecordFile, progress: Progress) -> None:
        """Remember where to send, how many at a time, where to keep, and where to show it."""
        self._url = url
        self._concurrency = concurrency
        self._kept = kept
        self._progress = progress

    def send(self, label: str, requests: Sequence[Request], parse: Parse) -> list[Record]:
        """Send them all, in this order, and parse each response into the record that is kept.

        Raises:
            Unanswered: The server refused one, or did not answer.
        """
        return asyncio.run(self._send_all(label, requests, parse))

    async def _send_all(self, label: str, requests: Sequence[Request], parse: Parse) -> list[Record]:
        open_ones = {r.key: r for r in requests if self._kept.get(r.key) is None}
        bar = self._progress.add_task(label, total=len(requests), completed=len(requests) - len(open_ones))
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=timeout, headers=key_headers()
        ) as session:

            async def fulfil(request: Request) -> None:
                self._kept.add(request.key, _parsed(request, await self._post(session, request), parse))
                self._progress.advance(bar)

            await run_all((partial(fulfil, request) for request in open_ones.values()), self._concurrency)
        return [self._record(request) for request in requests]

    def _record(self, request: Request) -> Record:
        record = self._kept.get(request.key)
        if record is None:
            raise Unanswered(f"{'/'.join(request.name)} has no answer")
        return record

    async def _post(self, session: aiohttp.ClientSession, request: Request) -> Answered:
        for attempt in range(1, _ATTEMPTS + 1):
            start = time.perf_counter()
            try:
                async with session.post(self._url, json=request.payload) as response:
                    if response.status < 400:
                        return Answered(await response.json(), time.perf_counter() - start)
                    said = " ".join((await response.text()).split())[:300]
                    failure = f"the server answered {response.status} ({said})"
                    if response.status < 500:
                        break
            except (aiohttp.ClientError, TimeoutError) as error:
                failure = f"the server does not answer ({error!r})"
            if attempt < _ATTEMPTS:
                await asyncio.sleep(_PAUSE_S)
        raise Unanswered(f"{'/'.join(request.name)}: {failure}")


def _parsed(request: Request, answered: Answered, parse: Parse) -> Record:
    try:
        return parse(answered)
    except (KeyError, TypeError, IndexError) as error:
        raise Unanswered(
            f"{'/'.join(request.name)}: the response lacks {error}: is the server still ours?"
        ) from None
