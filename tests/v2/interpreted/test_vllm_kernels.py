"""The seam between vLLM's own V2 kernels, without an engine; decided by Triton, and as on a CPU."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from vllm_asd.config import AsdConfig
from vllm_asd.kernels import dispatch
from vllm_asd.upstream import v2_kernels
from vllm_asd.upstream.patching import APPLIED
from vllm_asd.upstream.v2_kernels import REJECTION_KERNEL, RelaxedRejectionKernel
from vllm_asd.upstream.v2_runner import V2Seam
from vllm_asd.verification import Verifier

pytest.importorskip("vllm")

# NumPy, which interprets, says so where a GPU computes without a word.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

LAX = AsdConfig(asd_gate=50.0, asd_budget=1e6, asd_block_cap=8)
NUM_DRAFT, VOCAB = 3, 9000


@pytest.fixture(params=["triton", "default"])
def seam(request: pytest.FixtureRequest, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A seam in force around vLLM's kernel, for the requests r0 and r3."""
    if device.type == "cpu":
        # Its import replaces the CUDA calls that vLLM's samplers make; a CPU worker does it first of all.
        import vllm.v1.worker.cpu.shm  # noqa: F401
    if request.param == "triton":
        kernels = dispatch._load_triton()
        monkeypatch.setattr(dispatch, "_kernels", lambda _: kernels)
    verifier = Verifier(LAX, device, 8)
    for name in ("r0", "r3"):
        verifier.admit(name, LAX.limits)
    APPLIED.apply(REJECTION_KERNEL, RelaxedRejectionKernel)
    yield V2Seam(verifier)
    APPLIED.undo_all()


class Step:
    """Five requests, two of them sampled; all drafts are the target's second choice."""

    ids = ("r0", "sampled", "strict", "r3", "sampled too")
    temperature = (0.0, 0.8, 0.0, 0.0, 1.2)

    def __init__(self, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        width, num_rows = NUM_DRAFT + 1, len(self.ids)
        self.device = device
        self.logits = torch.randn(num_rows * width, VOCAB, generator=generator).to(device)
        self.second = self.logits.topk(2).indices[:, 1]
        drafts = self.second.roll(1).to(torch.int32)
        drafts[3 * width + 2] = -1
        self.drafts = drafts
        self.cu = torch.arange(0, num_rows * width + 1, width, dtype=torch.int32, device=device)

    def sample(self, *_: Any) -> tuple[Any, Tensor]:
        """Verify, as vLLM's sampler does in one chunk."""
        from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample

        num_rows, width = len(self.ids), NUM_DRAFT + 1
        rows = torch.arange(num_rows, device=self.device)
        sampled, num_sampled = rejection_sample(
            self.logits,
            None,
            self.drafts,
            self.cu,
            torch.arange(num_rows * width, device=self.device),
            rows,
            rows.repeat_interleave(width),
            torch.arange(width, dtype=torch.int32, device=self.device).repeat(num_rows),
            torch.tensor(self.temperature, device=self.device),
            torch.arange(num_rows, device=self.device),
            NUM_DRAFT,
        )
        return SimpleNamespace(sampled_token_ids=sampled), num_sampled

    def emitted(self, result: tuple[Any, Tensor]) -> list[list[int]]:
        """What each request emits."""
        rows = zip(result[0].sampled_token_ids, result[1].tolist(), strict=True)
        return [row[:count].tolist() for row, count in rows]


def test_vllms_kernels_keep_what_the_rule_keeps(seam: V2Seam, device: torch.device) -> None:
    """Relaxed rows keep their drafts, placeholders end them, all other rows are what they were."""
    step = Step(device)
    plain = step.emitted(step.sample())
    before = step.logits.clone()
    relaxed = step.emitted(seam.wrap_sample(step.sample)(None, SimpleNamespace(req_ids=step.ids), None))
    assert torch.equal(step.logits, before)
    assert relaxed[0] == [*step.second[:3].tolist(), int(step.logits[3].argmax())]
    assert relaxed[3] == [int(step.second[12]), int(step.logits[13].argmax())]
    assert [relaxed[row] for row in (1, 2, 4)] == [plain[row] for row in (1, 2, 4)]
    assert len(plain[0]) == len(plain[3]) == 1
    top = step.logits.topk(2).values
    regret = (top[:, 0] - top[:, 1]).double()
    assert seam.verifier.ledger.spent("r0") == regret[:3].sum().item()
    assert seam.verifier.ledger.spent("r3") == regret[12].item()
    assert v2_kernels.current.get() is None


def test_a_row_with_nan_is_emitted_as_vllm_emits_it(seam: V2Seam, device: torch.device) -> None:
    """NaN that the argmax does not show: no exception, no charge."""
    step = Step(device)
    others = torch.arange(VOCAB, device=device) % 3 == 0
    others[step.logits[0].topk(2).indices] = False
    step.logits[0, others] = torch.nan
    plain = step.emitted(step.sample())
    relaxed = step.emitted(seam.wrap_sample(step.sample)(None, SimpleNamespace(req_ids=step.ids), None))
    assert relaxed[0] == plain[0]
    assert seam.verifier.ledger.spent("r0") == 0
    assert len(relaxed[3]) == 2
