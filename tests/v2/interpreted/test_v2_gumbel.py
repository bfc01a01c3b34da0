"""Coupled requests on Model Runner V2, between vLLM's own kernels: the noise is that of vLLM's sampler."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from vllm_asd.config import AsdConfig
from vllm_asd.upstream import v2_runner
from vllm_asd.upstream.arguments import with_arguments
from vllm_asd.upstream.patching import APPLIED
from vllm_asd.upstream.v2_gumbel import REJECTION_SAMPLE
from vllm_asd.upstream.v2_kernels import REJECTION_KERNEL, RelaxedRejectionKernel
from vllm_asd.upstream.v2_runner import V2Seam
from vllm_asd.verification import DraftShape, Verifier

pytest.importorskip("vllm")

# NumPy, which interprets, says so where a GPU computes without a word.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

VOCAB, NUM_DRAFT = 1500, 3
WIDTH = NUM_DRAFT + 1
IDS = ("coupled", "greedy", "vllms", "coupled too")
TEMPERATURE = (0.8, 0.0, 1.2, 1.0)
# Places of the requests in vLLM's tables, which have room for more.
PLACES = (4, 0, 2, 1)


class Step:
    """Four requests; the drafts are what vLLM's sampler draws, except where a test changes them."""

    def __init__(self, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(3)
        if device.type == "cpu":
            # Its import replaces the CUDA calls that vLLM's samplers make; a CPU worker does it first of all.
            import vllm.v1.worker.cpu.shm  # noqa: F401
        self.device = device
        self.logits = (torch.randn(len(IDS) * WIDTH, VOCAB, generator=generator) * 2).to(device)
        self.idx_mapping = torch.tensor(PLACES, dtype=torch.int32, device=device)
        self.expanded = self.idx_mapping.repeat_interleave(WIDTH)
        self.local = torch.arange(WIDTH, dtype=torch.int32, device=device).repeat(len(IDS))
        self.pos = torch.arange(len(IDS), device=device).repeat_interleave(WIDTH) * 100 + 9 + self.local
        self.seeds = torch.arange(900, 906, device=device) * 7919
        self.temperature = torch.zeros(6, device=device)
        self.temperature[self.idx_mapping.long()] = torch.tensor(TEMPERATURE, device=device)
        self.drawn = self.draw()
        # As V2 keeps them: a request's last token, then its drafts.
        self.drafts = self.drawn.roll(1).to(torch.int32)

    def draw(self, use_fp64: bool = False) -> Tensor:
        """[N]: vLLM's sampler on every row; the argmax for greedy requests."""
        from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample

        drawn: Tensor = gumbel_sample(
            self.logits,
            self.expanded,
            self.temperature,
            self.seeds,
            self.pos,
            apply_temperature=False,
            is_drafting=False,
            use_fp64=use_fp64,
        )
        return drawn

    def sample(self, *_: Any) -> tuple[Any, Tensor]:
        """Verify, as vLLM's sampler does in one chunk."""
        from vllm.v1.worker.gpu.spec_decode import rejection_sampler

        sampled, num_sampled = rejection_sampler.rejection_sample(
            self.logits,
            None,
            self.drafts,
            torch.arange(0, len(IDS) * WIDTH + 1, WIDTH, dtype=torch.int32, device=self.device),
            self.pos,
            self.idx_mapping,
            self.expanded,
            self.local,
            self.temperature,
            self.seeds,
            NUM_DRAFT,
        )
        return SimpleNamespace(sampled_token_ids=sampled), num_sampled

    def emitted(self, seam: V2Seam | None = None) -> list[list[int]]:
        """What each request emits, with the seam or without."""
        sample = self.sample if seam is None else seam.wrap_sample(self.sample)
        output, counts = sample(None, SimpleNamespace(req_ids=IDS), None)
        return [row[:n].tolist() for row, n in zip(output.sampled_token_ids, counts.tolist(), strict=True)]


@pytest.fixture
def step(device: torch.device) -> Step:
    """A fresh step."""
    return Step(device)


def _seam(device: torch.device, gate: float) -> V2Seam:
    config = AsdConfig(asd_sampling="gumbel", asd_gate=gate, asd_budget=1e6, asd_block_cap=8)
    verifier = Verifier(config, device, 8, DraftShape(NUM_DRAFT, VOCAB))
    for name in ("coupled", "coupled too"):
        verifier.admit(name, config.limits, sampled=True)
    verifier.admit("greedy", config.limits)
    APPLIED.apply(REJECTION_KERNEL, RelaxedRejectionKernel)
    APPLIED.apply(REJECTION_SAMPLE, lambda original: with_arguments(original, v2_runner._couple))
    return V2Seam(_runner(device), verifier)


def _runner(device: torch.device) -> Any:
    """What a warm-up asks of the runner."""
    states = SimpleNamespace(
        temperature=SimpleNamespace(gpu=torch.ones(6, device=device)),
        seeds=SimpleNamespace(gpu=torch.arange(6, device=device)),
    )
    sampler = SimpleNamespace(sampling_states=states, use_fp64_gumbel=False)
    return SimpleNamespace(device=device, dtype=torch.bfloat16, sampler=sampler)


@pytest.fixture(autouse=True)
def _unpatched() -> Iterator[None]:
    yield
    APPLIED.undo_all()


@pytest.mark.parametrize("float64", [False, True])
def test_the_noise_is_vllms(step: Step, float64: bool) -> None:
    """Its argmax is what vLLM's sampler draws; rows of others are copied, padding rows are no one's."""
    from vllm_asd.upstream.device.gumbel import add_seeded_noise

    coupled = (step.temperature > 0).to(torch.int32)
    rest = (coupled, step.seeds, step.pos, step.local)
    perturbed = add_seeded_noise(step.logits, step.expanded, *rest, fresh=False, float64=float64)
    assert torch.equal(perturbed.argmax(1), step.draw(float64))
    greedy = slice(WIDTH, 2 * WIDTH)
    assert torch.equal(perturbed[greedy], step.logits[greedy])
    assert (perturbed[:WIDTH] != step.logits[:WIDTH]).all()
    padded = torch.full_like(step.expanded, -1)
    assert torch.equal(add_seeded_noise(step.logits, padded, *rest, fresh=False), step.logits)
    half = step.logits.to(torch.bfloat16)
    again = add_seeded_noise(half, step.expanded, *rest, fresh=False, float64=float64)
    torch.testing.assert_close(again - half.float(), perturbed - step.logits, atol=1e-5, rtol=0)


def test_fresh_noise_changes_with_the_block(step: Step) -> None:
    """The same position in a block that begins elsewhere; the same block repeats itself."""
    from vllm_asd.upstream.device.gumbel import add_seeded_noise

    coupled = torch.ones_like(step.temperature, dtype=torch.int32)
    draws = [
        add_seeded_noise(step.logits, step.expanded, coupled, step.seeds, step.pos, local, fresh)
        for local, fresh in (
            (step.local, False),
            (step.local, True),
            (step.local, True),
            (step.local + 1, True),
        )
    ]
    assert torch.equal(draws[1], draws[2])
    for one, other in ((0, 1), (0, 3), (1, 3)):
        assert (draws[one] != draws[other]).float().mean() > 0.99


def test_coupled_rows_emit_what_vllm_would_draw(step: Step, device: torch.device) -> None:
    """Token for token what no speculation gives, up to the first draft that differs; others untouched."""
    step.drafts[2] = (step.drafts[2] + 1) % VOCAB
    before = step.logits.clone(), step.temperature.clone()
    plain = step.emitted()
    seam = _seam(device, gate=1e-12)
    emitted = step.emitted(seam)
    drawn = step.drawn.view(len(IDS), WIDTH).tolist()
    assert emitted[0] == drawn[0][:2]
    assert emitted[3] == drawn[3]
    assert emitted[1:3] == plain[1:3]
    assert torch.equal(step.logits, before[0])
    assert torch.equal(step.temperature, before[1])
    assert all(entry.spent == 0 for entry in seam.verifier.ledger.snapshot().values())


def test_regret_is_between_the_perturbed_logits(step: Step, device: torch.device) -> None:
    """A draft that was not drawn is kept under a wide gate, at the price of the noise included."""
    from vllm_asd.upstream.device.gumbel import add_seeded_noise

    other = (int(step.drawn[1]) + 1) % VOCAB
    step.drafts[2] = other
    seam = _seam(device, gate=100.0)
    emitted = step.emitted(seam)
    drawn = step.drawn.view(len(IDS), WIDTH).tolist()
    assert emitted[0] == [drawn[0][0], other, *drawn[0][2:]]
    coupled = (step.temperature > 0).to(torch.int32)
    perturbed = add_seeded_noise(
        step.logits, step.expanded, coupled, step.seeds, step.pos, step.local, fresh=False
    )
    regret = (perturbed[1].max() - perturbed[1, other]).double().item()
    assert seam.verifier.ledger.spent("coupled") == regret > 0
    assert seam.verifier.ledger.spent("coupled too") == 0


def test_a_warm_up_launches_the_noise_and_changes_no_state(step: Step, device: torch.device) -> None:
    """The runner's tables of temperatures and seeds are read, for a row that is nobody's."""
    seam = _seam(device, gate=100.0)
    states = seam.runner.sampler.sampling_states
    before = states.temperature.gpu.clone(), states.seeds.gpu.clone()
    expected = step.emitted(seam)
    spent = seam.verifier.ledger.snapshot()
    seam.warm_up()
    assert torch.equal(states.temperature.gpu, before[0])
    assert torch.equal(states.seeds.gpu, before[1])
    assert seam.verifier.ledger.snapshot() == spent
    assert step.emitted(seam) == expected
