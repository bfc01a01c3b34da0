"""The acceptance rule on blocks small enough to check by hand."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from vllm_asd.policy import Pricing, StopReason, Verdict, select_prefix, stop_reason, strict_prefix

INF = float("inf")
NAN = float("nan")
Arguments = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
# Stands in place of a regret.
MATCH = None
Row = list[float | None]
PRICINGS: tuple[Pricing, Pricing] = ("remaining", "realized")


def block(
    row: Row,
    *,
    num_draft: int | None = None,
    remaining: float = 8.0,
    gate: float = 0.25,
    cap: int = 2,
    pricing: Pricing = "remaining",
    protected: list[bool] | None = None,
) -> tuple[Verdict, StopReason]:
    """Verify one row."""
    is_match = torch.tensor([[regret is MATCH for regret in row]], dtype=torch.bool)
    regret = torch.tensor([[0.0 if regret is MATCH else regret for regret in row]], dtype=torch.float32)
    mask = None if protected is None else torch.tensor([protected])
    regret = regret if mask is None else regret.masked_fill(mask, INF)
    drafts = torch.tensor([len(row) if num_draft is None else num_draft], dtype=torch.int32)
    left = torch.tensor([remaining], dtype=torch.float64)
    limits = (left, torch.tensor([gate], dtype=torch.float64), torch.tensor([cap], dtype=torch.int32))
    verdict = select_prefix(regret, is_match, drafts, *limits, pricing=pricing)
    reason = stop_reason(regret, is_match, drafts, verdict, *limits, mask, pricing)
    return verdict, StopReason(int(reason))


def numbers(verdict: Verdict) -> tuple[float, ...]:
    """Unpack a verdict of one row."""
    return tuple(field.item() for field in verdict)


def test_the_docstring_example() -> None:
    """Two matches, one exception that buys a match, then a price above the gate."""
    verdict, reason = block([MATCH, 0.5, MATCH, 0.3], remaining=1.0)
    assert numbers(verdict) == (3, 0.5, 1, 1)
    assert reason is StopReason.GATE


@pytest.mark.parametrize(
    ("row", "limits", "expected", "reason"),
    [
        ([MATCH] * 3, {}, (3, 0.0, 0, 0), "end"),
        ([1.0, MATCH, MATCH, MATCH], {}, (4, 1.0, 1, 3), "end"),
        ([1.0 + 2**-20, MATCH, MATCH, MATCH], {}, (0, 0.0, 0, 0), "gate"),
        ([0.125, 0.125, 0.125], {}, (2, 0.25, 2, 0), "cap"),
        ([0.5, 0.5, MATCH], {"remaining": 1.0}, (3, 1.0, 2, 1), "end"),
        ([0.5, 0.5, MATCH], {"remaining": 0.999}, (1, 0.5, 1, 0), "budget"),
        ([INF, MATCH], {"gate": INF, "remaining": INF}, (0, 0.0, 0, 0), "invalid"),
        ([NAN, MATCH], {"gate": INF}, (0, 0.0, 0, 0), "invalid"),
        ([-1.0, MATCH], {}, (0, 0.0, 0, 0), "invalid"),
        ([0.125, MATCH, NAN, MATCH], {}, (2, 0.125, 1, 1), "invalid"),
        ([0.125, MATCH, MATCH], {"protected": [True, False, False]}, (0, 0.0, 0, 0), "protected"),
        ([MATCH, MATCH], {"protected": [True, True]}, (2, 0.0, 0, 0), "end"),
        ([0.125], {"num_draft": 0}, (0, 0.0, 0, 0), "end"),
        ([], {}, (0, 0.0, 0, 0), "end"),
    ],
)
def test_limits_and_their_edges(
    row: Row, limits: dict[str, float], expected: tuple[float, ...], reason: str
) -> None:
    """A limit is inclusive, and what lies just past it is refused for the reason that is named."""
    verdict, stop = block(row, **limits)  # type: ignore[arg-type]
    assert numbers(verdict) == expected
    assert stop.name.lower() == reason


@pytest.mark.parametrize(
    ("limits", "reason"), [({"gate": 0.0}, "gate"), ({"cap": 0}, "cap"), ({"remaining": 0.0}, "budget")]
)
@pytest.mark.parametrize(
    ("row", "strict"), [([0.0, MATCH], 0), ([MATCH, 0.0], 1), ([MATCH, 5.0, MATCH], 1), ([0.125, 0.0], 0)]
)
def test_a_zero_limit_is_strict_and_is_the_reason(
    limits: dict[str, float], reason: str, row: Row, strict: int
) -> None:
    """Even a free tie is refused, and the stop names the limit that is zero, not what the token costs."""
    verdict, stop = block(row, **limits)  # type: ignore[arg-type]
    assert numbers(verdict) == (strict, 0.0, 0, 0)
    assert stop.name.lower() == reason


@pytest.mark.parametrize("limits", [{"gate": NAN}, {"remaining": NAN}, {"remaining": -1.0}, {"cap": -1}])
def test_limits_that_are_no_limits_are_strict(limits: dict[str, float]) -> None:
    """NaN and negative limits keep what strict verification keeps, matches included."""
    verdict, _ = block([MATCH, MATCH, 0.0, MATCH], **limits)  # type: ignore[arg-type]
    assert numbers(verdict) == (2, 0.0, 0, 0)


def test_a_tie_is_an_exception_that_costs_nothing() -> None:
    """It uses one of M all the same."""
    verdict, stop = block([0.0, 0.0, MATCH], cap=1)
    assert numbers(verdict) == (1, 0.0, 1, 0)
    assert stop is StopReason.CAP


def test_realized_pricing_counts_the_run_right_behind() -> None:
    """0.75 nat buys three tokens at 0.25; a match further back, or in the padding, does not count."""
    assert numbers(block([0.75, MATCH, MATCH], pricing="realized")[0]) == (3, 0.75, 1, 2)
    assert block([0.75, MATCH, INF, MATCH], pricing="realized")[1] is StopReason.GATE
    assert block([0.75, MATCH, MATCH], num_draft=2, pricing="realized")[1] is StopReason.GATE
    assert numbers(block([0.75, MATCH, INF, MATCH], pricing="remaining")[0]) == (2, 0.75, 1, 1)


def test_q_uses_the_rows_own_draft_length() -> None:
    """Padding to a longer batch must not make an exception cheaper."""
    assert numbers(block([0.5, MATCH], gate=0.25)[0])[0] == 2
    assert numbers(block([0.75, MATCH, MATCH, MATCH], num_draft=2)[0])[0] == 0


def test_unknown_pricing_is_refused() -> None:
    """A typo must not fall back to one of the two."""
    with pytest.raises(ValueError, match="'remaining' or 'realized', got 'paper'"):
        block([0.1], pricing="paper")  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (3, 0)])
@pytest.mark.parametrize("pricing", PRICINGS)
def test_empty_batches(shape: tuple[int, int], pricing: Pricing) -> None:
    """No requests, or no drafts, gives rows of zeros with the stop "end"."""
    rows = shape[0]
    args = (torch.zeros(shape), torch.zeros(shape, dtype=torch.bool), torch.zeros(rows, dtype=torch.int64))
    limits = (torch.ones(rows, dtype=torch.float64), torch.ones(rows), torch.ones(rows, dtype=torch.int32))
    verdict = select_prefix(*args, *limits, pricing=pricing)
    assert all(field.tolist() == [0] * rows for field in verdict)
    protected = torch.ones(shape, dtype=torch.bool)
    assert stop_reason(*args, verdict, *limits, protected).tolist() == [StopReason.END] * rows
    assert strict_prefix(*args[1:]).tolist() == [0] * rows


def _sample(device: str) -> Arguments:
    """Arguments of select_prefix, all zero."""
    return (
        torch.zeros(3, 4, device=device),
        torch.zeros(3, 4, dtype=torch.bool, device=device),
        torch.zeros(3, dtype=torch.int32, device=device),
        torch.zeros(3, dtype=torch.float64, device=device),
        torch.zeros(3, device=device),
        torch.zeros(3, dtype=torch.int32, device=device),
    )


@pytest.mark.parametrize("pricing", PRICINGS)
def test_dtypes_and_no_wait_for_the_device(pricing: Pricing) -> None:
    """Meta tensors have no values: a .item(), a branch on data or a shape made from data would raise."""
    args = _sample("meta")
    verdict = select_prefix(*args, pricing=pricing)
    reason = stop_reason(*args[:3], verdict, *args[3:], args[1], pricing)
    assert [field.dtype for field in verdict] == [torch.int64, torch.float64, torch.int64, torch.int64]
    assert reason.dtype == torch.int8
    assert {field.shape for field in (*verdict, reason, strict_prefix(args[1], args[2]))} == {(3,)}


def test_inputs_are_left_alone() -> None:
    """The caller's tensors are vLLM's: nothing is written in place."""
    args = _sample("cpu")
    for argument in args:
        argument.copy_(torch.rand(argument.shape).mul(3))
    before = [t.clone() for t in args]
    verdict = select_prefix(*args)
    stop_reason(*args[:3], verdict, *args[3:])
    assert all(torch.equal(a, b) for a, b in zip(args, before, strict=True))


def test_half_precision_regrets_are_summed_in_float64() -> None:
    """In bfloat16, 256 + 1 is 256: the charge would vanish and the budget would never end."""
    regret = torch.tensor([[256.0, 1.0]], dtype=torch.bfloat16)
    limits = (torch.tensor([1e9], dtype=torch.float64), torch.tensor([1e9]), torch.tensor([9]))
    verdict = select_prefix(regret, torch.zeros(1, 2, dtype=torch.bool), torch.tensor([2]), *limits)
    assert verdict.charged.tolist() == [257.0]


def test_a_gate_that_a_float32_price_would_pass() -> None:
    """0.3f / 3 is above 0.1 in float64, though not once rounded to float32."""
    regret = torch.tensor([[0.3, 0.0, 0.0]], dtype=torch.float32)
    is_match = torch.tensor([[False, True, True]])
    money = torch.tensor([8.0, 0.1], dtype=torch.float64)
    limits = (money[:1], money[1:], torch.tensor([2]))
    assert regret[0, 0].item() / 3 > 0.1
    assert regret[0, 0] / 3 <= torch.tensor(0.1)
    assert select_prefix(regret, is_match, torch.tensor([3]), *limits).accepted.tolist() == [0]


@pytest.mark.parametrize("module", ["vllm_asd.policy", "vllm_asd.kernels", "vllm_asd.ledger"])
def test_imports_no_vllm(module: str) -> None:
    """The rule, its kernels and the ledger are usable without an engine."""
    code = f"import sys, {module}; print([m for m in sys.modules if m == 'vllm' or m.startswith('vllm.')])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
