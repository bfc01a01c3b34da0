"""Run many jobs, some at a time, so that a failure costs nothing that is under way."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

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
