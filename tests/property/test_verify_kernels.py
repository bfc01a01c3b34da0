"""The compiled kernels, the plain torch ones and a scalar walk decide alike, bit for bit, in every regime."""

import importlib
import math
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.property import scalar_reference
from tests.property.scalar_reference import TokenOutcome, TokenRow
from vllm_asd.kernels import (
    NUM_SCALARS,
    Column,
    DraftBlocks,
    Outcome,
    ProtectedIds,
    RowLimits,
    charge_accounts_reference,
    dispatch,
    verify_drafts_reference,
)
from vllm_asd.policy import Pricing, StopReason

pytestmark = pytest.mark.skipif(find_spec("numba") is None, reason="needs numba")


def compiled() -> Any:
    """Import the kernels, late: vLLM's kernel registry, which other tests call, fails once numba is in."""
    return importlib.import_module("vllm_asd.kernels.cpu")


torch.set_num_threads(1)

# All are bfloat16 numbers, so that both dtypes meet the limits exactly; 3e38 apart is infinite in float32.
FINITE = [0.0, 0.0, 0.125, 0.25, 0.5, 1.0, 1.25, 2.0]
SPECIAL = [math.nan, math.inf, -math.inf, 2.0**127, -(2.0**127), -(2.0**127) * 1.5]
BUDGETS = [0.0, 0.125, 0.25, 0.5, 1.0, 8.0, 1e6, math.inf, math.nan, -1.0]
GATES = [0.0, 0.0625, 0.125, 0.25, 0.5, 4.0, math.inf, math.nan, -1.0]
CAPS = [0, 1, 1, 2, 2, 3, 100, -1]


class Case(NamedTuple):
    """A batch as scalars, and how its tensors are laid out."""

    rows: list[TokenRow]
    width: int
    dtype: torch.dtype
    id_dtype: torch.dtype
    strided: bool
    closed: list[bool] | None = None


def random_row(
    rng: random.Random, num_draft: int, vocab_size: int, pricing: Pricing, scoped: bool
) -> TokenRow:
    """Draw a row: mostly sane, with every oddity often enough."""
    palette = FINITE if rng.random() < 0.7 else FINITE + SPECIAL
    logits = [[rng.choice(palette) for _ in range(vocab_size)] for _ in range(num_draft)]
    argmax = [int(torch.tensor(row).argmax()) for row in logits]
    if rng.random() < 0.1:
        argmax = [rng.choice([target, -1, vocab_size, rng.randrange(vocab_size)]) for target in argmax]
    odd = [-1, -1, vocab_size, -7, 2**31 - 1] if rng.random() < 0.3 else [0]
    match_rate = rng.choice([0.3, 0.7, 1.0])
    lax = rng.random() < 0.4
    drafts = [
        target if rng.random() < match_rate else rng.choice([rng.randrange(vocab_size), rng.choice(odd)])
        for target in argmax
    ]
    return TokenRow(
        draft_ids=drafts,
        argmax=argmax,
        logits=logits,
        vocab_size=vocab_size,
        protected_ids=[rng.randrange(vocab_size + 2) for _ in range(rng.choice([0, 0, 0, 1, 2]))],
        in_scope=[rng.random() < 0.8 for _ in range(num_draft)] if scoped else None,
        remaining=8.0 if lax else rng.choice([*BUDGETS, rng.uniform(0, 4)]),
        gate=1.0 if lax else rng.choice([*GATES, rng.uniform(0, 1)]),
        block_cap=3 if lax else rng.choice(CAPS),
        shadow=rng.random() < 0.2,
        pricing=pricing,
    )


def random_case(rng: random.Random, max_rows: int = 6, max_draft: int = 8) -> Case:
    """Draw a ragged batch, rows without drafts included."""
    pricing: Pricing = rng.choice(["remaining", "realized"])
    vocab_size, scoped = rng.choice([1, 2, 5, 11]), rng.random() < 0.3
    lengths = [rng.choice([0, max_draft, rng.randint(0, max_draft)]) for _ in range(rng.randint(1, max_rows))]
    return Case(
        rows=[random_row(rng, length, vocab_size, pricing, scoped) for length in lengths],
        width=max(lengths) + rng.choice([0, 0, 2]),
        dtype=rng.choice([torch.float32, torch.bfloat16]),
        id_dtype=rng.choice([torch.int32, torch.int64]),
        strided=rng.random() < 0.3,
        closed=[rng.random() < 0.3 for _ in lengths] if rng.random() < 0.3 else None,
    )


