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
        spent: Nats spent so far, this block included, by the request or, where ``thinking`` is given, by its
            account for that phase.
        shadow: Whether the exceptions were only counted, not emitted.
        exceptions: The kept exceptions, in order.
        thinking: Whether the block began inside the reasoning; None where a request has one account.
        guard: 1 when the request's guard tripped with this block, 2 when it had before, so that the block is
            strict; else 0.
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
    thinking: bool | None = None
    guard: int = 0


@dataclass
class StepReport:
    """A non-blocking copy in flight; :meth:`resolve` is for whoever already waits for the sampled tokens.

    Attributes:
        request_ids: R ids; None for rows that are not to be reported.
        columns: By name: fields of BlockReport, [R] each; the exceptions' ``regrets`` and the target's tokens
            ``targets``, [R, K] each; at the level "detailed" the ``detail`` of :func:`exception_detail`; on
            the host.
        ready: When the copy has ended; None on the CPU, where there is none.
    """

    request_ids: Sequence[str | None]
    columns: dict[str, Tensor]
    ready: torch.Event | None

    @classmethod
    def start(
        cls,
        request_ids: Sequence[str | None],
        outcome: Outcome,
        spent: Tensor,
        shadow: Tensor,
        detail: Tensor | None = None,
        thinking: Tensor | None = None,
        guard: Tensor | None = None,
    ) -> StepReport:
        """Send the outcome off, in one copy.

        Args:
            request_ids: R ids; None for rows that are not to be reported.
            outcome: The step's decisions.
            spent: [R] float64, nats that each row's account has paid, this step included.
            shadow: [R] bool.
            detail: [R, 2 * E] float64 from :func:`exception_detail`, or None.
            thinking: [R] bool, the phase each block began in, or None.
            guard: [R] int, that of BlockReport, or None when no row is guarded.
        """
        scalars = {
            "num_draft": outcome.num_draft,
            "accepted": outcome.accepted,
            "strict_accepted": outcome.strict_accepted,
            "reused": outcome.reused,
            "stop": outcome.stop,
            "charged": outcome.charged,
            "spent": spent,
            "shadow": shadow,
        }
        rows = {"regrets": outcome.exception_regret, "targets": outcome.target_ids}
        if thinking is not None:
            scalars["thinking"] = thinking
        if guard is not None:
            scalars["guard"] = guard
        if detail is not None:
            rows["detail"] = detail
        if spent.device.type == "cpu":
            return cls(request_ids, scalars | rows, None)
        packed = torch.cat(
            (
                torch.stack([scalar.to(torch.float64) for scalar in scalars.values()], dim=1),
                *(row.to(torch.float64) for row in rows.values()),
            ),
            dim=1,
        )
        host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
        ready = torch.Event(packed.device)
        host.copy_(packed, non_blocking=True)
        ready.record()
        by_scalar, *by_row = host.split((len(scalars), *(row.shape[1] for row in rows.values())), dim=1)
        columns = dict(zip((*scalars, *rows), (*by_scalar.unbind(1), *by_row), strict=True))
        return cls(request_ids, columns, ready)

    def resolve(self) -> dict[str, BlockReport]:
        """Wait for the copy and read it: one report per row that verified at least one draft."""
        if self.ready is not None:
            self.ready.synchronize()
        reports = {}
        columns = [column.tolist() for column in self.columns.values()]
        for request_id, *values in zip(self.request_ids, *columns, strict=True):
            row = dict(zip(self.columns, values, strict=True))
            if request_id is not None and row["num_draft"] > 0:
                reports[request_id] = _read(**row)
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
    thinking: float | None = None,
    guard: float = 0,
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
    phase = None if thinking is None else thinking != 0
    return BlockReport(*counts, charged, spent, shadow != 0, exceptions, phase, int(guard))
