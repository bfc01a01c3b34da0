"""The verifier over whole steps, as a runner's seam drives it, against plain Python."""

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tests.read_blocks import Block as Report
from tests.read_blocks import by_request
from vllm_asd.batch import Emitted
from vllm_asd.config import AsdConfig, RequestLimits
from vllm_asd.kernels import DraftBlocks
from vllm_asd.phase import ThinkMarkers
from vllm_asd.verification import DraftShape, Verifier

torch.set_num_threads(1)

CPU = torch.device("cpu")
VOCAB, WIDTH = 16, 4
EOS, THINK, END_THINK = 13, 14, 15
MARKERS = ThinkMarkers(THINK, END_THINK)


def make_verifier(markers: ThinkMarkers | None = None, **keys: object) -> Verifier:
    """Room for one request, so that the others make it grow."""
    return Verifier(AsdConfig.from_keys({"asd_gate": 4.0, **keys}), CPU, 1, DraftShape(WIDTH, VOCAB), markers)


@dataclass
class Block:
    """One row: the target's tokens, the drafts, and how far below the target each draft lies."""

    targets: Sequence[int]
    drafts: Sequence[int]
    gaps: Sequence[float]


def drafts(*tokens: int, gap: float = 0.25) -> Block:
    """A row whose drafts are all ``gap`` below target token 0."""
    return Block([0] * len(tokens), tokens, [gap] * len(tokens))


def collate(rows: Sequence[Block]) -> DraftBlocks:
    """Logits that say what the blocks say."""
    targets = torch.tensor([t for row in rows for t in row.targets], dtype=torch.int64)
    ids = torch.tensor([d for row in rows for d in row.drafts], dtype=torch.int32)
    logits = torch.full((len(ids), VOCAB), -50.0)
    gaps = [gap for row in rows for gap in row.gaps]
    for i, (draft, target) in enumerate(zip(ids.tolist(), targets.tolist(), strict=True)):
        logits[i, draft] = -gaps[i]
        logits[i, target] = 0.0
    lengths = torch.tensor([len(row.drafts) for row in rows])
    return DraftBlocks(logits, targets, ids, lengths.cumsum(0).to(torch.int32), max(lengths.tolist()))


def accept_strictly(blocks: DraftBlocks) -> Tensor:
    """Do as vLLM's greedy kernel: matches, then the target's token; bonus token 0."""
    starts = [0, *blocks.cu_num_draft.tolist()]
    emitted = torch.full((len(starts) - 1, blocks.width + 1), -1, dtype=torch.int32)
    for row, (start, end) in enumerate(itertools.pairwise(starts)):
        tokens = []
        for i in range(start, end):
            tokens.append(int(blocks.argmax[i]))
            if blocks.argmax[i] != blocks.draft_ids[i]:
                break
        else:
            tokens.append(0)
        emitted[row, : len(tokens)] = torch.tensor(tokens)
    return emitted


def step(verifier: Verifier, rows: dict[str, Block]) -> tuple[Tensor, dict[str, Report]]:
    """One step of a runner; returns the rewritten argmax and the report."""
    blocks = collate(list(rows.values()))
    if not verifier.begin(list(rows)):
        return blocks.argmax, {}
    verifier.relax(blocks)
    discarded = torch.zeros(len(rows), dtype=torch.bool)
    report = verifier.finish(Emitted(accept_strictly(blocks), discarded=discarded))
    assert report is not None
    return blocks.argmax, by_request(report.resolve())


def emit(verifier: Verifier, *tokens: int, discarded: list[bool] | None = None) -> None:
    """Finish a step without drafts: one token per row."""
    flags = None if discarded is None else torch.tensor(discarded)
    assert verifier.finish(Emitted(torch.tensor(tokens).unsqueeze(1), discarded=flags)) is None


def test_exceptions_are_rewritten_charged_and_reported() -> None:
    """Two requests, one of them strict: only the other's argmax moves."""
    verifier = make_verifier()
    verifier.admit("a", verifier.config.limits)
    verifier.admit("strict", RequestLimits(0.0, 0.0, 0))
    block = Block(targets=[3, 4, 5, 6], drafts=[3, 7, 5, 8], gaps=[0, 0.5, 0, 0.25])
    argmax, reports = step(verifier, {"strict": block, "a": block})
    assert argmax.tolist() == [3, 4, 5, 6, 3, 7, 5, 8]
    assert list(reports) == ["a"]
    report = reports["a"]
    assert (report.accepted, report.strict_accepted, report.reused) == (4, 1, 1)
    assert report.exceptions == ((1, 4, 0.5), (3, 6, 0.25))
    assert report.charged == report.spent == verifier.ledger.spent("a") == 0.75