def laid_out(tensor: Tensor, strided: bool) -> Tensor:
    """The same values, with gaps between them in every dimension when ``strided``."""
    if not strided:
        return tensor
    wide = tensor.new_zeros([2 * size for size in tensor.shape])
    view = wide[tuple(slice(None, None, 2) for _ in tensor.shape)]
    return view.copy_(tensor)


def collate(case: Case) -> tuple[DraftBlocks, RowLimits]:
    """Build the tensors; a call rewrites argmax, so each side needs its own."""
    rows, width = case.rows, case.width
    lengths = torch.tensor([len(row.draft_ids) for row in rows])
    num_protected = max(len(row.protected_ids) for row in rows)
    protected = [[*row.protected_ids, *[-1] * (num_protected - len(row.protected_ids))] for row in rows]
    in_scope = None
    if rows[0].in_scope is not None:
        # Garbage in the padding.
        padded = [[*(row.in_scope or ()), *[True] * (width - len(row.draft_ids))] for row in rows]
        in_scope = torch.tensor(padded, dtype=torch.bool).view(len(rows), width)

    def column(name: str, dtype: torch.dtype) -> Tensor:
        return laid_out(torch.tensor([getattr(row, name) for row in rows], dtype=dtype), case.strided)

    def flat(name: str, dtype: torch.dtype) -> Tensor:
        values = [value for row in rows for value in getattr(row, name)]
        return laid_out(torch.tensor(values, dtype=dtype), case.strided)

    vocab_size = rows[0].vocab_size
    logits = torch.tensor([line for row in rows for line in row.logits], dtype=case.dtype)
    blocks = DraftBlocks(
        logits=laid_out(logits.view(-1, vocab_size), case.strided),
        argmax=flat("argmax", torch.int64),
        draft_ids=flat("draft_ids", case.id_dtype),
        cu_num_draft=laid_out(lengths.cumsum(0).to(case.id_dtype), case.strided),
        width=width,
    )
    limits = RowLimits.of(
        remaining=column("remaining", torch.float64),
        gate=column("gate", torch.float64),
        block_cap=column("block_cap", torch.int32),
        shadow=column("shadow", torch.bool),
        protected_ids=torch.tensor(protected, dtype=torch.int64).view(len(rows), -1),
        vocab_size=vocab_size,
        pricing=rows[0].pricing,  # type: ignore[arg-type]
    )
    return blocks, limits._replace(
        accounts=laid_out(limits.accounts, case.strided),
        slots=laid_out(limits.slots, case.strided),
        protected=ProtectedIds(*(laid_out(part, case.strided) for part in limits.protected)),
        closed=None if case.closed is None else laid_out(torch.tensor(case.closed), case.strided),
        in_scope=None if in_scope is None else laid_out(in_scope, case.strided),
    )


def decide(
    kernel: Callable[[DraftBlocks, RowLimits, Outcome], None],
    blocks: DraftBlocks,
    limits: RowLimits,
    width: int | None = None,
) -> Outcome:
    """Let a kernel write into a table of NaN; all of it must be written."""
    outcome = Outcome.empty(
        blocks.num_rows, blocks.width if width is None else width, 0, blocks.logits.device
    )
    outcome.table.fill_(torch.nan)
    kernel(blocks, limits, outcome)
    assert not outcome.table.isnan().any()
    return outcome


def assert_same(got: Outcome, expected: Outcome) -> None:
    """Every value of the two tables, bit for bit."""
    for column in Column:
        assert torch.equal(got.column(column), expected.column(column)), column.name
    assert torch.equal(got.table[:, NUM_SCALARS:], expected.table[:, NUM_SCALARS:])


