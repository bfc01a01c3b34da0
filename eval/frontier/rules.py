"""How a draft token that is not the target's own may be kept: our rules, and those of others."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from vllm_asd.policy import Pricing


@dataclass(frozen=True)
class Walk:
    """The plugin's rule under one pricing, by its own kernel; gate, cap and budget are the request's."""

    pricing: Pricing


@dataclass(frozen=True)
class LookAhead:
    """:func:`eval.frontier.lookahead.best_prefix`; the request's gate is its price."""


class Mismatches(NamedTuple):
    """The draft tokens of some blocks that are not the target's own.

    Attributes:
        logits: [P, V] float32, the target's, after all that vLLM applies before its argmax.
        argmax: [P] int64, the target's token.
        draft_ids: [P] int64, in the vocabulary.
        matches_behind: [P] int64, the run of matches right behind each.
    """

    logits: Tensor
    argmax: Tensor
    draft_ids: Tensor
    matches_behind: Tensor


@runtime_checkable
class Tolerance(Protocol):
    """A rule that looks at one mismatch at a time and keeps no account: what the rivals have in common."""

    def tolerates(self, at: Mismatches) -> Tensor:
        """[P] bool, the mismatch may be kept."""
        ...


@dataclass(frozen=True)
class Fly:
    """vLLM 0.33's `rejection_sample_method: "fly"` (`v1/spec_decode/fly.py`, greedy requests).

    A mismatch is kept where the target is unsure and agrees with the next drafts again. vLLM's defaults are a
    threshold of 0.3, the 3 largest probabilities, and a window of min(6, K - 1), which for K = 5 leaves the
    first position alone to be relaxed.

    Attributes:
        window: Drafts right behind that must match.
        entropy: Least entropy, in nats, of the largest probabilities (which are not normalised anew).
        top: How many of them.
    """

    window: int
    entropy: float = 0.3
    top: int = 3

    def tolerates(self, at: Mismatches) -> Tensor:
        """See the class."""
        unsure = _entropy(at.logits.softmax(1).topk(self.top, dim=1).values) >= self.entropy
        return unsure & (at.matches_behind >= self.window)


@dataclass(frozen=True)
class Relaxed:
    """TensorRT-LLM's relaxed acceptance (`relaxed_topk`, `relaxed_delta`), outside of thinking too.

    Attributes:
        delta: The draft's probability may lie this much below the best.
        top: The draft is among so many best.
    """

    delta: float
    top: int = 10

    def tolerates(self, at: Mismatches) -> Tensor:
        """See the class."""
        probs = at.logits.softmax(1)
        draft, best = _probability(probs, at.draft_ids), probs.max(1).values
        return (draft >= best - self.delta) & (draft >= probs.topk(self.top, dim=1).values[:, -1])


@dataclass(frozen=True)
class Ratio:
    """The draft is at least so many times as likely as the target's own token: one regret everywhere."""

    least: float

    def tolerates(self, at: Mismatches) -> Tensor:
        """See the class."""
        probs = at.logits.softmax(1)
        return _probability(probs, at.draft_ids) >= self.least * _probability(probs, at.argmax)


@dataclass(frozen=True)
class Typical:
    """Typical acceptance (Medusa, Cai et al., arXiv 2401.10774, section 3.3.1; vLLM up to 0.9).

    The draft's probability is above ``min(threshold, alpha * exp(-entropy))``. The usual choice is 0.09 and
    0.3, the threshold being alpha squared.
    """

    threshold: float
    alpha: float

    def tolerates(self, at: Mismatches) -> Tensor:
        """See the class."""
        probs = at.logits.softmax(1)
        floor = (self.alpha * (-_entropy(probs)).exp()).clamp(max=self.threshold)
        return _probability(probs, at.draft_ids) > floor


Rule = Walk | LookAhead | Fly | Relaxed | Ratio | Typical


def _entropy(probs: Tensor) -> Tensor:
    terms: Tensor = torch.special.xlogy(probs, probs)
    return -terms.sum(1)


def _probability(probs: Tensor, ids: Tensor) -> Tensor:
    return probs.gather(1, ids.unsqueeze(1)).squeeze(1)
