"""Guarded requests through the verifier's steps: when they turn strict, and what that leaves alone."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from tests.read_blocks import Block, by_request
from vllm_asd.batch import Emitted
from vllm_asd.config import AsdConfig
from vllm_asd.guard import GuardTable
from vllm_asd.kernels import DraftBlocks
from vllm_asd.phase import ThinkMarkers
from vllm_asd.verification import DraftShape, Verifier

torch.set_num_threads(1)

CPU = torch.device("cpu")
VOCAB, THINK, END = 400, 398, 399
GAP = 0.25
# Kept whole they are the loop "1 1 0" of 24 tokens after eight blocks, and 13 exceptions after seven.
LOOP, LOOP_BLOCKS, CLUSTER_BLOCKS = (1, 1), 8, 7
ON = {"asd_guard": "on"}


def make_verifier(**keys: object) -> Verifier:
    config = AsdConfig.from_keys({"asd_gate": 4.0, "asd_budget": 100.0, **keys})
    markers = None if config.asd_scope == "all" else ThinkMarkers(THINK, END)
    return Verifier(config, CPU, 1, DraftShape(7, VOCAB), markers)


def admit(verifier: Verifier, request_id: str, **wishes: object) -> None:
    verifier.admit(request_id, verifier.config.limits_for(wishes))


def verify(
    verifier: Verifier, rows: Mapping[str, tuple[int, ...]], discarded: bool = False, pieces: int = 1
) -> tuple[list[list[int]], dict[str, Block]]:
    """One step: the target says 0, other drafts lie ``GAP`` below; vLLM adds a 0 to what passes whole."""
    ids = list(rows)
    assert verifier.begin(ids)
    width, emitted = max(map(len, rows.values())), []
    for first in range(0, len(ids), -(-len(ids) // pieces)):
        chunk = [rows[i] for i in ids[first : first + -(-len(ids) // pieces)]]
        flat = [draft for drafts in chunk for draft in drafts]
        logits = torch.full((len(flat), VOCAB), -50.0)
        logits[torch.arange(len(flat)), torch.tensor(flat)] = -GAP
        logits[:, 0] = 0.0
        argmax = torch.zeros(len(flat), dtype=torch.int64)
        ends = torch.tensor([len(drafts) for drafts in chunk]).cumsum(0)
        verifier.relax(DraftBlocks(logits, argmax, torch.tensor(flat), ends, width))
        for end, drafts in zip(ends.tolist(), chunk, strict=True):
            kept = argmax[end - len(drafts) : end].tolist()
            matches = [token == draft for token, draft in zip(kept, drafts, strict=True)]
            stop = matches.index(False) + 1 if False in matches else len(kept)
            emitted.append(kept[:stop] if False in matches else [*kept, 0])
    padded = torch.tensor([row + [-1] * (width + 1 - len(row)) for row in emitted])
    report = verifier.finish(Emitted(padded, discarded=torch.full((len(ids),), discarded)))
    assert report is not None
    return emitted, by_request(report.resolve())


def guards(reports: dict[str, Block]) -> dict[str, int]:
    return {request_id: report.guard for request_id, report in reports.items()}


@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_a_loop_makes_its_request_strict_and_no_other(pieces: int) -> None:
    """The account stays as it is; the neighbour without a guard goes on, the other guard hears nothing."""
    verifier = make_verifier(asd_refill=0.25)
    admit(verifier, "loops", **ON)
    admit(verifier, "unguarded")
    admit(verifier, "guarded", **ON)
    for number in range(1, CLUSTER_BLOCKS + 3):
        rows = {"unguarded": LOOP, "loops": LOOP, "guarded": (0, 10 + number)}
        emitted, reports = verify(verifier, rows, pieces=pieces)
        # Both conditions hold in a loop of exceptions; the cluster is complete first.
        tripped = number > CLUSTER_BLOCKS
        assert emitted == [[1, 1, 0], [0] if tripped else [1, 1, 0], [0, 10 + number, 0]]
        expected = 2 if tripped else 1 if number == CLUSTER_BLOCKS else 0
        assert guards(reports) == {"loops": expected, "unguarded": 0, "guarded": 0}
        assert reports["loops"].charged == (0.0 if tripped else 2 * GAP)
    assert verifier.ledger.spent("unguarded") > verifier.ledger.spent("loops") > 0


def test_a_loop_without_exceptions_counts_as_well() -> None:
    """Matches alone, eight tokens a step; then a near miss is refused that was kept before."""
    verifier = make_verifier(**ON)
    admit(verifier, "a")
    assert verify(verifier, {"a": (5,)})[0] == [[5, 0]]
    for number in range(3):
        _, reports = verify(verifier, {"a": (0,) * 7})
        # A period of 1: 23 zeros behind the first block's make 25, the third block completes them.
        assert reports["a"].guard == (number == 2)
    assert verify(verifier, {"a": (5,)})[0] == [[0]]


def test_rows_that_vllm_discards_do_not_count() -> None:
    verifier = make_verifier(**ON)
    admit(verifier, "a")
    for _ in range(4 * LOOP_BLOCKS):
        assert verify(verifier, {"a": LOOP}, discarded=True)[0] == [[1, 1, 0]]


def test_steps_without_drafts_count() -> None:
    """The next block with drafts is strict, and says so."""
    verifier = make_verifier(**ON)
    admit(verifier, "a")
    for _ in range(24):
        assert verifier.begin(["a"])
        assert verifier.finish(Emitted(torch.tensor([[5]]), discarded=torch.tensor([False]))) is None
    emitted, reports = verify(verifier, {"a": (1,)})
    assert (emitted, reports["a"].guard) == ([[0]], 2)


def test_preemption_keeps_the_latch_and_a_new_request_of_the_id_starts_afresh() -> None:
    verifier = make_verifier(**ON)
    admit(verifier, "a")
    for _ in range(CLUSTER_BLOCKS):
        verify(verifier, {"a": LOOP})
    admit(verifier, "b")
    admit(verifier, "a")
    assert verify(verifier, {"b": LOOP, "a": LOOP})[0] == [[1, 1, 0], [0]]
    verifier.release(["a"])
    admit(verifier, "a")
    assert verify(verifier, {"a": LOOP, "b": LOOP})[0] == [[1, 1, 0], [1, 1, 0]]


def test_a_sessions_next_chunk_may_switch_it() -> None:
    """On from there, off again with nothing remembered."""
    verifier = make_verifier()
    admit(verifier, "a")
    for _ in range(2 * LOOP_BLOCKS):
        verify(verifier, {"a": LOOP})
    for _ in range(2):
        admit(verifier, "a", **ON)
        for _ in range(CLUSTER_BLOCKS):
            assert verify(verifier, {"a": LOOP})[0] == [[1, 1, 0]]
        assert verify(verifier, {"a": LOOP})[0] == [[0]]
        admit(verifier, "a")
        assert verify(verifier, {"a": LOOP})[0] == [[1, 1, 0]]


def test_shadow_foresees_the_cluster_and_emits_what_strict_emits() -> None:
    """One exception in each block of seven is no cluster though strict gets one token of it; two are."""
    verifier = make_verifier(asd_mode="shadow", **ON)
    admit(verifier, "sparse")
    admit(verifier, "dense")
    for number in range(30):
        emitted, reports = verify(verifier, {"sparse": (10 + number, 0, 0, 0, 0, 0), "dense": LOOP})
        assert emitted == [[0], [0]]
        # From 24 zeros on, a loop.
        assert reports["sparse"].guard == (0 if number < 23 else 1 if number == 23 else 2)
        assert reports["dense"].guard == (0 if number < 6 else 1 if number == 6 else 2)
        assert reports["dense"].accepted == (2 if number <= 6 else 0)


def test_both_phases_are_strict_once_it_tripped() -> None:
    verifier = make_verifier(asd_scope="phases", **ON)
    verifier.admit("a", verifier.config.limits, prompt_ids=[THINK])
    for _ in range(CLUSTER_BLOCKS):
        assert verify(verifier, {"a": LOOP})[0] == [[1, 1, 0]]
    assert verify(verifier, {"a": LOOP})[0] == [[0]]
    assert verifier.begin(["a"])
    verifier.finish(Emitted(torch.tensor([[END]])))
    assert verify(verifier, {"a": LOOP})[0] == [[0]]


def test_without_a_guarded_request_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither table nor report cost anything, also where the server would allow it."""

    def unexpected(*_: Any) -> None:
        raise AssertionError

    for name in ("follow", "tripped", "slots"):
        monkeypatch.setattr(GuardTable, name, unexpected)
    verifier = make_verifier()
    admit(verifier, "a")
    assert guards(verify(verifier, {"a": LOOP, "strict": LOOP})[1]) == {"a": 0}
    admit(verifier, "b", **ON)
    with pytest.raises(AssertionError):
        verifier.begin(["a", "b"])
