"""The ledger in the situations that a serving engine puts it in."""

import math
from collections.abc import Sequence

import pytest
import torch

from vllm_asd.config import RequestLimits
from vllm_asd.ledger import LedgerEntry, RegretLedger

LIMITS = RequestLimits(budget=8.0, gate=0.25, block_cap=2)
TOKEN_BUCKET = RequestLimits(budget=2.0, gate=0.25, block_cap=2, refill=0.25)


@pytest.fixture
def ledger() -> RegretLedger:
    """Room for two requests, so that most tests make it grow."""
    return RegretLedger(capacity=2, device="cpu")


def charge(ledger: RegretLedger, amounts: dict[str, float], emitted: int = 1) -> None:
    """Charge one step."""
    slots = ledger.slots(list(amounts))
    charged = torch.tensor(list(amounts.values()), dtype=torch.float64)
    ledger.charge(slots, charged, torch.full((len(amounts),), emitted, dtype=torch.int32))


def remaining(ledger: RegretLedger, *request_ids: str) -> list[float]:
    """Read what is left."""
    return ledger.view(ledger.slots(request_ids)).remaining.tolist()


def test_view_shows_the_limits_admitted(ledger: RegretLedger) -> None:
    """Each column has its own value and dtype, in batch order, unknown ids strict."""
    ledger.admit("a", RequestLimits(budget=1.0, gate=0.5, block_cap=3, refill=0.125, shadow=True))
    ledger.admit("b", LIMITS)
    view = ledger.view(ledger.slots(["b", "nobody", "a"]))
    assert view.remaining.tolist() == view.budget.tolist() == [8.0, 0.0, 1.0]
    assert view.spent.tolist() == [0.0, 0.0, 0.0]
    assert view.gate.tolist() == [0.25, 0.0, 0.5]
    assert view.block_cap.tolist() == [2, 0, 3]
    assert view.shadow.tolist() == [False, False, True]
    assert [column.dtype for column in view] == [torch.float64] * 4 + [torch.int32, torch.bool]


def test_a_resumed_request_keeps_its_entry(ledger: RegretLedger) -> None:
    """The budget is not refilled by preemption, nor the limits changed by a second admission."""
    ledger.admit("a", LIMITS)
    charge(ledger, {"a": 3.0})
    ledger.admit("a", RequestLimits(budget=100.0, gate=9.0, block_cap=9))
    assert remaining(ledger, "a") == [5.0]
    assert ledger.view(ledger.slots(["a"])).gate.tolist() == [0.25]
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
    assert all(column.tolist() == [0] for column in ledger.view(slot))


def test_a_late_charge_to_a_freed_slot_leaves_it_zero(ledger: RegretLedger) -> None:
    """A step whose request was aborted meanwhile must not prepare a debt for the next owner."""
    ledger.admit("a", TOKEN_BUCKET)
    stale = ledger.slots(["a"])
    ledger.release(["a"])
    late = (torch.tensor([1.0], dtype=torch.float64), torch.tensor([4]))
    ledger.charge(stale, *late)
    ledger.admit("b", LIMITS)
    assert remaining(ledger, "b") == [8.0]
    ledger.release(["b"])
    ledger.slots([])
    ledger.charge(stale, *late)
    assert all(column.tolist() == [0] for column in ledger.view(stale))


@pytest.mark.parametrize("garbage", [5.0, -5.0, math.nan, math.inf])
def test_dummy_rows_touch_no_entry(ledger: RegretLedger, garbage: float) -> None:
    """Slot 0 may occur often, with anything in it, and stays strict."""
    ledger.admit("a", LIMITS)
    slots = ledger.slots(["x", "a", "y", "z"])
    assert slots.tolist()[0::2] == [0, 0]
    ledger.charge(slots, torch.tensor([garbage, 1.0, garbage, garbage], dtype=torch.float64), torch.ones(4))
    assert all(column.tolist() == [0] * 3 for column in ledger.view(torch.zeros(3, dtype=torch.int64)))
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
    assert ledger.spent("a") == ledger.view(ledger.slots(["a"])).spent.item() == 2.5


def test_growth_keeps_entries_and_their_slots(ledger: RegretLedger) -> None:
    """Slots handed out before the growth still point at the same requests."""
    ledger.admit("0", LIMITS)
    charge(ledger, {"0": 1.5})
    first = ledger.slots(["0"])
    for i in range(1, 50):
        ledger.admit(str(i), RequestLimits(budget=float(i), gate=0.25, block_cap=1))
    assert ledger.view(first).remaining.tolist() == [6.5]
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
    ledger.charge(slots, torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.int32))
    assert ledger.view(slots).remaining.shape == (0,)
    assert ledger.snapshot() == {}


def test_a_step_never_waits_for_the_device() -> None:
    """Meta tensors have no values: a .item() or a branch on data would raise."""
    ledger = RegretLedger(capacity=1, device="meta")
    ledger.admit("a", LIMITS)
    ledger.admit("b", LIMITS)
    ledger.release(["a"])
    slots = ledger.slots(["b", "a"])
    view = ledger.view(slots)
    ledger.charge(slots, view.remaining, torch.ones(2, dtype=torch.int32, device="meta"))
    assert slots.device.type == "meta"


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
    assert ledger.view(ledger.slots(["a"])).block_cap.tolist() == [2**31 - 1]


@pytest.mark.parametrize("budget", [0.0, 1.0, 1.5, 6.0])
def test_new_limits_keep_what_was_spent(ledger: RegretLedger, budget: float) -> None:
    """A later chunk of a session can lower or raise the budget; it cannot wipe the account."""
    ledger.admit("a", RequestLimits(budget=4.0, gate=0.5, block_cap=3))
    ledger.admit("b", RequestLimits(budget=4.0, gate=0.5, block_cap=3))
    ledger.charge(ledger.slots(["a"]), torch.tensor([1.5], dtype=torch.float64))
    ledger.amend("a", RequestLimits(budget=budget, gate=0.1, block_cap=1, refill=0.25, shadow=True))
    view = ledger.view(ledger.slots(["a", "b"]))
    assert view.spent.tolist() == [1.5, 0.0]
    assert view.remaining.tolist() == [max(0.0, budget - 1.5), 4.0]
    assert (view.gate.tolist(), view.block_cap.tolist()) == ([0.1, 0.5], [1, 3])
    assert view.shadow.tolist() == [True, False]