@pytest.mark.parametrize("refill", [0.0, 0.0625])
@pytest.mark.parametrize("seed", range(4))
def test_many_steps_against_a_scalar_account(seed: int, refill: float) -> None:
    """Requests come, go and change places; every account is kept to the last bit and never overdrawn."""
    rng = random.Random(seed)
    verifier = make_verifier(asd_budget=2.0, asd_refill=refill)
    remaining: dict[str, float] = {}
    ids = [f"request-{i}" for i in range(6)]
    for _ in range(150):
        for request_id in rng.sample(ids, rng.choice([0, 0, 1, 2])):
            if request_id in remaining:
                verifier.release([request_id])
                del remaining[request_id]
            else:
                verifier.admit(request_id, verifier.config.limits)
                remaining[request_id] = 2.0
        batch = rng.sample(ids, rng.randint(1, 6))
        rows = {}
        for request_id in batch:
            length = rng.randint(1, 4)
            tokens = [rng.choice([0, 0, 1]) for _ in range(length)]
            gaps = [rng.choice([0.125, 0.5]) for _ in range(length)]
            rows[request_id] = Block([0] * length, tokens, gaps)
        # A preempted request comes back: it keeps what it has.
        for request_id in batch:
            if request_id in remaining:
                verifier.admit(request_id, verifier.config.limits)
        _, reports = step(verifier, rows)
        assert set(reports) == set(batch) & set(remaining)
        for request_id, report in reports.items():
            charged, exceptions, accepted = 0.0, 0, 0
            for token, gap in zip(rows[request_id].drafts, rows[request_id].gaps, strict=True):
                if token != 0:
                    if remaining[request_id] <= 0 or exceptions == 2 or charged + gap > remaining[request_id]:
                        break
                    charged, exceptions = charged + gap, exceptions + 1
                accepted += 1
            assert (report.accepted, report.charged) == (accepted, charged)
            after = remaining[request_id] - charged
            remaining[request_id] = min(2.0, after + refill * (accepted + 1))
            assert remaining[request_id] >= 0
        snapshot = verifier.ledger.snapshot()
        assert {request_id: entry.remaining for request_id, entry in snapshot.items()} == remaining
        if not refill:
            assert all(entry.spent <= 2.0 for entry in snapshot.values())
            assert all(report.spent == snapshot[i].spent for i, report in reports.items())


def test_shadow_decides_and_leaves_the_argmax_alone() -> None:
    """The server's mode or the request's own; it is charged as if."""
    verifier = make_verifier()
    verifier.admit("enforce", verifier.config.limits)
    verifier.admit("shadow", verifier.config.limits_for({"asd_mode": "shadow"}))
    argmax, reports = step(verifier, {"shadow": drafts(1, 0), "enforce": drafts(1, 0)})
    assert argmax.tolist() == [0, 0, 1, 0]
    assert reports["shadow"] == reports["enforce"]._replace(shadow=True)
    assert reports["shadow"].charged == 0.25


@pytest.mark.parametrize(("draft", "target"), [(EOS, 0), (0, EOS)])
def test_stop_ids_are_protected(draft: int, target: int) -> None:
    """Neither to them nor away from them, each request its own; "none" lifts it."""
    block = Block([target], [draft], [0.25])
    verifier = make_verifier()
    verifier.admit("a", verifier.config.limits, stop_ids=[9, EOS])
    verifier.admit("ignores eos", verifier.config.limits, stop_ids=[])
    argmax, _ = step(verifier, {"ignores eos": block, "a": block})
    assert argmax.tolist() == [draft, target]
    verifier = make_verifier(asd_protect="none")
    verifier.admit("a", verifier.config.limits, stop_ids=[9, EOS])
    assert step(verifier, {"a": block})[0].tolist() == [draft]


def test_stop_ids_may_be_the_whole_vocabulary() -> None:
    """Rows are padded to the longest list: shorter ones keep their own ids, and no others."""
    verifier = make_verifier()
    block = drafts(3, EOS)
    verifier.admit("all", verifier.config.limits, stop_ids=[-1, *range(VOCAB)])
    verifier.admit("eos", verifier.config.limits, stop_ids=[EOS])
    verifier.admit("none", verifier.config.limits)
    argmax, _ = step(verifier, {"eos": block, "all": block, "none": block, "unknown": block})
    assert argmax.tolist() == [3, 0, 0, 0, 3, EOS, 0, 0]


