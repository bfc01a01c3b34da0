"""The V2 seam around a kernel that compares as vLLM's does: what it changes, and what it leaves alone."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.poison import fill_tensor
from tests.read_blocks import Block, by_request
from vllm_asd.batch import Emitted
from vllm_asd.config import AsdConfig, AsdConfigError
from vllm_asd.kernels.blocks import scan_blocks
from vllm_asd.phase import ThinkMarkers
from vllm_asd.upstream import v2_kernels
from vllm_asd.upstream.compatibility import refuse_combinations
from vllm_asd.upstream.v2_kernels import RelaxedRejectionKernel
from vllm_asd.upstream.v2_runner import V2Seam, is_v2
from vllm_asd.verification import DraftShape, Verifier

VOCAB, BLOCK, WIDTH = 40, 16, 5
LAX = AsdConfig(asd_gate=50.0, asd_budget=1e6, asd_block_cap=8)


class GreedyKernel:
    """vLLM's rejection kernel for greedy rows, in Python; launched as a Triton kernel is."""

    arg_names = (
        *("sampled_ptr", "rejected_steps_ptr", "target_logits_ptr", "target_local_argmax_ptr"),
        *("target_local_max_ptr", "draft_sampled_ptr", "cu_num_logits_ptr", "NUM_WARPS"),
    )

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self._launch

    def _launch(
        self,
        sampled: Tensor,
        num_sampled: Tensor,
        logits: Tensor,
        tokens: Tensor,
        maxima: Tensor,
        drafts: Tensor,
        cu: Tensor,
        NUM_WARPS: int,
    ) -> None:
        best = torch.where(maxima.isnan(), -torch.inf, maxima).argmax(1)
        argmax = tokens.gather(1, best.unsqueeze(1)).squeeze(1).tolist()
        for request in range(len(cu) - 1):
            start, end = int(cu[request]), int(cu[request + 1])
            emitted = []
            for row in range(start, end - 1):
                emitted.append(argmax[row])
                if argmax[row] != drafts[row + 1]:
                    break
            else:
                emitted.append(int(logits[end - 1].argmax()))
            sampled[request, : len(emitted)] = torch.tensor(emitted)
            num_sampled[request] = len(emitted)


class Step:
    """One step of R requests as `GPUModelRunner.sample` sees it."""

    def __init__(self, drafts: list[list[int]], seed: int = 0) -> None:
        self.drafts = drafts
        self.lengths = [len(row) + 1 for row in drafts]
        generator = torch.Generator().manual_seed(seed)
        self.logits = torch.randn(sum(self.lengths), VOCAB, generator=generator) * 2
        self.kernel: Any = RelaxedRejectionKernel(GreedyKernel())

    def sample(self, chunks: list[slice]) -> tuple[Any, Tensor, Tensor]:
        """Verify, some requests at a time."""
        sampled = torch.empty((len(self.drafts), WIDTH), dtype=torch.int64)
        num_sampled = torch.zeros(len(self.drafts), dtype=torch.int32)
        starts = torch.tensor([0, *self.lengths]).cumsum(0)
        flat = torch.tensor([token for row in self.drafts for token in (0, *row)], dtype=torch.int32)
        for chunk in chunks:
            low, high = int(starts[chunk.start]), int(starts[chunk.stop])
            value, token = scan_blocks(self.logits[low:high], BLOCK)
            # vLLM leaves the bonus rows uninitialised.
            for bonus in (starts[chunk.start + 1 : chunk.stop + 1] - 1 - low).tolist():
                fill_tensor(value[bonus])
                fill_tensor(token[bonus])
            self.kernel[(chunk.stop - chunk.start,)](
                sampled[chunk],
                num_sampled[chunk],
                self.logits[low:high],
                token,
                value,
                flat[low:high],
                (starts[chunk.start : chunk.stop + 1] - low).to(torch.int32),
                NUM_WARPS=1,
            )
        return SimpleNamespace(sampled_token_ids=sampled), num_sampled, num_sampled

    def run(self, seam: V2Seam | None, chunks: list[slice] | None = None) -> list[list[int]]:
        """Run the step, with or without a seam, and read what it emits."""
        pieces = chunks or [slice(0, len(self.drafts))]
        batch = SimpleNamespace(req_ids=[f"r{row}" for row in range(len(self.drafts))])

        def native(*_: Any) -> tuple[Any, Tensor, Tensor]:
            return self.sample(pieces)

        output, num_sampled, _ = native() if seam is None else seam.wrap_sample(native)(None, batch, None)
        return [
            row[:count].tolist() for row, count in zip(output.sampled_token_ids, num_sampled, strict=True)
        ]

    def second_best(self, row: int, number: int) -> list[int]:
        """Drafts that the target likes second best, for logits from `row` on."""
        return self.logits[row : row + number].topk(2).indices[:, 1].tolist()


