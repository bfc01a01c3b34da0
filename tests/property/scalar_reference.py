"""The rule of DESIGN section 2 for one request, in plain loops: no tensors, nothing shared with the product.

Python floats are IEEE doubles, as the product's sums are, so results are compared for equality.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Block:
    """One row: K draft positions and the limits that hold for it."""

    regret: Sequence[float]
    is_match: Sequence[bool]
    remaining: float
    gate: float
    block_cap: int
    protected: Sequence[bool] = ()
    pricing: str = "remaining"

    @property
    def num_draft(self) -> int:
        """K of this row."""
        return len(self.is_match)

    @property
    def is_strict(self) -> bool:
        """Some limit is not positive (NaN is not positive either)."""
        return not (self.gate > 0) or not (self.block_cap > 0) or not (self.remaining > 0)

    def is_protected(self, i: int) -> bool:
        """Position i must not be relaxed."""
        return bool(self.protected) and self.protected[i]

    def is_acceptable(self, i: int) -> bool:
        """The regret at i is a number that can be paid."""
        return not math.isnan(self.regret[i]) and not math.isinf(self.regret[i]) and self.regret[i] >= 0

    def price(self, i: int) -> float:
        """Regret per token at stake."""
        if self.pricing == "remaining":
            return self.regret[i] / (self.num_draft - i)
        run = 0
        for behind in range(i + 1, self.num_draft):
            if not self.is_match[behind]:
                break
            run += 1
        return self.regret[i] / (1 + run)


@dataclass(frozen=True)
class Outcome:
    """What the block ends in."""

    accepted: int
    charged: float
    exceptions: int
    reused: int
    stop: str


def strict_accepted(is_match: Sequence[bool]) -> int:
    """Length of the longest prefix of matches."""
    length = 0
    for match in is_match:
        if not match:
            break
        length += 1
    return length


def _refusal(block: Block, i: int, exceptions: int, charged: float) -> str | None:
    """Why the mismatch at i cannot be kept; None if it can."""
    if block.is_protected(i):
        return "protected"
    if not block.is_acceptable(i):
        return "invalid"
    if block.is_strict:
        if not (block.gate > 0):
            return "gate"
        return "cap" if not (block.block_cap > 0) else "budget"
    if block.price(i) > block.gate:
        return "gate"
    if exceptions + 1 > block.block_cap:
        return "cap"
    if charged + block.regret[i] > block.remaining:
        return "budget"
    return None


def verify(block: Block) -> Outcome:
    """Walk the proposal token by token and keep what may be kept."""
    accepted, charged, exceptions, reused, stop = 0, 0.0, 0, 0, "end"
    for i in range(block.num_draft):
        if block.is_match[i]:
            reused += exceptions > 0
        else:
            refusal = _refusal(block, i, exceptions, charged)
            if refusal is not None:
                stop = refusal
                break
            charged += block.regret[i]
            exceptions += 1
        accepted += 1
    return Outcome(accepted, charged, exceptions, reused, stop)
