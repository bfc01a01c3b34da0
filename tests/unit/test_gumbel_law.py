"""`asd_sampling: "gumbel"` through vLLM's real V1 sampler: the law of what sampled requests emit.

Without exceptions it must be the target's. Each test draws 16,384 pairs of tokens and compares by chi-square
at alpha = 1e-4. With 15 degrees of freedom its power is 99% from an effect size w of 0.063 on, a total
variation of at most 0.031: `test_the_test_sees_*` are wrong laws. `benchmarks/sampling_law.py` looks closer.
"""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from tests.toy_chain import NEVER, ToyChain, boosted, joint_law, sampling_law
from vllm_asd.config import AsdConfig
from vllm_asd.upstream import v1_gumbel

ALPHA = 1e-4
ROWS = 2048
TABLE = torch.tensor(
    [[1.0, 0.3, -0.5, 0.8], [0.0, 2.0, 0.5, -1.0], [0.7, 0.7, 0.0, 0.2], [-0.3, 0.1, 1.2, 0.4]]
)
FOLLOWERS = torch.tensor([3, 1, 0, 2])  # a likely token, the likeliest, a tie, the likeliest
EXACT = AsdConfig(asd_sampling="gumbel", asd_gate=NEVER)
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "hot": {"temperature": 1.7},
    "cold": {"temperature": 0.6},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.75},
    "both": {"temperature": 1.3, "top_k": 3, "top_p": 0.9},
    "seeded": {"temperature": 0.8, "top_p": 0.95, "seeded": True},
}


def count_pairs(chain: ToyChain, steps: int) -> np.ndarray:
    """[V, V] counts of the first two tokens."""
    counts = np.zeros((4, 4))
    for _ in range(steps):
        first, second = chain.two_tokens().T.numpy()
        np.add.at(counts, (first, second), 1)
    return counts


def p_value(counts: np.ndarray, law: np.ndarray) -> float:
    """Of the chi-square test; 0 when something was drawn that the law rules out."""
    possible = law > 0
    if counts[~possible].any():
        return 0.0
    expected = law[possible] * counts.sum()
    return float(stats.chisquare(counts[possible], expected).pvalue)


@pytest.mark.parametrize("case", CASES)
def test_two_tokens_follow_the_target(case: str) -> None:
    """The joint law of two tokens, whether the second came in the same block or in another."""
    parameters = dict(CASES[case])
    seeded = parameters.pop("seeded", False)
    torch.manual_seed(11)
    chain = ToyChain(TABLE, FOLLOWERS, ROWS, EXACT, seeded=seeded, **parameters)
    counts = count_pairs(chain, steps=8)
    assert p_value(counts, joint_law(TABLE, **parameters)) > ALPHA
    ledger = chain.runner.asd_verifier.ledger.snapshot()
    assert sum(entry.spent for entry in ledger.values()) < 1e-6


def test_vllms_own_path_passes_the_same_test() -> None:
    """What the budget 0 keeps: vLLM's rejection sampling, on the same chain."""
    torch.manual_seed(12)
    chain = ToyChain(TABLE, FOLLOWERS, ROWS, EXACT, couple=False)
    assert p_value(count_pairs(chain, steps=8), joint_law(TABLE)) > ALPHA


def test_the_test_sees_a_shared_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """One noise vector for all positions of a block gives the right marginals and a wrong joint law."""

    def shared(logits: torch.Tensor, num_draft_tokens: list[int], *rest: Any) -> torch.Tensor:
        blocks = logits.unflatten(0, (-1, num_draft_tokens[0]))
        noise = torch.empty_like(blocks[:, :1]).exponential_().log_()
        perturbed: torch.Tensor = (blocks - noise).flatten(0, 1)
        return perturbed

    monkeypatch.setattr(v1_gumbel, "add_gumbel_noise", shared)
    torch.manual_seed(13)
    counts = count_pairs(ToyChain(TABLE, FOLLOWERS, ROWS, EXACT), steps=8)
    assert p_value(counts.sum(1), sampling_law(TABLE)[0]) > ALPHA
    assert p_value(counts, joint_law(TABLE)) < ALPHA


def test_the_test_sees_a_small_boost() -> None:
    """A total variation of 0.033 in the first token is found."""
    law = joint_law(TABLE)
    first = boosted(law.sum(1), int(FOLLOWERS[0]), 0.15)
    wrong = first[:, None] * sampling_law(TABLE)
    assert np.abs(wrong - law).sum() / 2 == pytest.approx(0.033, abs=1e-3)
    torch.manual_seed(11)
    counts = count_pairs(ToyChain(TABLE, FOLLOWERS, ROWS, EXACT), steps=8)
    assert p_value(counts, wrong) < ALPHA


@pytest.mark.parametrize(("limit", "nats"), [("asd_gate", 0.25), ("asd_budget", 1.0)])
def test_one_exception_is_a_boost(limit: str, nats: float) -> None:
    """The law of a relaxed position in closed form: the draft's logit is raised by what may be spent."""
    config = AsdConfig(asd_sampling="gumbel", asd_gate=50.0, asd_budget=50.0).model_copy(update={limit: nats})
    torch.manual_seed(14)
    counts = np.zeros(4)
    for _ in range(8):
        # Anew, so that each draw has its whole budget.
        chain = ToyChain(TABLE, FOLLOWERS, ROWS, config)
        emitted = chain.step(torch.zeros(ROWS, dtype=torch.int64), num_drafts=1)
        counts += np.bincount(emitted[:, 0].numpy(), minlength=4)
    target = sampling_law(TABLE)[0]
    assert p_value(counts, boosted(target, int(FOLLOWERS[0]), nats)) > ALPHA
    assert p_value(counts, target) < ALPHA


def test_a_masked_draft_is_never_kept() -> None:
    """What top-k rules out has no finite regret, whatever the limits."""
    lax = AsdConfig(asd_sampling="gumbel", asd_gate=1e6, asd_budget=1e9)
    torch.manual_seed(15)
    chain = ToyChain(TABLE, torch.tensor([2, 1, 0, 2]), ROWS, lax, top_k=2)
    emitted = chain.step(torch.zeros(ROWS, dtype=torch.int64), num_drafts=1)[:, 0]
    assert set(emitted.tolist()) == {0, 3}
    assert all(entry.spent == 0 for entry in chain.runner.asd_verifier.ledger.snapshot().values())


@pytest.mark.parametrize("couple", [True, False])
def test_drafts_that_were_sampled(couple: bool) -> None:
    """The noise is not the drafter's, so the law holds; drafts match as often as two independent draws do."""
    drafter = torch.tensor(
        [[0.4, 0.1, 0.1, 0.4], [0.1, 0.6, 0.2, 0.1], [0.2, 0.5, 0.2, 0.1], [0.1, 0.1, 0.4, 0.4]]
    )
    torch.manual_seed(16)
    chain = ToyChain(TABLE, drafter, ROWS, EXACT, couple=couple)
    assert p_value(count_pairs(chain, steps=8), joint_law(TABLE)) > ALPHA
    target, draft_law = sampling_law(TABLE)[0], drafter[0].double().numpy()
    emitted = chain.step(torch.zeros(ROWS, dtype=torch.int64), num_drafts=1)
    overlap = target * draft_law if couple else np.minimum(target, draft_law)
    accepted = int((emitted[:, 1] >= 0).sum())
    assert stats.binomtest(accepted, ROWS, float(overlap.sum())).pvalue > ALPHA
