"""The ledger in the situations that a serving engine puts it in."""

import math
from collections.abc import Sequence

import pytest
import torch

from vllm_asd.config import RequestLimits
from vllm_asd.kernels.accounts import BLOCK_CAP, BUDGET, GATE, GRANTED, NUM_COLUMNS, REFILL, REMAINING, SHADOW
from vllm_asd.ledger import LedgerEntry, RegretLedger

LIMITS = RequestLimits(budget=8.0, gate=0.25, block_cap=2)
TOKEN_BUCKET = RequestLimits(budget=2.0, gate=0.25, block_cap=2, refill=0.25)


@pytest.fixture
def ledger() -> RegretLedger:
    """Room for two requests, so that most tests make it grow."""
    return RegretLedger(capacity=2, device="cpu")


def pay(
    ledger: RegretLedger, slots: torch.Tensor, charged: list[float], emitted: torch.Tensor | None = None
) -> tuple[list[float], torch.Tensor]:
    """Charge slots; what each has spent then, and what undoes it."""
    spent = torch.empty(len(charged), dtype=torch.float64)
    before = ledger.charge(slots, torch.tensor(charged, dtype=torch.float64), emitted, spent)
    return spent.tolist(), before


def charge(ledger: RegretLedger, amounts: dict[str, float], emitted: int = 1) -> list[float]:
    """Charge one step; what each request has spent then."""
    tokens = torch.full((len(amounts),), emitted, dtype=torch.int32)
    return pay(ledger, ledger.slots(list(amounts)), list(amounts.values()), tokens)[0]


def accounts(ledger: RegretLedger, slots: torch.Tensor) -> torch.Tensor:
    """Read rows as they lie."""
    return ledger.accounts.index_select(0, slots)


def remaining(ledger: RegretLedger, *request_ids: str) -> list[float]:
    """Read what is left."""
    return accounts(ledger, ledger.slots(request_ids))[:, REMAINING].tolist()


def test_an_account_holds_the_limits_admitted(ledger: RegretLedger) -> None:
    """Each column has its own value, in batch order; unknown ids are strict."""
    ledger.admit("a", RequestLimits(budget=1.0, gate=0.5, block_cap=3, refill=0.125, shadow=True))
    ledger.admit("b", LIMITS)
    expected = {
        "b": {REMAINING: 8.0, GRANTED: 0, BUDGET: 8.0, REFILL: 0, GATE: 0.25, BLOCK_CAP: 2, SHADOW: 0},
        "nobody": dict.fromkeys(range(NUM_COLUMNS), 0.0),
        "a": {REMAINING: 1.0, GRANTED: 0, BUDGET: 1.0, REFILL: 0.125, GATE: 0.5, BLOCK_CAP: 3, SHADOW: 1},
    }
    rows = [[row[column] for column in range(NUM_COLUMNS)] for row in expected.values()]
    assert accounts(ledger, ledger.slots(list(expected))).tolist() == rows


def test_a_resumed_request_keeps_its_entry(ledger: RegretLedger) -> None:
    """The budget is not refilled by preemption, nor the limits changed by a second admission."""
    ledger.admit("a", LIMITS)
    charge(ledger, {"a": 3.0})
    ledger.admit("a", RequestLimits(budget=100.0, gate=9.0, block_cap=9))
    assert remaining(ledger, "a") == [5.0]
    assert ledger.snapshot()["a"].limits == LIMITS
    assert len(ledger) == 1


def test_a_reused_id_starts_afresh(ledger: RegretLedger) -> None:
    """Also when it comes back before the release was written to the device."""
    ledger.admit("a", LIMITS)
    charge(ledger, {"a": 3.0})
    ledger.release(["a", "never admitted"])
    assert "a" not in ledger
    assert remaining(ledger, "a") == [0.0]
    ledger.admit("a", LIMITS)
    charge(ledger, {"a": 1.0})
    ledger.release(["a"])
    ledger.admit("a", LIMITS)
    assert ledger.spent("a") == 0.0
    assert remaining(ledger, "a") == [8.0]


def test_a_request_admitted_and_released_before_any_step(ledger: RegretLedger) -> None:
    """It leaves a zeroed slot behind."""
    ledger.admit("a", LIMITS)
    slot = ledger.slots(["a"])
    ledger.release(["a"])
    assert len(ledger) == 0
    ledger.slots([])
    assert not accounts(ledger, slot).any()


