"""What the worker does where the logits are on a GPU, run on a machine without one."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.pretend_cuda import CUDA, PretendCuda, pretend_cuda
from tests.read_blocks import Block, by_request
from vllm_asd.batch import Emitted
from vllm_asd.config import AsdConfig
from vllm_asd.kernels import Column, DraftBlocks, MaximaBlocks, Outcome, dispatch
from vllm_asd.kernels.blocks import scan_blocks
from vllm_asd.ledger import LedgerEntry
from vllm_asd.phase import ThinkMarkers
from vllm_asd.telemetry.step_report import StepReport
from vllm_asd.upstream.v1_runner import V1Seam
from vllm_asd.upstream.v2_runner import V2Seam
from vllm_asd.verification import DraftShape, Verifier

torch.set_num_threads(1)

VOCAB, WIDTH, THINK, END = 40, 3, 38, 39


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendCuda]:
    """A pretended GPU, where the plain kernels stand in for the Triton ones, whose tests are elsewhere."""
    monkeypatch.setattr(dispatch, "_load_triton", lambda: dispatch._REFERENCE)
    dispatch._kernels.cache_clear()
    with pretend_cuda() as mode:
        yield mode
    dispatch._kernels.cache_clear()


def drive(device: torch.device, config: AsdConfig, maxima: bool) -> Iterator[Verifier | dict[str, Block]]:
    """Some steps with all that can happen between them; yields the reports, at last the verifier."""
    verifier = Verifier(config, device, 1, DraftShape(WIDTH, VOCAB), ThinkMarkers(THINK, END))
    ids = ["a", "b", "stranger", "c"]
    generator = torch.Generator().manual_seed(0)
    for number in range(1, 7):
        if number == 4:
            verifier.roll_back("a", 2, 1)
            verifier.roll_back("c", 1, None)
        verifier.start_step(number, number - 3)
        if number == 5:
            verifier.release(["b"])
            ids = ids[::-1]
        for request_id in ("a", "b", "c"):
            stop_ids = range(VOCAB) if request_id == "b" else [7]
            verifier.admit(request_id, config.limits, stop_ids, prompt_ids=[THINK])
        if number == 6:
            limits = config.limits_for({"asd_budget": 1.0, "asd_guard": "on"})
            verifier.admit("a", limits, prompt_ids=[1, END])
        assert verifier.begin(ids)
        logits = torch.randn(len(ids) * (WIDTH + maxima), VOCAB, generator=generator)
        second = logits.topk(2).indices[:, 1]
        counts = torch.tensor([1, 3, 2, 4], dtype=torch.int32)
        tokens = torch.randint(0, VOCAB, (len(ids), WIDTH + 1), generator=generator)
        if number != 3:
            verifier.relax(_blocks(logits, second, maxima, device))
        report = verifier.finish(Emitted(_there(tokens, device), _there(counts, device)))
        assert (report is None) == (number == 3)
        if report is not None:
            yield by_request(report.resolve())
    yield verifier


def _blocks(
    logits: torch.Tensor, second: torch.Tensor, maxima: bool, device: torch.device
) -> DraftBlocks | MaximaBlocks:
    if not maxima:
        cu = torch.arange(WIDTH, logits.shape[0] + 1, WIDTH, dtype=torch.int32)
        parts = [logits, logits.argmax(1), second.to(torch.int32), cu]
        logits, argmax, drafts, cu = (_there(part, device) for part in parts)
        return DraftBlocks(logits, argmax, drafts, cu, WIDTH)
    cu = torch.arange(0, logits.shape[0] + 1, WIDTH + 1, dtype=torch.int32)
    parts = [logits, *scan_blocks(logits), second.roll(1).to(torch.int32), cu]
    return MaximaBlocks(*(_there(part, device) for part in parts))


def _there(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """What the model runner would have made on the device."""
    if device.type != "cuda":
        return tensor
    # Not Tensor.pin_memory, which vLLM's CPU worker replaces by nothing as soon as it is imported.
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)
    return pinned.to(device, non_blocking=True)


def read(verifier: Any) -> tuple[dict[Any, LedgerEntry], list[Any]]:
    """The state, after all steps."""
    with torch._C.DisableTorchFunction():
        tables = (verifier.ledger, verifier._guards, verifier._accounts._phases)
        return verifier.ledger.snapshot(), [table._state.clone() for table in tables]


@pytest.mark.parametrize("maxima", [False, True], ids=["V1", "V2"])
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"asd_refill": 0.25, "asd_guard": "on"},
        {"asd_scope": "reasoning", "asd_pricing": "realized"},
        {"asd_scope": "phases", "asd_answer_refill": 0.125, "asd_mode": "shadow"},
    ],
    ids=["all", "guard", "reasoning", "phases"],
)
def test_no_step_waits_for_the_gpu_and_the_results_are_the_cpus(
    keys: dict[str, object], maxima: bool, cuda: PretendCuda
) -> None:
    """Admitting, deciding, charging, reporting and taking back: all copies are pinned and nothing waits."""
    config = AsdConfig.from_keys({"asd_gate": 4.0, "asd_budget": 6.0, **keys})
    *there, verifier = drive(CUDA, config, maxima)
    uploads = cuda.uploads
    assert uploads > 0
    with torch._C.DisableTorchFunction(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "_kernels", lambda _: dispatch._REFERENCE)
        *here, expected = drive(torch.device("cpu"), config, maxima)
    assert there == here
    entries, state = read(verifier)
    expected_entries, expected_state = read(expected)
    assert entries == expected_entries
    for one, other in zip(state, expected_state, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("keys", [{}, {"asd_guard": "on", "asd_scope": "phases"}], ids=["all", "phases"])
@pytest.mark.parametrize("seam", [V1Seam, V2Seam])
def test_the_warm_up_stays_on_the_gpu(
    seam: type[V1Seam | V2Seam], keys: dict[str, object], cuda: PretendCuda
) -> None:
    """Its tensors are made there, and the accounts of nobody stay empty."""
    config = AsdConfig.from_keys(keys)
    verifier = Verifier(config, CUDA, 2, DraftShape(WIDTH, VOCAB), ThinkMarkers(THINK, END))
    cuda.may_wait = True
    seam(SimpleNamespace(device=CUDA, dtype=torch.bfloat16), verifier).warm_up()
    assert all(not table.any() for table in read(verifier)[1])


def test_a_report_is_read_when_its_copy_has_ended(cuda: PretendCuda) -> None:
    """One pinned copy; until then the host's memory holds garbage."""
    outcome = Outcome.empty(2, WIDTH, 0, CUDA)
    outcome.table.fill_(3.0)
    report = StepReport.start(["a", None], outcome)
    assert report.ready is not None
    assert report.host.isnan().all()
    blocks = report.resolve()
    assert blocks.request_ids == ["a"]
    assert (blocks.table == 3.0).all()
    assert blocks.column(Column.NUM_DRAFT).tolist() == [3.0]