def read_back(outcome: Outcome, argmax: Tensor, case: Case) -> Iterator[TokenOutcome]:
    """Row by row, as the scalar walk words it."""
    start = 0
    for i, row in enumerate(case.rows):
        length = len(row.draft_ids)
        regrets = outcome.exception_regret[i].tolist()
        targets = [t if regret >= 0 else -1 for t, regret in zip(row.argmax, regrets, strict=False)]
        assert outcome.target_ids[i].tolist() == [*targets, *[-1] * (case.width - length)]
        assert regrets[length:] == [-1.0] * (case.width - length)
        read = dict(zip(Column, outcome.table[i, :NUM_SCALARS].tolist(), strict=True))
        assert (read[Column.SPENT], read[Column.THINKING], read[Column.GUARD]) == (0, -1, 0)
        assert read[Column.SHADOW] == row.shadow
        yield TokenOutcome(
            num_draft=int(read[Column.NUM_DRAFT]),
            strict_accepted=int(read[Column.STRICT_ACCEPTED]),
            verdict=scalar_reference.Outcome(
                accepted=int(read[Column.ACCEPTED]),
                charged=read[Column.CHARGED],
                exceptions=int(read[Column.EXCEPTIONS]),
                reused=int(read[Column.REUSED]),
                stop=StopReason(int(read[Column.STOP])).name.lower(),
            ),
            exception_regret=outcome.exception_regret[i, :length].tolist(),
            argmax=argmax[start : start + length].tolist(),
        )
        start += length


def assert_all_agree(case: Case) -> Outcome:
    """Compiled, plain torch and scalar; what was rewritten included."""
    blocks, limits = collate(case)
    reference_blocks, _ = collate(case)
    outcome = decide(compiled().verify_drafts_cpu, blocks, limits)
    assert_same(outcome, decide(verify_drafts_reference, reference_blocks, limits))
    assert torch.equal(blocks.argmax, reference_blocks.argmax)
    closed = case.closed or [False] * len(case.rows)
    rows = [replace(row, gate=0.0) if shut else row for row, shut in zip(case.rows, closed, strict=True)]
    expected = [scalar_reference.verify_tokens(row) for row in rows]
    assert list(read_back(outcome, blocks.argmax, case)) == expected
    return outcome


@pytest.mark.parametrize("seed", range(20))
def test_thousands_of_ragged_batches(seed: int) -> None:
    """NaN, infinities, ties, odd ids, protected ids, scope, strides, both id widths, both logit dtypes."""
    rng = random.Random(seed)
    for _ in range(100):
        assert_all_agree(random_case(rng))


@pytest.mark.parametrize("max_draft", [1, 3, 128])
def test_short_and_long_blocks(max_draft: int) -> None:
    """K = 1 to vLLM's longest."""
    rng = random.Random(max_draft)
    for _ in range(30):
        assert_all_agree(random_case(rng, max_draft=max_draft))


def test_the_random_batches_reach_every_stop_and_every_count() -> None:
    """The comparison above would be idle if its cases were."""
    rng = random.Random(0)
    outcomes = [
        scalar_reference.verify_tokens(row).verdict for _ in range(800) for row in random_case(rng).rows
    ]
    for reason in StopReason:
        assert sum(outcome.stop == reason.name.lower() for outcome in outcomes) > 20, reason
    assert sum(outcome.exceptions >= 2 and outcome.reused >= 1 for outcome in outcomes) > 20


