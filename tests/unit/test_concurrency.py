"""Many jobs, some at a time: a failure stops what has not begun, and nothing that is under way."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from vllm_asd.tools.concurrency import run_all


class Jobs:
    """Jobs that note their ends, and one that fails as soon as it has begun."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.most = 0

    def __call__(
        self, number: int, pauses: int = 3, failure: Exception | None = None
    ) -> Callable[[], Awaitable[None]]:
        async def job() -> None:
            self.begun.append(number)
            self.most = max(self.most, len(self.begun) - len(self.ended))
            if failure is not None:
                raise failure
            for _ in range(pauses):
                await asyncio.sleep(0)
            self.ended.append(number)

        return job


def test_all_run_in_their_order_and_no_more_at_a_time_than_allowed() -> None:
    jobs = Jobs()
    asyncio.run(run_all([jobs(n) for n in range(7)], 3))
    assert jobs.begun == list(range(7))
    assert sorted(jobs.ended) == list(range(7))
    assert jobs.most == 3


def test_after_a_failure_none_is_begun_and_those_under_way_end() -> None:
    jobs = Jobs()
    slow, failing = [jobs(0), jobs(1, pauses=20)], jobs(2, failure=OSError("first"))
    with pytest.raises(OSError, match="first"):
        asyncio.run(run_all([*slow, failing, jobs(3), jobs(4)], 3))
    assert jobs.begun == [0, 1, 2]
    assert jobs.ended == [0, 1]


def test_the_first_failure_in_time_is_raised() -> None:
    jobs = Jobs()

    async def late() -> None:
        await asyncio.sleep(0)
        raise ValueError("second")

    with pytest.raises(OSError, match="first"):
        asyncio.run(run_all([late, jobs(1, failure=OSError("first"))], 2))


def test_a_cancelled_run_cancels_what_is_under_way() -> None:
    """Ctrl-C must not wait for answers that take minutes."""
    jobs = Jobs()

    async def cancelled() -> None:
        running = asyncio.create_task(run_all([jobs(0, pauses=10**9), jobs(1)], 1))
        for _ in range(5):
            await asyncio.sleep(0)
        running.cancel()
        await running

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(asyncio.wait_for(cancelled(), 20))
    assert (jobs.begun, jobs.ended) == ([0], [])
