"""Scope "phases": which account decides a block, and what it pays."""

import pytest
import torch

from vllm_asd.accounts import Accounts
from vllm_asd.batch import Emitted
from vllm_asd.config import AsdConfig, RequestLimits
from vllm_asd.kernels import DraftBlocks
from vllm_asd.phase import ThinkMarkers
from vllm_asd.verification import DraftShape, Verifier

torch.set_num_threads(1)

CPU = torch.device("cpu")
VOCAB, THINK, END = 8, 6, 7
SHAPE = DraftShape(4, VOCAB)
MARKERS = ThinkMarkers(THINK, END)
GAP = 0.25


def make_verifier(**keys: object) -> Verifier:
    config = AsdConfig.from_keys({"asd_scope": "phases", "asd_gate": 4.0, "asd_block_cap": 4, **keys})
    return Verifier(config, CPU, 1, SHAPE, MARKERS)


def verify(verifier: Verifier, request_id: str, *drafts: int, targets: list[int] | None = None) -> list[int]:
    """One step of one request; drafts that aren't the target's (default 0) lie ``GAP`` below it."""
    argmax = torch.tensor([0] * len(drafts) if targets is None else targets)
    ids = torch.tensor(drafts, dtype=torch.int32)
    logits = torch.full((len(drafts), VOCAB), -50.0)
    for row in range(len(drafts)):
        logits[row, ids[row]] = -GAP
        logits[row, argmax[row]] = 0.0
    verifier.begin([request_id])
    verifier.relax(DraftBlocks(logits, argmax, ids, torch.tensor([len(drafts)]), len(drafts)))
    emitted = []
    for token, draft in zip(argmax.tolist(), drafts, strict=True):
        emitted.append(token)
        if token != draft:
            break
    verifier.finish(Emitted(torch.tensor([emitted])))
    return emitted


def emit(verifier: Verifier, request_id: str, token: int) -> None:
    """A step without drafts."""
    verifier.begin([request_id])
    verifier.finish(Emitted(torch.tensor([[token]])))


@pytest.mark.parametrize(("first", "prompt", "marker"), [("reasoning", [THINK], END), ("answer", [], THINK)])
def test_one_exhausted_pool_leaves_the_other_alone(first: str, prompt: list[int], marker: int) -> None:
    verifier = make_verifier(asd_budget=2 * GAP, asd_answer_budget=2 * GAP)
    verifier.admit("a", verifier.config.limits, prompt_ids=prompt)
    assert verify(verifier, "a", 1, 1, 1) == [1, 1, 0]
    assert verify(verifier, "a", 1) == [0]
    emit(verifier, "a", marker)
    assert verify(verifier, "a", 1, 1, 1) == [1, 1, 0]
    assert verify(verifier, "a", 1) == [0]
    spent = {key: entry.spent for key, entry in verifier.ledger.snapshot().items()}
    assert spent == {"a": 2 * GAP, ("a", "answer"): 2 * GAP}, first


@pytest.mark.parametrize(("prompt", "marker"), [([THINK], END), ([], THINK), ([THINK], THINK), ([], END)])
def test_behind_a_marker_only_matches_pass(prompt: list[int], marker: int) -> None:
    """A block belongs to the phase in which it begins; what is behind the marker waits for the next block."""
    verifier = make_verifier()
    verifier.admit("a", verifier.config.limits, prompt_ids=prompt)
    assert verify(verifier, "a", 1, marker, 0, 1, targets=[0, marker, 0, 0]) == [1, marker, 0, 0]
    assert sum(entry.spent for entry in verifier.ledger.snapshot().values()) == GAP


@pytest.mark.parametrize("prompt", [[THINK], []])
@pytest.mark.parametrize(("draft", "target"), [(THINK, 0), (END, 0), (1, THINK), (1, END)])
def test_markers_are_protected_in_both_phases(prompt: list[int], draft: int, target: int) -> None:
    verifier = make_verifier()
    verifier.admit("a", verifier.config.limits, prompt_ids=prompt)
    assert verify(verifier, "a", draft, targets=[target]) == [target]