def test_a_batch_change_takes_the_stop_ids_along() -> None:
    """What is kept from step to step must not outlive the batch it was made for, or a reused id."""
    verifier = make_verifier()
    block = drafts(EOS)
    verifier.admit("a", verifier.config.limits, stop_ids=[EOS])
    verifier.admit("b", verifier.config.limits)
    assert step(verifier, {"a": block, "b": block})[0].tolist() == [0, EOS]
    assert step(verifier, {"b": block, "a": block})[0].tolist() == [EOS, 0]
    verifier.release(["a", "b"])
    verifier.admit("b", verifier.config.limits, stop_ids=[EOS])
    verifier.admit("a", verifier.config.limits_for({"asd_mode": "shadow"}))
    assert step(verifier, {"b": block, "a": block})[0].tolist() == [0, 0]
    verifier.release(["a"])
    verifier.admit("a", verifier.config.limits)
    assert step(verifier, {"b": block, "a": block})[0].tolist() == [0, EOS]


def test_a_strict_batch_is_vllms_alone() -> None:
    """No entry, no step; nothing is charged or reported afterwards."""
    verifier = make_verifier()
    verifier.admit("strict", RequestLimits(8.0, 0.0, 2))
    assert len(verifier.ledger) == 0
    assert not verifier.begin(["strict", "unknown"])
    blocks = collate([drafts(1)])
    verifier.relax(blocks)
    assert blocks.argmax.tolist() == [0]
    emit(verifier, 0)
    verifier.admit("a", verifier.config.limits)
    assert verifier.begin(["strict", "a"])
    verifier.release(["a"])
    assert not verifier.begin(["strict", "a"])


def test_more_rows_than_the_batch_has_touch_nothing() -> None:
    """Dummy rows: refused before a token or an account changes."""
    verifier = make_verifier()
    verifier.admit("a", verifier.config.limits)
    assert verifier.begin(["a"])
    blocks = collate([drafts(1), drafts(1)])
    with pytest.raises(RuntimeError, match="2 rows"):
        verifier.relax(blocks)
    assert blocks.argmax.tolist() == [0, 0]
    assert verifier.ledger.spent("a") == 0.0


def test_a_step_that_was_decided_in_part_is_refused() -> None:
    """Its table would hold rows that nobody wrote; nothing is charged."""
    verifier = make_verifier()
    for request_id in ("a", "b"):
        verifier.admit(request_id, verifier.config.limits)
    assert verifier.begin(["a", "b"])
    verifier.relax(collate([drafts(1)]))
    with pytest.raises(RuntimeError, match="1 of a step's 2 rows"):
        verifier.finish(Emitted(torch.tensor([[1, 0], [1, 0]])))
    assert verifier.ledger.spent("a") == 0.0


def test_chunks_of_rows_come_to_the_same() -> None:
    """V2 verifies a large batch piece by piece."""
    rows = [drafts(1, 0), drafts(0, 0), drafts(0, 2, gap=0.5)]
    ids = ["a", "b", "c"]
    results = []
    for pieces in ([3], [1, 2], [2, 1], [1, 1, 1]):
        verifier = make_verifier()
        for request_id in ids:
            verifier.admit(request_id, verifier.config.limits)
        assert verifier.begin(ids)
        first, argmax = 0, []
        for piece in pieces:
            blocks = collate(rows[first : first + piece])
            verifier.relax(blocks)
            argmax += blocks.argmax.tolist()
            first += piece
        report = verifier.finish(Emitted(torch.zeros((3, 3), dtype=torch.int32)))
        assert report is not None
        results.append((argmax, by_request(report.resolve()), verifier.ledger.snapshot()))
    assert results[0][0] == [1, 0, 0, 0, 0, 2]
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("discarded", [False, True])
def test_a_step_without_drafts_refills(discarded: bool) -> None:
    """Each emitted token gives budget back, also a prefill's; one that vLLM throws away gives none."""
    verifier = make_verifier(asd_budget=1.0, asd_refill=0.125)
    verifier.admit("a", verifier.config.limits)
    step(verifier, {"a": drafts(1, gap=0.75)})
    assert verifier.ledger.snapshot()["a"].remaining == 0.25 + 2 * 0.125
    assert verifier.begin(["a"])
    emit(verifier, 5, discarded=[discarded])
    assert verifier.ledger.snapshot()["a"].remaining == (0.5 if discarded else 0.625)


