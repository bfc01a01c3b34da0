"""Engine core: numbers the steps, and tells the worker what was not kept of the tokens it was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm_asd.upstream.commit import ATTRIBUTE, Notice, Rollback, notice_of


class KeptTokens:
    """What the next schedule has to say; see :mod:`vllm_asd.upstream.commit`."""

    def __init__(self) -> None:
        """Start before the first step."""
        self._step = 0
        self._committed_through = 0
        self._pending: dict[str, Rollback] = {}
        # By request id, the last of the steps that its latest rollback has settled.
        self._settled_through: dict[str, int] = {}

    def announce(self, scheduler_output: Any) -> None:
        """Number a schedule, and send along what is pending."""
        self._step += 1
        rollbacks, self._pending = self._pending, {}
        setattr(scheduler_output, ATTRIBUTE, Notice(self._step, self._committed_through, rollbacks))

    def forget(self, request_id: str) -> None:
        """Drop what is known of a request that has ended."""
        self._pending.pop(request_id, None)
        self._settled_through.pop(request_id, None)

    def preempted(self, request: Any) -> None:
        """Take back a request's steps in flight if vLLM will drop their output.

        Args:
            request: vLLM's ``Request``, preempted.
        """
        if _drops_steps_in_flight(request):
            settled = self._settled_through.get(request.request_id, 0)
            # Steps that a former rollback took back may still be in flight: not a second time.
            self._roll_back(request.request_id, Rollback(max(self._committed_through, settled), None))

    def commit(
        self,
        scheduler_output: Any,
        num_generated: Mapping[str, int],
        kept: Mapping[str, Sequence[int]],
        requests: Mapping[str, Any],
        stopped: Sequence[str],
    ) -> None:
        """Compare what a step generated with what was kept of it.

        Args:
            scheduler_output: The step's schedule.
            num_generated: By request id, the tokens that the worker gave, before vLLM cut them.
            kept: By request id, the tokens that went out; requests of which nothing did are missing.
            requests: vLLM's requests after the step, by id.
            stopped: Ids of requests that ended, or ended a chunk of their session, with this step.
        """
        notice = notice_of(scheduler_output)
        if notice is None:
            return
        self._committed_through = notice.step
        num_kept_by_id = dict(zip(kept, map(len, kept.values()), strict=True))
        in_part = []
        # The usual case, told by one comparison.
        if num_generated != num_kept_by_id:
            in_part = [i for i, number in num_generated.items() if num_kept_by_id.get(i, 0) != number]
        for request_id in (*in_part, *(i for i in stopped if i not in in_part)):
            request = requests.get(request_id)
            if request is None or request.is_finished():
                continue
            if notice.step <= self._settled_through.get(request_id, 0):
                continue
            num_kept = num_kept_by_id.get(request_id, 0)
            if request.num_in_flight_tokens and not _drops_steps_in_flight(request):
                # Later steps will be kept (a failed KV load under async scheduling): to take them back would
                # be to give budget twice. What was not kept stays charged.
                continue
            if request.num_in_flight_tokens or num_kept < num_generated.get(request_id, 0):
                self._roll_back(request_id, Rollback(notice.step, num_kept))

    def _roll_back(self, request_id: str, rollback: Rollback) -> None:
        """Note a rollback; of two for one request the earlier one says it all."""
        known = self._pending.get(request_id)
        if known is None or _order(rollback) < _order(known):
            self._pending[request_id] = rollback
        self._settled_through[request_id] = self._step


def _drops_steps_in_flight(request: Any) -> bool:
    return bool(request.drop_stale_output and request.num_stale_output_tokens > 0)


def _order(rollback: Rollback) -> tuple[int, float]:
    kept = rollback.kept_tokens
    return rollback.after_step, float("inf") if kept is None else kept