def test_each_phase_has_its_gate_and_cap() -> None:
    verifier = make_verifier(asd_block_cap=1, asd_answer_gate=GAP / 2, asd_answer_block_cap=3)
    verifier.admit("a", verifier.config.limits, prompt_ids=[THINK])
    assert verify(verifier, "a", 1, 1) == [1, 0]
    emit(verifier, "a", END)
    assert verify(verifier, "a", 1, 1) == [1, 0]  # the second is one token from the end: over the gate
    assert verify(verifier, "a", 0, 1) == [0, 0]


def test_a_request_may_be_strict_in_one_phase() -> None:
    """Strict as a whole only if both are: then it has no account."""
    verifier = make_verifier()
    limits = verifier.config.limits_for({"asd_answer_budget": 0})
    assert not limits.is_strict
    verifier.admit("a", limits, prompt_ids=[THINK])
    assert verify(verifier, "a", 1) == [1]
    emit(verifier, "a", END)
    assert verify(verifier, "a", 1) == [0]
    strict = verifier.config.limits_for({"asd_budget": 0})
    assert strict.is_strict
    verifier.admit("b", strict)
    assert not verifier.begin(["b"])


def test_a_session_may_change_both_limits() -> None:
    """Strict limits from elsewhere have no part for the answer: they hold in both phases."""
    verifier = make_verifier()
    verifier.admit("a", verifier.config.limits, prompt_ids=[])
    assert verify(verifier, "a", 1) == [1]
    verifier.admit("a", RequestLimits(0.0, 0.0, 0))
    assert verify(verifier, "a", 1) == [0]
    emit(verifier, "a", THINK)
    assert verify(verifier, "a", 1) == [0]
    assert verifier.ledger.spent(("a", "answer")) == GAP
    verifier.release(["a"])
    assert len(verifier.ledger) == 0


def test_a_sessions_next_chunk_moves_the_phase() -> None:
    """Its prompt holds all that was said before; the prompt of a resumed request is the one it had."""
    verifier = make_verifier()
    limits = verifier.config.limits
    verifier.admit("a", limits, prompt_ids=[1])
    assert verify(verifier, "a", 1) == [1]
    assert verifier.ledger.spent(("a", "answer")) == GAP
    verifier.admit("a", limits, prompt_ids=[1, 1, THINK, 2])
    assert verify(verifier, "a", 1) == [1]
    assert verifier.ledger.spent("a") == GAP
    emit(verifier, "a", END)
    verifier.admit("a", limits, prompt_ids=[1, 1, THINK, 2])
    assert verify(verifier, "a", 1) == [1]
    assert (verifier.ledger.spent(("a", "answer")), verifier.ledger.spent("a")) == (2 * GAP, GAP)


def test_no_client_can_name_another_requests_account() -> None:
    """The second account's key is no string."""
    verifier = make_verifier()
    for request_id in ("a", "answer", "('a', 'answer')"):
        verifier.admit(request_id, verifier.config.limits)
    assert len(verifier.ledger) == 6


@pytest.mark.parametrize("scope", ["all", "reasoning"])
def test_other_scopes_pick_nothing(scope: str) -> None:
    """Their steps use the batch's own tensors: not one launch more than before there were phases."""
    accounts = Accounts(AsdConfig.from_keys({"asd_scope": scope}), CPU, 1, MARKERS)
    accounts.admit("a", RequestLimits(8.0, 0.25, 2), [THINK])
    batch = accounts.gather(["a"])
    assert batch.answer is None
    assert accounts.at_step(batch).slots is batch.slots
    assert len(accounts.ledger) == 1


@pytest.mark.parametrize("scope", ["reasoning", "phases"])
def test_needs_markers(scope: str) -> None:
    with pytest.raises(ValueError, match=f"'{scope}' needs the model's think tokens"):
        Verifier(AsdConfig.from_keys({"asd_scope": scope}), CPU, 1, SHAPE)