@st.composite
def small_cases(draw: st.DrawFn) -> Case:
    """One to three rows of up to four drafts over three tokens, which shrink well."""
    pricing: Pricing = draw(st.sampled_from(["remaining", "realized"]))
    scoped = draw(st.booleans())
    rows = []
    for num_draft in draw(st.lists(st.integers(0, 4), min_size=1, max_size=3)):

        def some(values: st.SearchStrategy[Any], count: int = num_draft) -> list[Any]:
            return draw(st.lists(values, min_size=count, max_size=count))

        logits = some(st.lists(st.sampled_from([*FINITE[1:], *SPECIAL]), min_size=3, max_size=3))
        rows.append(
            TokenRow(
                draft_ids=some(st.integers(-1, 3)),
                argmax=[int(torch.tensor(line).argmax()) for line in logits],
                logits=logits,
                vocab_size=3,
                protected_ids=draw(st.lists(st.integers(0, 2), max_size=1)),
                in_scope=some(st.booleans()) if scoped else None,
                remaining=draw(st.sampled_from(BUDGETS)),
                gate=draw(st.sampled_from(GATES)),
                block_cap=draw(st.sampled_from(CAPS)),
                shadow=draw(st.booleans()),
                pricing=pricing,
            )
        )
    return Case(
        rows=rows,
        width=max(len(row.draft_ids) for row in rows),
        dtype=draw(st.sampled_from([torch.float32, torch.bfloat16])),
        id_dtype=draw(st.sampled_from([torch.int32, torch.int64])),
        strided=draw(st.booleans()),
    )


@settings(max_examples=300, deadline=None)
@given(small_cases())
def test_small_batches(case: Case) -> None:
    """The same comparison on cases that shrink."""
    assert_all_agree(case)


def test_full_size_logits_and_inference_tensors() -> None:
    """As vLLM hands them over: float32 or bfloat16 of a real vocabulary, made in inference mode."""
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        with torch.inference_mode():
            logits = torch.randn(28, 49152, generator=generator).to(dtype)
            best = logits.topk(2).indices
            drafts = torch.where(torch.rand(28, generator=generator) < 0.7, best[:, 0], best[:, 1])
            cu = torch.tensor([7, 14, 21, 28], dtype=torch.int32)
            limits = RowLimits.of(
                remaining=torch.full((4,), 8.0, dtype=torch.float64),
                gate=torch.full((4,), 0.25, dtype=torch.float64),
                block_cap=torch.full((4,), 2, dtype=torch.int32),
                shadow=torch.zeros(4, dtype=torch.bool),
                protected_ids=torch.full((4, 1), -1),
                vocab_size=49152,
            )
            mine, reference = (
                DraftBlocks(logits, logits.argmax(-1), drafts.to(torch.int32), cu, 7) for _ in range(2)
            )
            outcome = decide(compiled().verify_drafts_cpu, mine, limits)
            assert_same(outcome, decide(verify_drafts_reference, reference, limits))
            assert torch.equal(mine.argmax, reference.argmax)
            assert outcome.column(Column.EXCEPTIONS).sum() > 0


def test_the_outcome_may_be_wider_than_the_step() -> None:
    """N-grams propose fewer tokens in one step than in another, for the same table."""
    rng = random.Random(3)
    for _ in range(50):
        case = random_case(rng)
        if case.rows[0].in_scope is not None:
            continue
        (mine, limits), (reference, _) = collate(case), collate(case)
        outcome = decide(compiled().verify_drafts_cpu, mine, limits, case.width + 3)
        assert_same(outcome, decide(verify_drafts_reference, reference, limits, case.width + 3))
        narrow = decide(compiled().verify_drafts_cpu, collate(case)[0], limits)
        assert torch.equal(outcome.table[:, :NUM_SCALARS], narrow.table[:, :NUM_SCALARS])


def test_bitmaps_hold_what_was_packed() -> None:
    """Against sets, over ids in and around the vocabulary, those on the edges of words included."""
    rng = random.Random(4)
    for vocab_size in (1, 31, 32, 33, 100):
        sets = [{rng.randrange(-2, vocab_size + 2) for _ in range(rng.randint(0, 9))} for _ in range(6)]
        words = torch.from_numpy(np.stack([ProtectedIds.pack(list(ids), vocab_size) for ids in sets]))
        ids = torch.arange(-3, 2 * vocab_size + 40).expand(6, -1)
        held = ProtectedIds(words, torch.arange(6)).hold(ids)
        expected = [[t in members and 0 <= t < vocab_size for t in ids[0].tolist()] for members in sets]
        assert held.tolist() == expected