def test_which_kernels_run_where(cuda: PretendCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton on CUDA alone, plain torch on what neither is, the compiled loop on the CPU."""
    from vllm_asd.kernels import cpu

    marked = dispatch._REFERENCE._replace(charge=lambda *_: torch.ones(1))
    monkeypatch.setattr(dispatch, "_load_triton", lambda: marked)
    dispatch._kernels.cache_clear()
    assert dispatch._kernels("cuda") is marked
    assert dispatch._kernels("xpu") is dispatch._REFERENCE
    assert dispatch._kernels("cpu").charge is cpu.charge_accounts_cpu
    accounts = torch.zeros(2, 7, dtype=torch.float64, device=CUDA)
    none = torch.zeros(0, device=CUDA)
    assert dispatch.charge_accounts(accounts, none, none, None, none).shape == (1,)


def test_the_pretended_gpu_notices_what_the_real_one_bears() -> None:
    """Else the tests above would show nothing."""
    with pretend_cuda():
        there = torch.zeros(3, device="cuda")
        assert there.device.type == (there + 1)[1:].device.type == "cuda"
        waits: list[Callable[[], object]] = [there.tolist, there.sum().item, there.cpu, there.nonzero]
        waits += [
            lambda: bool(there.any()),
            lambda: there[there > 0],
            lambda: torch.tensor([1], device="cuda"),
        ]
        for wait in waits:
            with pytest.raises(AssertionError, match="wait"):
                wait()
        with pytest.raises(AssertionError, match="two devices"):
            there + torch.zeros(3)
        with pytest.raises(AssertionError, match="not pinned"):
            torch.zeros(3).to("cuda", non_blocking=True)
        with pytest.raises(AssertionError, match="waits for a copy"):
            torch.zeros(3).pin_memory().to("cuda")
        with pytest.raises(AssertionError, match="not pinned"):
            torch.zeros(3).copy_(there, non_blocking=True)
