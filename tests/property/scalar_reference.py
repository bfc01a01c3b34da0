"""The rule of DESIGN section 2 for one request, in plain loops: no tensors, nothing shared with the product.

Python floats are IEEE doubles, as the product's sums are, so results are compared for equality.
"""

import math
import struct
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


@dataclass(frozen=True)
class TokenRow:
    """One row as the kernels get it: tokens and logits in place of regrets. ``in_scope`` None: everywhere."""

    draft_ids: Sequence[int]
    argmax: Sequence[int]
    logits: Sequence[Sequence[float]]
    vocab_size: int
    protected_ids: Sequence[int]
    in_scope: Sequence[bool] | None
    remaining: float
    gate: float
    block_cap: int
    shadow: bool
    pricing: str


@dataclass(frozen=True)
class TokenOutcome:
    """What the row ends in; ``argmax`` as it is handed to vLLM's kernel."""

    num_draft: int
    strict_accepted: int
    verdict: Outcome
    exception_regret: Sequence[float]
    argmax: Sequence[int]


def verify_tokens(row: TokenRow) -> TokenOutcome:
    """Score the tokens and walk the block."""
    in_vocabulary = [0 <= draft < row.vocab_size for draft in row.draft_ids]
    num_draft = in_vocabulary.index(False) if False in in_vocabulary else len(in_vocabulary)
    drafts, targets = row.draft_ids[:num_draft], row.argmax[:num_draft]
    is_match = [draft == target for draft, target in zip(drafts, targets, strict=True)]
    regret = [_regret(row, i) for i in range(num_draft)]
    # An id outside the vocabulary is no token that could be protected.
    forbidden = {token for token in row.protected_ids if 0 <= token < row.vocab_size}
    verdict = verify(
        Block(
            regret=regret,
            is_match=is_match,
            remaining=row.remaining,
            gate=row.gate,
            block_cap=row.block_cap,
            protected=[bool({d, t} & forbidden) for d, t in zip(drafts, targets, strict=True)],
            pricing=row.pricing,
        )
    )
    kept = [i for i in range(verdict.accepted) if not is_match[i]]
    return TokenOutcome(
        num_draft=num_draft,
        strict_accepted=strict_accepted(is_match),
        verdict=verdict,
        exception_regret=[regret[i] if i in kept else -1.0 for i in range(len(row.draft_ids))],
        argmax=[drafts[i] if i in kept and not row.shadow else t for i, t in enumerate(row.argmax)],
    )


def _regret(row: TokenRow, i: int) -> float:
    """The logit gap at i, in single precision; +inf where the token cannot be had at any price."""
    if not 0 <= row.argmax[i] < row.vocab_size or (row.in_scope is not None and not row.in_scope[i]):
        return math.inf
    gap = row.logits[i][row.argmax[i]] - row.logits[i][row.draft_ids[i]]
    try:
        return float(struct.unpack("f", struct.pack("f", gap))[0])
    except OverflowError:
        return math.inf
