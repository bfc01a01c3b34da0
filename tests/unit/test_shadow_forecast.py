"""`python -m eval.shadow`: two modes' blocks held against each other."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from eval.shadow.measure import Block, Run, read_runs
from eval.shadow.summary import summarize

PLAIN = Block(1, 2, 2, [])
# Strict keeps 1 of the block's drafts, ASD 4: exceptions at output tokens 5 and 7.
PARTING = Block(4, 4, 1, [(5, 40, 0.2), (7, 41, 0.1)])


def run(mode: str, *blocks: Block, name: str = "a") -> Run:
    """One prompt in one mode."""
    return Run("gsm8k", name, mode, list(blocks), [])


def test_gains_are_of_tokens_per_block() -> None:
    """Shadow: 2 blocks, 3 drafts strict, 6 foreseen; enforced: 2 blocks, 8 drafts."""
    shadow = run("shadow", PLAIN, PARTING)
    enforced = run("enforce", Block(1, 4, 3, []), PARTING)
    summary = summarize([shadow, enforced])
    assert summary.strict == pytest.approx(5 / 2)
    assert summary.foreseen.value == pytest.approx((8 / 2) / (5 / 2) - 1)
    assert summary.realized.value == pytest.approx((10 / 2) / (5 / 2) - 1)
    assert summary.difference.value == pytest.approx(8 / 5 - 10 / 5)
    assert summary.same_blocks == pytest.approx(10 / 6 - 1)


@pytest.mark.parametrize(
    ("enforced", "place", "block"),
    [
        (PARTING, 1, 1),
        # Rounding moves the regrets, not the decision.
        (Block(4, 4, 1, [(5, 40, 0.20001), (7, 41, 0.1)]), 1, 1),
        (Block(4, 3, 1, [(5, 40, 0.2)]), 1, 0),
        (Block(4, 4, 2, [(6, 40, 0.2), (7, 41, 0.1)]), 0, 0),
    ],
)
def test_the_block_of_the_parting_is_compared_whole(enforced: Block, place: int, block: int) -> None:
    summary = summarize([run("shadow", PLAIN, PARTING), run("enforce", PLAIN, enforced)])
    assert (summary.parted, summary.same_place, summary.same_block) == (1, place, block)
    assert summary.max_regret_difference < 1e-4


def test_an_exception_that_only_one_mode_has_counts_as_a_difference() -> None:
    runs = [run("shadow", PLAIN), run("enforce", PARTING)]
    runs += [run("shadow", PLAIN, name="b"), run("enforce", PLAIN, name="b")]
    summary = summarize(runs)
    assert (summary.prompts, summary.parted, summary.same_place) == (2, 1, 0)


def test_runs_survive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    runs = [run("shadow", PLAIN, PARTING), run("enforce", PARTING)]
    path.write_text("".join(json.dumps(asdict(entry)) + "\n" for entry in runs))
    assert read_runs(path) == runs


def test_without_pairs_nothing_is_claimed() -> None:
    with pytest.raises(ValueError, match="both modes"):
        summarize([run("shadow", PLAIN)])
