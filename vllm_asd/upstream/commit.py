"""What the scheduler tells the worker with the next step: which of the tokens it was given were kept.

The worker charges a step as it decides it. The scheduler may throw the output away afterwards (a reset of the
prefix cache, a failed KV load, the steps in flight when a session's chunk ends), or keep its first tokens
only. Each schedule says so, and the worker takes back what was not kept before it runs the next step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

ATTRIBUTE = "asd_notice"


class Rollback(NamedTuple):
    """What was kept of one request.

    Attributes:
        after_step: Nothing was kept of the request's steps after this one.
        kept_tokens: Output tokens kept of step ``after_step``, from its first on; None: all of them.
    """

    after_step: int
    kept_tokens: int | None


class Notice(NamedTuple):
    """Rides on each ``SchedulerOutput`` as :data:`ATTRIBUTE`.

    Attributes:
        step: Number of the step that this schedule starts; they grow by one.
        committed_through: The outputs of this step and all before it have been processed.
        rollbacks: By request id; only what the worker has not been told before.
    """

    step: int
    committed_through: int
    rollbacks: dict[str, Rollback]


def notice_of(scheduler_output: Any) -> Notice | None:
    """Read the notice; None where the scheduler is not ours (tests, dummy runs)."""
    notice: Notice | None = getattr(scheduler_output, ATTRIBUTE, None)
    return notice