def test_counts_that_do_not_fit_are_refused() -> None:
    """The compiled loop checks no index, so its callers' mistakes must not become reads of other memory."""
    rng = random.Random(1)
    case = Case(
        [random_row(rng, 3, 5, "remaining", False) for _ in range(2)], 3, torch.float32, torch.int64, False
    )
    blocks, limits = collate(case)
    for cu in ([3, 7], [4, 6], [3, 2], [-1, 2]):
        with pytest.raises(ValueError, match="cu_num_draft"):
            decide(compiled().verify_drafts_cpu, blocks._replace(cu_num_draft=torch.tensor(cu)), limits)
    for kernel in (compiled().verify_drafts_cpu, verify_drafts_reference):
        with pytest.raises(ValueError, match="pricing"):
            decide(kernel, blocks, limits._replace(pricing="free"))  # type: ignore[arg-type]


@pytest.mark.parametrize("refill", [False, True])
def test_charging_agrees(refill: bool) -> None:
    """Random accounts, charges above what is left, dummy rows with anything, in both forms."""
    generator = torch.Generator().manual_seed(int(refill))
    for i in range(300):
        accounts = torch.rand(9, 7, generator=generator, dtype=torch.float64)
        accounts[:, 2] += 0.7
        accounts[0] = 0
        slots = torch.randperm(9, generator=generator)[: 1 + i % 8]
        slots = torch.cat((slots, slots.new_zeros(i % 3)))
        charged = torch.rand(slots.shape[0], generator=generator, dtype=torch.float64) * 1.5
        charged[slots == 0] = [0.0, math.nan, math.inf][i % 3]
        emitted = torch.randint(0, 9, slots.shape, generator=generator) if refill else None
        if emitted is not None and i % 2:
            emitted = emitted.to(torch.int32)
        copy, old = accounts.clone(), accounts.clone()
        # A column of a table, as the outcome's is.
        spent, expected = torch.full((2, slots.shape[0], 3), math.nan, dtype=torch.float64)[..., 1]
        before = compiled().charge_accounts_cpu(accounts, slots, charged, emitted, spent)
        assert torch.equal(before, charge_accounts_reference(copy, slots, charged, emitted, expected))
        assert torch.equal(accounts, copy)
        assert not accounts[0].any()
        assert torch.equal(spent, expected)
        assert not spent[slots == 0].any()
        accounts[:, :2].index_copy_(0, slots, before)
        assert torch.equal(accounts, old)


def test_without_numba_the_reference_decides_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slower path is taken, never silently."""
    warnings: list[tuple[object, ...]] = []
    compiled()
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "vllm_asd.kernels.cpu")
    monkeypatch.delattr("vllm_asd.kernels.cpu")
    monkeypatch.setattr(dispatch.logger, "warning", lambda *args: warnings.append(args))
    kernels = dispatch._kernels.__wrapped__("cpu")
    assert kernels.verify_drafts is verify_drafts_reference
    assert kernels.charge is charge_accounts_reference
    assert len(warnings) == 1


def test_the_cpu_gets_the_compiled_kernels() -> None:
    """And warming up is all the compiling there is."""
    cpu = compiled()
    dispatch.load(torch.device("cpu"))
    kernels = dispatch._kernels("cpu")
    assert (kernels.verify_drafts, kernels.charge) == (cpu.verify_drafts_cpu, cpu.charge_accounts_cpu)
    assert_all_agree(random_case(random.Random(2))._replace(strided=True))
    assert len(cpu._compiled_decide().signatures) == len(cpu._compiled_charge().signatures) == 1


def test_a_protected_token_costs_the_exception() -> None:
    """The one row that the rule keeps whole, then with its draft, its target or a bystander protected."""
    row = TokenRow([1], [0], [[1.0, 0.875, 0.0]], 3, [], None, 8.0, 0.25, 2, False, "remaining")
    for protected, stop in (([], "end"), ([2], "end"), ([1], "protected"), ([0], "protected")):
        case = Case([replace(row, protected_ids=protected)], 1, torch.float32, torch.int32, False)
        outcome = assert_all_agree(case)
        assert StopReason(int(outcome.table[0, Column.STOP])).name.lower() == stop
