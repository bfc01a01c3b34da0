"""Requests at a time: the option, and many jobs run so that a failure costs nothing that is under way."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from vllm_asd.tools.usage import BadUsage

Job = Callable[[], Awaitable[None]]


async def run_all(jobs: Iterable[Job], at_a_time: int) -> None:
    """Begin the jobs in their order. After one failed none is begun, but those under way end.

    Cancelled, as by Ctrl-C, it cancels those under way.

    Args:
        jobs: Each makes its coroutine when its turn comes.
        at_a_time: How many are under way, at most.

    Raises:
        Exception: Whatever the first job to fail raised.
    """
    places = asyncio.Semaphore(at_a_time)
    failures: list[BaseException] = []

    async def run(job: Job) -> None:
        async with places:
            if failures:
                return
            try:
                await job()
            except BaseException as failure:
                failures.append(failure)
                raise

    await asyncio.gather(*map(run, jobs), return_exceptions=True)
    if failures:
        raise failures[0]


def read_levels(text: str) -> tuple[int, ...]:
    """`--concurrency`: whole numbers above 0, rising.

    Raises:
        BadUsage: Anything else.
    """
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = [0]
    if found[0] < 1:
        raise BadUsage(f"--concurrency: expected whole numbers above 0 such as 1,4,16, got {text[:60]!r}")
    return tuple(found)


def read_one_level(text: str) -> int:
    """`--concurrency` of a command that keeps to one.

    Raises:
        BadUsage: Several, or no whole number above 0.
    """
    found = read_levels(text)
    if len(found) > 1:
        raise BadUsage(f"--concurrency {text}: give one number; only bench takes several")
    return found[0]