def second_best_step(num_requests: int, num_drafts: int = 4) -> Step:
    """All drafts are the target's second choice."""
    step = Step([[0] * num_drafts] * num_requests)
    width = num_drafts + 1
    step.drafts = [step.second_best(row * width, num_drafts) for row in range(num_requests)]
    return step


def seam_for(*request_ids: str, config: AsdConfig = LAX) -> V2Seam:
    """A seam whose ledger knows some requests."""
    # Think tokens that no step here holds: in scope "phases" all is answer.
    shape = DraftShape(WIDTH - 1, VOCAB)
    verifier = Verifier(config, torch.device("cpu"), 8, shape, ThinkMarkers(VOCAB, VOCAB + 1))
    for request_id in request_ids:
        verifier.admit(request_id, config.limits)
    runner = SimpleNamespace(device=torch.device("cpu"), dtype=torch.bfloat16)
    return V2Seam(runner, verifier)


def report_of(seam: V2Seam) -> dict[str, Block]:
    """The report that the last step left for its output."""
    report, seam._report = seam._report, None
    assert report is not None
    return by_request(report.resolve())


def test_second_choices_are_kept_and_charged() -> None:
    """The whole draft and the bonus token, at the summed gap to the first choices."""
    step = second_best_step(1)
    seam = seam_for("r0")
    before = step.logits.clone()
    assert step.run(seam) == [[*step.drafts[0], int(step.logits[4].argmax())]]
    assert torch.equal(step.logits, before)
    top = step.logits[:4].topk(2).values
    assert seam.verifier.ledger.spent("r0") == (top[:, 0] - top[:, 1]).double().sum().item()
    block = report_of(seam)["r0"]
    assert (block.num_draft, block.accepted, block.strict_accepted) == (4, 4, 0)
    assert [position for position, _, _ in block.exceptions] == [0, 1, 2, 3]


def test_strict_neighbours_are_verified_as_without_the_plugin() -> None:
    step = second_best_step(3)
    plain = step.run(None)
    seam = seam_for("r1")
    emitted = step.run(seam)
    assert emitted[0::2] == plain[0::2]
    assert emitted[1][:4] == step.drafts[1]
    assert list(report_of(seam)) == ["r1"]


@pytest.mark.parametrize("cuts", [[2], [1, 2, 3], [3, 4]])
def test_chunks_decide_as_one(cuts: list[int]) -> None:
    """At most 1 GiB of logits is verified at a time, and a request is never split."""
    step = second_best_step(5, num_drafts=3)
    step.drafts[1] = [-1, 3, 3]
    ids = [f"r{row}" for row in range(5)]
    config = AsdConfig(asd_gate=0.5, asd_budget=2.0)
    whole, chunked = seam_for(*ids, config=config), seam_for(*ids, config=config)
    bounds = [0, *cuts, 5]
    pieces = [slice(low, high) for low, high in itertools.pairwise(bounds)]
    assert step.run(chunked, pieces) == step.run(whole)
    assert chunked.verifier.ledger.snapshot() == whole.verifier.ledger.snapshot()
    assert report_of(chunked) == report_of(whole)
    assert sum(entry.spent for entry in whole.verifier.ledger.snapshot().values()) > 0


def test_an_invalid_draft_ends_the_proposal() -> None:
    """Placeholders and grammar-invalid drafts are -1 in the copy that only verification sees."""
    step = second_best_step(1)
    step.drafts[0][2] = -1
    emitted = step.run(seam_for("r0"))
    assert emitted == [[*step.drafts[0][:2], int(step.logits[2].argmax())]]


@pytest.mark.parametrize(
    "config", [LAX, AsdConfig(asd_scope="phases", asd_budget=1e6, asd_answer_gate=50.0, asd_block_cap=8)]
)
def test_a_row_with_nan_grants_no_exception(config: AsdConfig) -> None:
    """Wherever in the row, in whichever phase; what vLLM would emit is emitted."""
    step = second_best_step(1)
    third = step.logits[2].topk(3).indices[2]
    step.logits[2, third] = torch.nan
    seam = seam_for("r0", config=config)
    value, token = scan_blocks(step.logits.nan_to_num(nan=-torch.inf), BLOCK)

    def scan(logits: Tensor, block: int) -> tuple[Tensor, Tensor]:
        assert block == BLOCK
        return value.clone(), token.clone()

    with pytest.MonkeyPatch.context() as patch:
        # A GPU's maximum may skip NaN, which the argmax then says nothing of.
        patch.setitem(globals(), "scan_blocks", scan)
        assert step.run(seam)[0][:2] == step.drafts[0][:2]
        assert len(step.run(seam)[0]) == 3
    assert report_of(seam)["r0"].accepted == 2


