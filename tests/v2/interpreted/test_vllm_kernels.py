"""The seam between vLLM's own V2 kernels, without an engine; decided by Triton, and as on a CPU."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from tests.poison import GARBAGE, poisoned_memory
from tests.read_blocks import Block, by_request
from vllm_asd.config import AsdConfig
from vllm_asd.kernels import MaximaBlocks, dispatch
from vllm_asd.phase import ThinkMarkers
from vllm_asd.upstream import v2_kernels
from vllm_asd.upstream.patching import APPLIED
from vllm_asd.upstream.v2_kernels import REJECTION_KERNEL, RelaxedRejectionKernel
from vllm_asd.upstream.v2_runner import V2Seam
from vllm_asd.verification import DraftShape, Verifier

pytest.importorskip("vllm")

# NumPy, which interprets, says so where a GPU computes without a word.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

LAX = AsdConfig(asd_gate=50.0, asd_budget=1e6, asd_block_cap=8)
NUM_DRAFT, VOCAB = 3, 9000
WIDTH = NUM_DRAFT + 1

MakeSeam = Callable[..., V2Seam]


@pytest.fixture(params=["triton", "default", "reference"])
def make_seam(
    request: pytest.FixtureRequest, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MakeSeam]:
    """Puts seams in force around vLLM's kernel, for the requests r0 and r3."""
    if device.type == "cpu":
        # Its import replaces the CUDA calls that vLLM's samplers make; a CPU worker does it first of all.
        import vllm.v1.worker.cpu.shm  # noqa: F401
    if request.param != "default":
        kernels = dispatch._load_triton() if request.param == "triton" else dispatch._REFERENCE
        monkeypatch.setattr(dispatch, "_kernels", lambda _: kernels)

    def make(config: AsdConfig = LAX, detailed: bool = False) -> V2Seam:
        markers = None if config.asd_scope == "all" else ThinkMarkers(VOCAB - 2, VOCAB - 1)
        verifier = Verifier(config, device, 8, DraftShape(NUM_DRAFT, VOCAB), markers, detailed)
        for name in ("r0", "r3"):
            verifier.admit(name, config.limits)
        return V2Seam(SimpleNamespace(device=device, dtype=torch.bfloat16), verifier)

    APPLIED.apply(REJECTION_KERNEL, RelaxedRejectionKernel)
    yield make
    APPLIED.undo_all()


