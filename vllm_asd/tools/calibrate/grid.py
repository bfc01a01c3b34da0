"""The settings that are tried: what a request may ask for, spanned around a starting gate."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from vllm_asd.config import RequestLimits

# A rejection dearer than the server's gate is not reported; the lower quartile must lie well within.
LEAST_GATE = 5.0
LAX = '"asd_budget": 100000, "asd_gate": 20, "asd_block_cap": 5, "asd_refill": 1'


@dataclass(frozen=True, order=True)
class Setting:
    """Limits of one arm.

    Attributes:
        gate: Nats per draft token at stake.
        block_cap: Exceptions per block.
        budget: Nats per request.
        refill: Nats given back per emitted token.
    """

    gate: float
    block_cap: int
    budget: float
    refill: float

    @property
    def arm(self) -> str:
        """Its name in the file of answers."""
        return f"g{self.gate:g} M{self.block_cap} B{self.budget:g} r{self.refill:g}"

    @property
    def keys(self) -> dict[str, Any]:
        """As `vllm_xargs` and as `--speculative-config` name them."""
        return {
            "asd_budget": self.budget,
            "asd_gate": self.gate,
            "asd_block_cap": self.block_cap,
            "asd_refill": self.refill,
        }

    def is_stricter_ledger_of(self, other: "Setting") -> bool:
        """Whether only budget and refill differ, and neither is larger here."""
        same = (self.gate, self.block_cap) == (other.gate, other.block_cap)
        return same and self.budget <= other.budget and self.refill <= other.refill


@dataclass(frozen=True)
class Grid:
    """What is combined with what.

    Attributes:
        gate_factors: Times the starting gate.
        block_caps: M.
        budgets: B, in nats.
        refills: In nats per token.
    """

    gate_factors: Sequence[float]
    block_caps: Sequence[int]
    budgets: Sequence[float]
    refills: Sequence[float]

    def settings(self, starting_gate: float) -> list[Setting]:
        """All combinations; gates are rounded to what a person would write."""
        gates = sorted({float(f"{starting_gate * factor:.2g}") for factor in self.gate_factors})
        combined = product(gates, self.block_caps, self.budgets, self.refills)
        return [Setting(*values) for values in dict.fromkeys(combined)]

    def __len__(self) -> int:
        """Combinations."""
        return len(self.gate_factors) * len(self.block_caps) * len(self.budgets) * len(self.refills)

    def refuse_narrower(self, limits: RequestLimits, starting_gate: float | None = None) -> None:
        """Refuse a server that would not let a request ask for all of this.

        Args:
            limits: The server's.
            starting_gate: Once it is known; before, a server's gate need only be wide enough to find it.

        Raises:
            ValueError: One line that names the key and how to start the server instead.
        """
        if limits.shadow:
            raise ValueError('the server only looks: start it without "asd_mode": "shadow"')
        gate = LEAST_GATE if starting_gate is None else starting_gate * max(self.gate_factors)
        needed = {
            "asd_gate": (limits.gate, gate),
            "asd_block_cap": (limits.block_cap, max(self.block_caps)),
            "asd_budget": (limits.budget, max(self.budgets)),
            "asd_refill": (limits.refill, max(self.refills)),
        }
        for key, (has, needs) in needed.items():
            if has < needs:
                raise ValueError(
                    f"the server's {key}={has:g} is narrower than the {needs:.3g} to be tried, and a request "
                    f"can only be stricter: start it with {LAX}"
                )