def test_nothing_happens_outside_a_step() -> None:
    """A kernel launch that no step surrounds (warm-up, another engine in the process) is vLLM's alone."""
    step = second_best_step(1)
    seam = seam_for("r0")
    plain = step.run(None)
    assert v2_kernels.current.get() is None
    assert len(plain[0]) == 1
    assert seam.verifier.ledger.spent("r0") == 0


def test_a_failed_step_does_not_leak_into_the_next_launch() -> None:
    seam = seam_for("r0")

    def fail(*_: Any) -> Any:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="memory"):
        seam.wrap_sample(fail)(None, SimpleNamespace(req_ids=["r0"]), None)
    assert v2_kernels.current.get() is None
    assert second_best_step(1).run(seam)[0][:1] != []


def schedule(
    new: tuple[str, ...] = (), finished: tuple[str, ...] = (), preempted: tuple[str, ...] = ()
) -> Any:
    """A `SchedulerOutput` with as much as the ledger follows."""
    params = SimpleNamespace(temperature=0.0, extra_args=None, stop_token_ids=(), eos_token_id=None)
    return SimpleNamespace(
        finished_req_ids=set(finished),
        preempted_req_ids=set(preempted),
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, sampling_params=params, prompt_token_ids=[1]) for name in new
        ],
    )


def test_preemption_keeps_the_account_and_reuse_opens_a_new_one() -> None:
    """V2 drops a preempted request and gets it back as a new one; an id that finished is another request."""
    seam = seam_for()
    execute = seam.wrap_execute_model(lambda *_: None)
    execute(schedule(new=("r0",)))
    second_best_step(1).run(seam)
    spent = seam.verifier.ledger.spent("r0")
    assert spent > 0
    execute(schedule(preempted=("r0",)))
    assert seam.verifier.ledger.spent("r0") == spent
    execute(schedule(new=("r0",)))
    assert seam.verifier.ledger.spent("r0") == spent
    execute(schedule(new=("r0",), finished=("r0",)))
    assert seam.verifier.ledger.spent("r0") == 0
    execute(schedule(finished=("r0",)))
    assert len(seam.verifier.ledger) == 0


def test_dummy_runs_are_passed_on_and_followed_nowhere() -> None:
    calls: list[tuple[Any, ...]] = []
    seam = seam_for("r0")
    execute = seam.wrap_execute_model(lambda *args, **kwargs: calls.append((args, kwargs)))
    execute(schedule(new=("d",), finished=("r0",)), intermediate_tensors="t", dummy_run=True, is_profile=True)
    assert calls[0][0][1:] == ("t", True)
    assert calls[0][1] == {"is_profile": True}
    assert "r0" in seam.verifier.ledger
    assert "d" not in seam.verifier.ledger


def test_a_rehearsal_touches_no_entry() -> None:
    """It runs before any request; were it to come later, the step log and the batch would not know."""
    seam = seam_for("r0")
    seam.verifier.start_step(1, 0)
    second_best_step(1).run(seam)
    report_of(seam)
    before, logged = seam.verifier.ledger.accounts.clone(), len(seam.verifier._log)
    seam.warm_up()
    assert torch.equal(seam.verifier.ledger.accounts, before)
    assert not before[0].any()
    assert seam._report is None
    assert len(seam.verifier._log) == logged == 1
    assert second_best_step(1).run(seam)[0][:4] == second_best_step(1).drafts[0]


def test_what_lies_behind_the_emitted_tokens_is_not_read() -> None:
    """V2's sampled rows are uninitialised memory there."""
    emitted = Emitted(torch.tensor([[5, 99], [6, 7], [8, 9]]), torch.tensor([1, 2, 0]))
    assert emitted.padded.tolist() == [[5, -1], [6, 7], [-1, -1]]
    assert emitted.counts.tolist() == [1, 2, 0]
    assert emitted.first(1, 1).padded.tolist() == [[6, -1]]
    assert emitted.first(0, 2).counts.tolist() == [1]


def test_the_runner_is_told_by_its_class() -> None:
    v2 = type("GPUModelRunner", (), {"__module__": "vllm.v1.worker.gpu.model_runner"})
    assert is_v2(type("CPUModelRunner", (v2,), {})())
    assert not is_v2(SimpleNamespace())


def test_what_cannot_be_combined_is_refused_in_one_line() -> None:
    """The key and the fix are named."""

    def config(sharded: bool | None = None, watermark: Any = None) -> Any:
        parallel = SimpleNamespace(enable_batch_sharded_sampling=sharded)
        return SimpleNamespace(
            use_v2_model_runner=True, parallel_config=parallel, watermark_config=watermark, model_config=None
        )

    refuse_combinations(config())
    for wrong, key in (
        (config(sharded=True), "enable_batch_sharded_sampling"),
        (config(watermark=1), "water"),
    ):
        with pytest.raises(AsdConfigError, match=f"{key}.*: drop") as raised:
            refuse_combinations(wrong)
        assert "\n" not in str(raised.value)