class Step:
    """Five requests, two of them sampled; all drafts are the target's second choice, all blocks are full."""

    ids = ("r0", "sampled", "strict", "r3", "sampled too")
    temperature: tuple[float, ...] = (0.0, 0.8, 0.0, 0.0, 1.2)

    def __init__(self, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        num_rows = len(self.ids)
        self.device = device
        self.draft_logits: Tensor | None = None
        self.logits = torch.randn(num_rows * WIDTH, VOCAB, generator=generator).to(device)
        self.second = self.logits.topk(2).indices[:, 1]
        drafts = self.second.roll(1).to(torch.int32)
        drafts[3 * WIDTH + 2] = -1
        self.drafts = drafts
        self.cu = torch.arange(0, num_rows * WIDTH + 1, WIDTH, dtype=torch.int32, device=device)

    def sample(self, *_: Any) -> tuple[Any, Tensor]:
        """Verify, as vLLM's sampler does in one chunk."""
        from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample

        num_rows = len(self.ids)
        rows = torch.arange(num_rows, device=self.device)
        sampled, num_sampled = rejection_sample(
            self.logits,
            self.draft_logits,
            self.drafts,
            self.cu,
            torch.arange(num_rows * WIDTH, device=self.device),
            rows,
            rows.repeat_interleave(WIDTH),
            torch.arange(WIDTH, dtype=torch.int32, device=self.device).repeat(num_rows),
            torch.tensor(self.temperature, device=self.device),
            torch.arange(num_rows, device=self.device),
            NUM_DRAFT,
        )
        return SimpleNamespace(sampled_token_ids=sampled), num_sampled

    def emitted(self, result: tuple[Any, Tensor]) -> list[list[int]]:
        """What each request emits."""
        rows = zip(result[0].sampled_token_ids, result[1].tolist(), strict=True)
        return [row[:count].tolist() for row, count in rows]

    def run(self, seam: V2Seam) -> list[list[int]]:
        """What each request emits with the seam around."""
        return self.emitted(seam.wrap_sample(self.sample)(None, SimpleNamespace(req_ids=self.ids), None))


def test_vllms_kernels_keep_what_the_rule_keeps(make_seam: MakeSeam, device: torch.device) -> None:
    """Relaxed rows keep their drafts, placeholders end them, all other rows are what they were."""
    step, seam = Step(device), make_seam()
    plain = step.emitted(step.sample())
    before = step.logits.clone()
    relaxed = step.run(seam)
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


def test_a_row_with_nan_is_emitted_as_vllm_emits_it(make_seam: MakeSeam, device: torch.device) -> None:
    """NaN that the argmax does not show: no exception, no charge."""
    step, seam = Step(device), make_seam()
    others = torch.arange(VOCAB, device=device) % 3 == 0
    others[step.logits[0].topk(2).indices] = False
    step.logits[0, others] = torch.nan
    plain = step.emitted(step.sample())
    relaxed = step.run(seam)
    assert relaxed[0] == plain[0]
    assert seam.verifier.ledger.spent("r0") == 0
    assert len(relaxed[3]) == 2


def test_a_drafter_with_fewer_tokens_leaves_blocks_out(make_seam: MakeSeam, device: torch.device) -> None:
    """Where vLLM has its logits it looks at as much of the target's as both have: here one block of two."""
    step, seam = Step(device), make_seam()
    # The interpreter lacks a function that vLLM draws with.
    step.temperature = (0.0,) * len(step.ids)
    # The tokens that only the target has are never the likeliest here; vLLM does not see that one is NaN.
    step.logits[:, 8000:] = -50.0
    step.second = step.logits.topk(2).indices[:, 1]
    step.drafts = step.second.roll(1).to(torch.int32)
    step.logits[3 * WIDTH + 1, 8500] = torch.nan
    step.draft_logits = torch.zeros(len(step.ids), NUM_DRAFT, 8000, device=device)
    plain = step.emitted(step.sample())
    relaxed = step.run(seam)
    assert relaxed[0][:3] == step.second[:3].tolist()
    assert relaxed[3][:3] == step.second[12:15].tolist()
    assert [relaxed[row] for row in (1, 2, 4)] == [plain[row] for row in (1, 2, 4)]


class Run(NamedTuple):
    """All that a step leaves behind."""

    emitted: list[list[int]]
    table: Tensor
    report: dict[str, Block]
    before: Tensor
    after: Tensor


def run_in(memory: AbstractContextManager[None], seam: V2Seam, device: torch.device) -> Run:
    """Run the step where fresh memory holds one thing or another, and watch the block maxima's tokens."""
    seen: list[Tensor] = []
    relax = seam.verifier.relax

    def watched(blocks: MaximaBlocks) -> None:
        seen.append(blocks.block_argmax.clone())
        relax(blocks)
        seen.append(blocks.block_argmax.clone())

    seam.verifier.relax = watched  # type: ignore[method-assign, assignment]
    step = Step(device)
    with memory:
        emitted = step.run(seam)
    report, seam._report = seam._report, None
    assert report is not None
    return Run(emitted, report.host.clone(), by_request(report.resolve()), *seen)


@contextmanager
def zeroed_memory() -> Iterator[None]:
    """The same allocators, kind: what a fresh process on a CPU mostly gets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.poison.fill_tensor", lambda tensor: tensor.zero_())
        patch.setattr("tests.poison.fill_array", lambda array: array.fill(0))
        with poisoned_memory():
            yield


@pytest.mark.parametrize(
    "config",
    [
        LAX,
        LAX.model_copy(update={"asd_mode": "shadow"}),
        LAX.model_copy(update={"asd_guard": "on", "asd_pricing": "realized"}),
        AsdConfig(asd_scope="phases", asd_gate=50.0, asd_budget=1e6, asd_block_cap=8, asd_refill=0.5),
    ],
    ids=["enforce", "shadow", "guard", "phases"],
)
def test_what_vllm_leaves_unwritten_decides_nothing(
    make_seam: MakeSeam, device: torch.device, config: AsdConfig
) -> None:
    """Whatever lies there: the same table, the same tokens, and it lies there still.

    Bonus rows of full blocks and all rows of sampled requests have no argmax; at "detailed" it was an index.
    """
    kind = run_in(zeroed_memory(), make_seam(config, detailed=True), device)
    unkind = run_in(poisoned_memory(), make_seam(config, detailed=True), device)
    unwritten = unkind.before == GARBAGE[8]
    bonus = torch.arange(len(Step.ids) * WIDTH, device=device) % WIDTH == NUM_DRAFT
    sampled = torch.tensor(Step.temperature, device=device).repeat_interleave(WIDTH) > 0
    assert torch.equal(unwritten.all(1), bonus | sampled), "vLLM writes more now: this test shows nothing"
    assert not kind.before[unwritten].any()

    assert unkind.emitted == kind.emitted
    assert unkind.report == kind.report
    torch.testing.assert_close(unkind.table, kind.table, rtol=0, atol=0)
    for request_id, number in (("r0", 3), ("r3", 1)):
        details = unkind.report[request_id].details
        assert len(unkind.report[request_id].exceptions) == len(details) == number
        assert all(0 <= token < VOCAB and logprob < 0 for token, logprob in details)
    ids = unkind.table[:, unkind.table.shape[1] - 3 * NUM_DRAFT : unkind.table.shape[1] - NUM_DRAFT]
    assert ((ids >= -1) & (ids < VOCAB)).all()

    rewritten = torch.zeros_like(unkind.before)
    if config.asd_mode == "enforce":
        rewritten[[0, 1, 2, 3 * WIDTH]] = 1
    changed = unkind.after != unkind.before
    assert torch.equal(changed.sum(1), rewritten.amax(1))
