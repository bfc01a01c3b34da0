"""From blocks to figures: is the block where the modes part decided alike, and what is the forecast worth?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eval.shadow.measure import Block, Run
from vllm_asd.tools.statistics.resampling import Floats, Interval, ResampledSums, Sums


@dataclass(frozen=True)
class Summary:
    """What the pairs of runs showed.

    Attributes:
        task: Data set, or "all".
        prompts: Pairs.
        parted: Pairs of which a run has an exception.
        same_place: Of those, first exceptions at the same position with the same target's token.
        same_block: Of those, blocks with the same exceptions that also keep as many draft tokens.
        max_regret_difference: Largest difference in nats between the regrets of such blocks.
        strict: Tokens per block of strict verification: what the shadow runs emitted.
        foreseen: Gain over it that the shadow runs foresee, with a 95% interval over prompts.
        realized: Gain that the enforced runs had.
        difference: Foreseen minus realized.
        same_blocks: Gain of the enforced runs over what strict keeps of the very same blocks.
    """

    task: str
    prompts: int
    parted: int
    same_place: int
    same_block: int
    max_regret_difference: float
    strict: float
    foreseen: Interval
    realized: Interval
    difference: Interval
    same_blocks: float


def summarize(runs: Sequence[Run], task: str | None = None) -> Summary:
    """Compare the modes over the prompts that have both.

    Raises:
        ValueError: No prompt has both.
    """
    by_prompt: dict[tuple[str, str], dict[str, Run]] = {}
    for run in runs:
        if task is None or run.task == task:
            by_prompt.setdefault((run.task, run.id), {})[run.mode] = run
    pairs = [(both["shadow"], both["enforce"]) for both in by_prompt.values() if len(both) == 2]
    if not pairs:
        raise ValueError(f"no prompt of {task or 'any task'} was run in both modes")
    firsts = [(first_relaxed(shadow), first_relaxed(enforced)) for shadow, enforced in pairs]
    parted = [(s, e) for s, e in firsts if s or e]
    both = [(s, e) for s, e in parted if s and e]
    same_place = [(s, e) for s, e in both if s.exceptions[0][:2] == e.exceptions[0][:2]]
    same_block = [(s, e) for s, e in same_place if _decisions(s) == _decisions(e)]
    differences = [
        abs(left[2] - right[2])
        for s, e in same_block
        for left, right in zip(s.exceptions, e.exceptions, strict=True)
    ]
    sums = ResampledSums.of(_columns(pairs))
    return Summary(
        task=task or "all",
        prompts=len(pairs),
        parted=len(parted),
        same_place=len(same_place),
        same_block=len(same_block),
        max_regret_difference=max(differences, default=0.0),
        strict=float(_strict(sums.observed)[0]),
        foreseen=_interval(sums, _foreseen),
        realized=_interval(sums, _realized),
        difference=_interval(sums, lambda total: _foreseen(total) - _realized(total)),
        same_blocks=float(_kept(sums.observed)[0] / _strict(sums.observed, "enforce")[0]) - 1,
    )


def first_relaxed(run: Run) -> Block | None:
    """The first block with an exception."""
    return next((block for block in run.blocks if block.exceptions), None)


def _decisions(block: Block) -> tuple[int, int, int, list[tuple[int, int]]]:
    """All that a block decided, without its regrets, which rounding moves."""
    places = [(position, target) for position, target, _ in block.exceptions]
    return block.position, block.accepted, block.strict_accepted, places


def _columns(pairs: Sequence[tuple[Run, Run]]) -> dict[str, list[int]]:
    """Per pair and mode the blocks, the draft tokens that strict keeps of them, and those kept."""
    columns: dict[str, list[int]] = {}
    for runs in pairs:
        for run in runs:
            columns.setdefault(f"{run.mode} blocks", []).append(len(run.blocks))
            strict, kept = (
                sum(getattr(b, key) for b in run.blocks) for key in ("strict_accepted", "accepted")
            )
            columns.setdefault(f"{run.mode} strict", []).append(strict)
            columns.setdefault(f"{run.mode} kept", []).append(kept)
    return columns


def _strict(sums: Sums, mode: str = "shadow") -> Floats:
    """Tokens per block that strict verification makes of a mode's blocks."""
    return 1 + sums[f"{mode} strict"] / sums[f"{mode} blocks"]


def _kept(sums: Sums, mode: str = "enforce") -> Floats:
    return 1 + sums[f"{mode} kept"] / sums[f"{mode} blocks"]


def _foreseen(sums: Sums) -> Floats:
    return _kept(sums, "shadow") / _strict(sums) - 1


def _realized(sums: Sums) -> Floats:
    return _kept(sums) / _strict(sums) - 1


def _interval(sums: ResampledSums, gain: Callable[[Sums], Floats]) -> Interval:
    found = sums.interval(gain)
    if found is None:
        raise ValueError("no block was verified: the drafter proposed nothing")
    return found
