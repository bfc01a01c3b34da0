"""Sampled requests keep the target's law, also in a batch whose greedy rows are relaxed.

Many draws through vLLM's real rejection sampler with the seam attached, tested by chi-square against the
worked examples of exact and naive correction (DESIGN section 6.6). The naive law is what a verifier gives
that draws the replacement of a rejected token from the target itself in place of the residual.
"""

import numpy as np
import pytest
import torch
from scipy import stats

from tests.v1_step import Runner, attach, metadata, sampling
from vllm_asd.config import AsdConfig

ALPHA = 1e-4
ROWS = 512
STEPS = 24


def naive_law(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Accept with min(1, p/q), else draw from p."""
    kept: np.ndarray = np.minimum(p, q)
    law: np.ndarray = kept + (1 - kept.sum()) * p
    return law


def draw(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Counts of the first token of sampled rows; every other row is a relaxed greedy one."""
    config = AsdConfig(asd_gate=100.0, asd_budget=1e6, asd_block_cap=5)
    runner = Runner(ROWS)
    attach(runner, config, {f"r{row}": config.limits for row in range(0, ROWS, 2)})
    runner.sampling = sampling([0.0, 1.0] * (ROWS // 2))
    logits = torch.tensor(np.log(p), dtype=torch.float32).repeat(2 * ROWS, 1)
    runner.draft_probs = torch.tensor(q, dtype=torch.float32).repeat(ROWS, 1)
    generator = np.random.default_rng(0)
    counts = np.zeros(len(p))
    for _ in range(STEPS):
        drafts = generator.choice(len(p), size=ROWS, p=q)
        made = metadata([[int(token)] for token in drafts])
        emitted = runner.sample_tokens((logits.clone(), made)).output.sampled_token_ids.numpy()
        # Under these limits a greedy row keeps any draft: the relaxation was at work beside the sampling.
        np.testing.assert_array_equal(emitted[0::2, 0], drafts[0::2])
        counts += np.bincount(emitted[1::2, 0], minlength=len(p))
    return counts


@pytest.mark.parametrize(
    ("p", "q", "naive"),
    [
        ((0.5, 0.3, 0.2), (0.7, 0.2, 0.1), (0.6, 0.26, 0.14)),
        ((0.5, 0.3, 0.2), (0.2, 0.5, 0.3), (0.35, 0.39, 0.26)),
    ],
)
def test_sampled_rows_follow_the_target(
    p: tuple[float, ...], q: tuple[float, ...], naive: tuple[float, ...]
) -> None:
    """The target's law passes, the naive law is refused by the same test on the same draws."""
    target, wrong = np.array(p), np.array(naive)
    np.testing.assert_allclose(naive_law(target, np.array(q)), wrong, atol=1e-12)
    torch.manual_seed(1)
    counts = draw(target, np.array(q))
    assert counts.sum() == ROWS // 2 * STEPS
    assert stats.chisquare(counts, target * counts.sum()).pvalue > ALPHA
    assert stats.chisquare(counts, wrong * counts.sum()).pvalue < ALPHA


def test_a_larger_vocabulary() -> None:
    """Twelve tokens, a draft law that knows little of the target's."""
    generator = np.random.default_rng(5)
    p, q = generator.dirichlet(np.ones(12)), generator.dirichlet(np.ones(12))
    torch.manual_seed(2)
    counts = draw(p, q)
    assert stats.chisquare(counts, p * counts.sum()).pvalue > ALPHA


def test_total_variation_of_the_naive_law() -> None:
    """The published distance, exactly."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.3])
    assert np.abs(naive_law(p, q) - p).sum() / 2 == pytest.approx(0.15, abs=1e-12)
