"""The decisions of one step on their way from the device to the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vllm_asd.kernels import Outcome
from vllm_asd.ledger import LedgerView


class BlockException(NamedTuple):
    """A kept token that is not the target's argmax.

    Attributes:
        position: Place in the block, from 0.
        target_id: What the target would have emitted.
        regret: Nats.
    """

    position: int
    target_id: int
    regret: float


class BlockReport(NamedTuple):
    """What one verification block of one request did; plain numbers, cheap to pickle.

    Attributes:
        num_draft: Valid draft tokens.
        accepted: Draft tokens kept (in shadow: that would have been kept).
        strict_accepted: Draft tokens that strict verification keeps of the same block.
        reused: Kept matches behind the first exception.
        stop: Value of :class:`vllm_asd.policy.StopReason`.
        charged: Nats charged for the block.
        spent: Nats the request has spent so far, this block included.
        shadow: Whether the exceptions were only counted, not emitted.
        exceptions: The kept exceptions, in order.
    """

    num_draft: int
    accepted: int
    strict_accepted: int
    reused: int
    stop: int
    charged: float
    spent: float
    shadow: bool
    exceptions: tuple[BlockException, ...]


_NUM_SCALARS = 8


@dataclass
class StepReport:
    """A non-blocking copy in flight; :meth:`resolve` is for whoever already waits for the sampled tokens."""

    request_ids: Sequence[str | None]
    packed: Tensor
    width: int
    ready: torch.Event | None

    @classmethod
    def start(cls, request_ids: Sequence[str | None], outcome: Outcome, after: LedgerView) -> StepReport:
        """Pack the outcome and send it off.

        Args:
            request_ids: R ids; None for rows that are not to be reported.
            outcome: The step's decisions.
            after: The ledger after the step was charged.
        """
        scalars = (
            outcome.num_draft,
            outcome.accepted,
            outcome.strict_accepted,
            outcome.reused,
            outcome.stop,
            outcome.charged,
            after.spent,
            after.shadow,
        )
        packed = torch.cat(
            (
                torch.stack([scalar.to(torch.float64) for scalar in scalars], dim=1),
                outcome.exception_regret,
                outcome.target_ids.to(torch.float64),
            ),
            dim=1,
        )
        ready = None
        if packed.device.type != "cpu":
            host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
            ready = torch.Event(packed.device)
            packed = host.copy_(packed, non_blocking=True)
            ready.record()
        return cls(request_ids, packed, outcome.exception_regret.shape[1], ready)

    def resolve(self) -> dict[str, BlockReport]:
        """Wait for the copy and read it: one report per row that verified at least one draft."""
        if self.ready is not None:
            self.ready.synchronize()
        reports = {}
        for request_id, row in zip(self.request_ids, self.packed.tolist(), strict=True):
            if request_id is not None and row[0] > 0:
                reports[request_id] = self._read(row)
        return reports

    def _read(self, row: list[float]) -> BlockReport:
        regrets = row[_NUM_SCALARS : _NUM_SCALARS + self.width]
        targets = row[_NUM_SCALARS + self.width :]
        exceptions = tuple(
            BlockException(position, int(target), regret)
            for position, (regret, target) in enumerate(zip(regrets, targets, strict=True))
            if regret >= 0
        )
        num_draft, accepted, strict_accepted, reused, stop = (int(value) for value in row[:5])
        return BlockReport(
            num_draft, accepted, strict_accepted, reused, stop, row[5], row[6], row[7] != 0, exceptions
        )