def test_a_late_charge_to_a_freed_slot_leaves_it_zero(ledger: RegretLedger) -> None:
    """A step whose request was aborted meanwhile must not prepare a debt for the next owner."""
    ledger.admit("a", TOKEN_BUCKET)
    stale = ledger.slots(["a"])
    ledger.release(["a"])
    late = ([1.0], torch.tensor([4]))
    pay(ledger, stale, *late)
    ledger.admit("b", LIMITS)
    assert remaining(ledger, "b") == [8.0]
    ledger.release(["b"])
    ledger.slots([])
    pay(ledger, stale, *late)
    assert not accounts(ledger, stale).any()


@pytest.mark.parametrize("garbage", [5.0, -5.0, math.nan, math.inf])
def test_dummy_rows_touch_no_entry(ledger: RegretLedger, garbage: float) -> None:
    """Slot 0 may occur often, with anything in it, and stays strict."""
    ledger.admit("a", LIMITS)
    slots = ledger.slots(["x", "a", "y", "z"])
    assert slots.tolist()[0::2] == [0, 0]
    spent, before = pay(ledger, slots, [garbage, 1.0, garbage, garbage], torch.ones(4, dtype=torch.int32))
    assert spent == [0.0, 1.0, 0.0, 0.0]
    assert before.tolist() == [[0.0, 0.0], [8.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    assert not ledger.accounts[0].any()
    assert remaining(ledger, "a") == [7.0]


def test_a_charge_above_what_is_left_stops_at_zero(ledger: RegretLedger) -> None:
    """The bound holds whoever calls."""
    ledger.admit("a", LIMITS)
    charge(ledger, {"a": 9.0})
    assert remaining(ledger, "a") == [0.0]
    assert ledger.spent("a") == 8.0


def test_refill_comes_after_the_charge_and_stops_at_the_budget(ledger: RegretLedger) -> None:
    """Only what was really credited counts as granted."""
    ledger.admit("a", TOKEN_BUCKET)
    charge(ledger, {"a": 0.0}, emitted=8)
    assert ledger.snapshot()["a"] == LedgerEntry(TOKEN_BUCKET, remaining=2.0, granted=0.0)
    charge(ledger, {"a": 2.0}, emitted=4)
    assert ledger.snapshot()["a"] == LedgerEntry(TOKEN_BUCKET, remaining=1.0, granted=1.0)
    charge(ledger, {"a": 0.5}, emitted=100)
    assert ledger.snapshot()["a"] == LedgerEntry(TOKEN_BUCKET, remaining=2.0, granted=2.5)
    assert ledger.spent("a") == charge(ledger, {"a": 0.0}, emitted=0)[0] == 2.5


def test_growth_keeps_entries_and_their_slots(ledger: RegretLedger) -> None:
    """Slots handed out before the growth still point at the same requests."""
    ledger.admit("0", LIMITS)
    charge(ledger, {"0": 1.5})
    first = ledger.slots(["0"])
    for i in range(1, 50):
        ledger.admit(str(i), RequestLimits(budget=float(i), gate=0.25, block_cap=1))
    assert accounts(ledger, first)[:, REMAINING].tolist() == [6.5]
    assert remaining(ledger, *map(str, range(1, 50))) == [float(i) for i in range(1, 50)]
    assert len(set(ledger.slots([str(i) for i in range(50)]).tolist()) - {0}) == 50


def test_slots_are_recycled(ledger: RegretLedger) -> None:
    """A server that runs for months must not grow with the number of requests served."""
    used = set()
    for i in range(100):
        ledger.admit(str(i), LIMITS)
        used.update(ledger.slots([str(i)]).tolist())
        ledger.release([str(i)])
    assert used <= {1, 2}


def test_admissions_of_a_step_are_written_in_one_go(
    ledger: RegretLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two uploads, entries and slots, whatever the number of requests; one once nothing is pending."""
    uploads: list[torch.dtype] = []
    real = RegretLedger.upload

    def counted(self: RegretLedger, rows: Sequence[object], dtype: torch.dtype) -> torch.Tensor:
        uploads.append(dtype)
        return real(self, rows, dtype)

    monkeypatch.setattr(RegretLedger, "upload", counted)
    for i in range(20):
        ledger.admit(str(i), LIMITS)
    ledger.release(["3", "5"])
    assert not uploads
    ledger.slots(["1", "2"])
    assert uploads == [torch.float64, torch.int64]
    ledger.slots(["1", "2"])
    assert uploads == [torch.float64, torch.int64, torch.int64]


def test_an_empty_batch(ledger: RegretLedger) -> None:
    """A step may verify nothing."""
    slots = ledger.slots([])
    assert slots.dtype == torch.int64
    spent, before = pay(ledger, slots, [], torch.zeros(0, dtype=torch.int32))
    assert (spent, before.shape) == ([], (0, 2))
    assert ledger.snapshot() == {}


def test_a_step_never_waits_for_the_device() -> None:
    """Meta tensors have no values: a .item() or a branch on data would raise."""
    ledger = RegretLedger(capacity=1, device="meta")
    ledger.admit("a", LIMITS)
    ledger.admit("b", LIMITS)
    ledger.release(["a"])
    slots = ledger.slots(["b", "a"])
    charged, spent = torch.ones(2, 2, dtype=torch.float64, device="meta").unbind(0)
    before = ledger.charge(slots, charged, torch.ones(2, dtype=torch.int32, device="meta"), spent)
    ledger.restore(slots, before)
    ledger.amend("b", TOKEN_BUCKET)
    assert slots.device.type == before.device.type == "meta"


def test_spent_of_an_unknown_request(ledger: RegretLedger) -> None:
    """A report on a request that is gone is a mistake, not a zero."""
    with pytest.raises(KeyError, match="gone"):
        ledger.spent("gone")


def test_capacity_must_be_positive() -> None:
    """Doubling zero would never make room."""
    with pytest.raises(ValueError, match="at least 1, got 0"):
        RegretLedger(capacity=0, device="cpu")


def test_a_block_cap_beyond_int32_is_not_strict(ledger: RegretLedger) -> None:
    """Wrapped to a negative number it would silently switch relaxation off."""
    ledger.admit("a", RequestLimits(budget=1.0, gate=1.0, block_cap=2**40))
    assert ledger.snapshot()["a"].limits.block_cap == 2**31 - 1


@pytest.mark.parametrize("budget", [0.0, 1.0, 1.5, 6.0])
def test_new_limits_keep_what_was_spent(ledger: RegretLedger, budget: float) -> None:
    """A later chunk of a session can lower or raise the budget; it cannot wipe the account."""
    ledger.admit("a", RequestLimits(budget=4.0, gate=0.5, block_cap=3))
    ledger.admit("b", RequestLimits(budget=4.0, gate=0.5, block_cap=3))
    pay(ledger, ledger.slots(["a"]), [1.5])
    limits = RequestLimits(budget=budget, gate=0.1, block_cap=1, refill=0.25, shadow=True)
    ledger.amend("a", limits)
    assert [ledger.spent("a"), ledger.spent("b")] == [1.5, 0.0]
    assert remaining(ledger, "a", "b") == [max(0.0, budget - 1.5), 4.0]
    assert [ledger.snapshot()[i].limits for i in "ab"] == [limits, RequestLimits(4.0, 0.5, 3)]


def test_a_charge_can_be_undone(ledger: RegretLedger) -> None:
    """Bit for bit, some rows of a step alone, with the refill; the others keep what the step did to them."""
    third = RequestLimits(budget=1 / 3, gate=1.0, block_cap=1, refill=0.1)
    for request_id in ("a", "b"):
        ledger.admit(request_id, third)
        charge(ledger, {request_id: 0.3}, emitted=1)
    earlier = ledger.snapshot()
    slots = ledger.slots(["a", "nobody", "b"])
    pay_first, before = pay(ledger, slots, [0.1, 7.0, 0.2], torch.tensor([3, 1, 0]))
    later = ledger.snapshot()
    assert later != earlier
    ledger.restore(slots[:2], before[:2])
    assert ledger.snapshot() == {"a": earlier["a"], "b": later["b"]}
    assert not ledger.accounts[0].any()
    assert pay(ledger, slots[:1], [0.1], torch.tensor([3]))[0] == pay_first[:1]
    assert ledger.snapshot() == later
