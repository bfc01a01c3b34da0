"""The decisions of one step on their way from the device to the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vllm_asd.kernels import Outcome


class BlockException(NamedTuple):
    """A kept token that is not the target's argmax.

    Attributes:
        position: Place in the block, from 0.
        target_id: What the target would have emitted.
        regret: Nats.
        token_id: The kept token; known at the metrics level "detailed" alone.
        target_logprob: The target's log-probability of its own token, in nats; as above.
    """

    position: int
    target_id: int
    regret: float
    token_id: int | None = None
    target_logprob: float | None = None


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


@dataclass
class StepReport:
    """A non-blocking copy in flight; :meth:`resolve` is for whoever already waits for the sampled tokens.

    Attributes:
        request_ids: R ids; None for rows that are not to be reported.
        columns: The fields of BlockReport, [R] each, then the exceptions' regrets and the target's tokens,
            [R, K] each, and at the level "detailed" :func:`exception_detail`; on the host.
        ready: When the copy has ended; None on the CPU, where there is none.
    """

    request_ids: Sequence[str | None]
    columns: tuple[Tensor, ...]
    ready: torch.Event | None

    @classmethod
    def start(
        cls,
        request_ids: Sequence[str | None],
        outcome: Outcome,
        spent: Tensor,
        shadow: Tensor,
        detail: Tensor | None = None,
    ) -> StepReport:
        """Send the outcome off, in one copy.

        Args:
            request_ids: R ids; None for rows that are not to be reported.
            outcome: The step's decisions.
            spent: [R] float64, nats that each request has spent, this step included.
            shadow: [R] bool.
            detail: [R, 2 * E] float64 from :func:`exception_detail`, or None.
        """
        rows = [outcome.exception_regret, outcome.target_ids] + ([] if detail is None else [detail])
        scalars = (
            outcome.num_draft,
            outcome.accepted,
            outcome.strict_accepted,
            outcome.reused,
            outcome.stop,
            outcome.charged,
            spent,
            shadow,
        )
        if spent.device.type == "cpu":
            return cls(request_ids, (*scalars, *rows), None)
        packed = torch.cat(
            (
                torch.stack([scalar.to(torch.float64) for scalar in scalars], dim=1),
                *(row.to(torch.float64) for row in rows),
            ),
            dim=1,
        )
        host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
        ready = torch.Event(packed.device)
        host.copy_(packed, non_blocking=True)
        ready.record()
        by_scalar, *by_row = host.split((len(scalars), *(row.shape[1] for row in rows)), dim=1)
        return cls(request_ids, (*by_scalar.unbind(1), *by_row), ready)

    def resolve(self) -> dict[str, BlockReport]:
        """Wait for the copy and read it: one report per row that verified at least one draft."""
        if self.ready is not None:
            self.ready.synchronize()
        reports = {}
        columns = [column.tolist() for column in self.columns]
        for request_id, *row in zip(self.request_ids, *columns, strict=True):
            if request_id is not None and row[0] > 0:
                reports[request_id] = _read(*row)
        return reports


def _read(
    num_draft: float,
    accepted: float,
    strict_accepted: float,
    reused: float,
    stop: float,
    charged: float,
    spent: float,
    shadow: float,
    regrets: list[float],
    targets: list[float],
    detail: list[float] | None = None,
) -> BlockReport:
    exceptions = tuple(
        BlockException(position, int(targets[position]), regret)
        for position, regret in enumerate(regrets)
        if regret >= 0
    )
    if detail is not None:
        half = len(detail) // 2
        exceptions = tuple(
            exception._replace(token_id=int(token_id), target_logprob=logprob)
            for exception, token_id, logprob in zip(exceptions, detail[:half], detail[half:], strict=False)
        )
    counts = (int(num_draft), int(accepted), int(strict_accepted), int(reused), int(stop))
    return BlockReport(*counts, charged, spent, shadow != 0, exceptions)
