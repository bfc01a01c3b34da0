"""How many tokens a verification round yields, with and without assuming that positions are independent."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

Number = float | Fraction
_HALVINGS = 80


def expected_tokens(acceptance: Number | Sequence[Number], k: int) -> Number:
    """Expected tokens of one round: the accepted drafts and the target's own token behind them.

    Args:
        acceptance: One number `a` when every draft is accepted with that probability whatever happened before
            it: E = 1 + a + ... + a^k. Or the joint acceptance by position, entry i being the share of blocks
            whose first i + 1 drafts were all accepted: E = 1 + their sum, no independence assumed.
        k: Draft tokens per round, 0 or more.

    Raises:
        ValueError: An acceptance outside [0, 1], a joint acceptance that rises, or fewer positions than `k`.
    """
    if k < 0:
        raise ValueError(f"k must be 0 or more, got {k}")
    joint = check_joint(acceptance) if isinstance(acceptance, Sequence) else independent_joint(acceptance, k)
    if k > len(joint):
        raise ValueError(f"acceptance is known for {len(joint)} positions, k is {k}")
    return 1 + sum(joint[:k])


def independent_joint(acceptance: Number, k: int) -> tuple[Number, ...]:
    """Joint acceptance by position under independence: a, a^2, ..., a^k.

    Raises:
        ValueError: Outside [0, 1].
    """
    if not 0 <= acceptance <= 1:
        raise ValueError(f"an acceptance lies between 0 and 1, got {acceptance}")
    return tuple(acceptance**position for position in range(1, k + 1))


def check_joint(joint: Sequence[Number]) -> tuple[Number, ...]:
    """Return the joint acceptance by position as given.

    Raises:
        ValueError: Empty, outside [0, 1], or rising, as rates conditional on the position before may be.
    """
    if not joint:
        raise ValueError("acceptance by position is empty")
    for value in joint:
        if not 0 <= value <= 1:
            raise ValueError(f"an acceptance lies between 0 and 1, got {value}")
    for before, after in pairwise(joint):
        if after > before:
            raise ValueError(
                f"acceptance by position rises from {before} to {after}: give the share of all blocks that "
                "got at least that far, not the rate among those that got one position less far"
            )
    return tuple(joint)


def joint_from_counters(accepted_per_position: Sequence[float], num_drafts: float) -> tuple[float, ...]:
    """Joint acceptance from vLLM's counters.

    A round that drafted fewer tokens counts as one that did not get further: that is what a round yields.

    Args:
        accepted_per_position: `vllm:spec_decode_num_accepted_tokens_per_pos_total`, in order of position.
        num_drafts: `vllm:spec_decode_num_drafts_total`: rounds with at least one draft token.

    Raises:
        ValueError: No drafts, or counters that can't be such counts.
    """
    if num_drafts <= 0:
        raise ValueError("nothing has been drafted yet")
    return tuple(float(v) for v in check_joint([count / num_drafts for count in accepted_per_position]))


def extend(joint: Sequence[Number], k: int) -> tuple[Number, ...]:
    """Carry joint acceptance on to `k` positions, at the last measured step's conditional rate.

    Positions behind `len(joint)` are extrapolation; whoever shows them has to say so.
    """
    known = list(check_joint(joint))
    before = known[-2] if len(known) > 1 else 1
    rate = known[-1] / before if before else before
    while len(known) < k:
        known.append(known[-1] * rate)
    return tuple(known)


def acceptance_of_mean(accepted_per_round: float, k: int) -> float:
    """The independent acceptance `a` with a + a^2 + ... + a^k = `accepted_per_round`.

    Args:
        accepted_per_round: Mean accepted draft tokens of a round.
        k: Draft tokens per round, at least 1.

    Raises:
        ValueError: Outside [0, k].
    """
    if not 0 <= accepted_per_round <= k:
        raise ValueError(f"a round of {k} drafts can't accept {accepted_per_round} of them on average")
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if expected_tokens(middle, k) - 1 < accepted_per_round:
            low = middle
        else:
            high = middle
    return high