def test_a_step_without_drafts_costs_nothing() -> None:
    """Without refill and phases there is nothing to do."""
    verifier = make_verifier()
    verifier.admit("a", verifier.config.limits)
    assert verifier.begin(["a"])
    emit(verifier, 5)
    assert verifier.ledger.spent("a") == 0.0


@pytest.mark.parametrize(
    ("prompt", "block", "expected"),
    [
        # Outside, then inside by the prompt.
        ([1, 2], drafts(1, 1), [0, 0]),
        ([1, THINK], drafts(1, 1), [1, 1]),
        ([THINK, END_THINK], drafts(1, 1), [0, 0]),
        # The markers inside the block: not themselves relaxed, and what is behind follows them.
        ([1], Block([THINK, 0], [THINK, 1], [0, 0.25]), [THINK, 1]),
        ([THINK], Block([END_THINK, 0], [END_THINK, 1], [0, 0.25]), [END_THINK, 0]),
        ([THINK], drafts(END_THINK, 1), [0, 0]),
        ([THINK], Block([END_THINK], [1], [0.25]), [END_THINK]),
    ],
)
def test_scope_reasoning(prompt: list[int], block: Block, expected: list[int]) -> None:
    """Exceptions only between the think tokens."""
    verifier = make_verifier(MARKERS, asd_scope="reasoning")
    verifier.admit("a", verifier.config.limits, prompt_ids=prompt)
    assert step(verifier, {"a": block})[0].tolist() == expected


def test_the_phase_follows_what_was_emitted() -> None:
    """A draft marker that was rejected does not count; one from a step without drafts does."""
    verifier = make_verifier(MARKERS, asd_scope="reasoning")
    verifier.admit("a", verifier.config.limits)
    verifier.admit("b", verifier.config.limits, prompt_ids=[THINK])
    rejected = drafts(THINK, gap=math.inf)
    assert step(verifier, {"b": drafts(1), "a": rejected})[0].tolist() == [1, 0]
    assert step(verifier, {"a": drafts(1), "b": drafts(1)})[0].tolist() == [0, 1]
    assert verifier.begin(["b", "a"])
    emit(verifier, END_THINK, THINK, discarded=[True, False])
    assert step(verifier, {"a": drafts(1), "b": drafts(1)})[0].tolist() == [1, 1]
    assert verifier.begin(["b", "a"])
    emit(verifier, END_THINK, 2)
    assert step(verifier, {"a": drafts(1), "b": drafts(1)})[0].tolist() == [1, 0]


def test_scope_reasoning_needs_markers() -> None:
    """Said at start, not at the first request."""
    with pytest.raises(ValueError, match="think tokens"):
        make_verifier(asd_scope="reasoning")


def test_a_session_may_change_its_limits() -> None:
    """A later chunk's stricter limits hold at once, with what was spent; the same limits change nothing."""
    verifier = make_verifier(asd_budget=4.0, asd_gate=1.0)
    verifier.admit("r", verifier.config.limits)
    step(verifier, {"r": drafts(1, 0, gap=0.5)})
    spent = verifier.ledger.spent("r")
    assert spent == 0.5
    verifier.admit("r", verifier.config.limits)
    assert verifier.ledger.spent("r") == spent
    verifier.admit("r", RequestLimits(budget=0.0, gate=0.0, block_cap=0))
    argmax, _ = step(verifier, {"r": drafts(1, 0, gap=0.5)})
    assert argmax.tolist() == [0, 0]
    assert verifier.ledger.spent("r") == spent
    verifier.release(["r"])
    assert len(verifier.ledger) == 0


def test_a_session_that_is_sampled_from_now_on_reports_no_blocks() -> None:
    """It is vLLM that samples it, and on V2 leaves its argmax unwritten: what lies there is no decision."""
    verifier = make_verifier()
    verifier.admit("a", verifier.config.limits, prompt_ids=[1])
    assert step(verifier, {"a": drafts(1)})[1].keys() == {"a"}
    verifier.admit("a", RequestLimits(0.0, 0.0, 0), prompt_ids=[1, 1], sampled=True)
    assert not step(verifier, {"a": drafts(0, 0)})[1]
    verifier.admit("a", verifier.config.limits, prompt_ids=[1, 1, 1])
    assert step(verifier, {"a": drafts(1)})[1].keys() == {"a"}
    assert verifier.ledger.spent("a") == 0.5
