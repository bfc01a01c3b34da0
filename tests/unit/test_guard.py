"""The guard's table: whose output it watches, and what makes it trip."""

import pytest
import torch

from vllm_asd.guard import GuardTable
from vllm_asd.policy.guard import MOST_EXCEPTIONS, shift_in

LOOP = torch.full((1, 24), 5)


def make_table(*request_ids: str) -> GuardTable:
    """Room for one request, so that the others make it grow."""
    table = GuardTable(1, "cpu")
    for request_id in request_ids:
        table.admit(request_id)
    return table


def rows(*tokens: list[int]) -> torch.Tensor:
    """Pad with -1."""
    width = max(map(len, tokens))
    return torch.tensor([row + [-1] * (width - len(row)) for row in tokens])


def exceptions_in(table: GuardTable, request_id: str, number: int) -> bool:
    """Emit blocks of one exception and the target's token, all different, and tell whether it tripped."""
    slots = table.slots([request_id])
    kept = torch.tensor([[True]])
    tripped = torch.zeros(1, dtype=torch.bool)
    for i in range(number):
        tripped = table.follow(slots, torch.tensor([[1000 + 2 * i, 1001 + 2 * i]]), kept)
    return bool(tripped)


def test_a_loop_trips_its_own_request_alone() -> None:
    """The others of the batch go on; an id that was never admitted does not trip either."""
    table = make_table("a", "b", "c")
    slots = table.slots(["stranger", "b", "a", "dummy"])
    tripped = table.follow(slots, torch.stack([LOOP[0], LOOP[0], torch.arange(24), LOOP[0]]))
    assert tripped.tolist() == [False, True, False, False]
    assert table.tripped(table.slots(["a", "b", "c", "stranger"])).tolist() == [False, True, False, False]


def test_the_latch_outlives_the_loop_and_preemption() -> None:
    """Once tripped a request stays so, whatever it says then and wherever it stands in the batch."""
    table = make_table("a")
    table.follow(table.slots(["a"]), LOOP)
    table.admit("a")
    table.follow(table.slots(["x", "a"]), torch.arange(80).repeat(2, 1))
    assert table.tripped(table.slots(["a", "x"])).tolist() == [True, False]


def test_an_output_goes_on_after_preemption() -> None:
    """Half a loop before, half a loop after, and a table that grew in between."""
    table = make_table("a")
    table.follow(table.slots(["a"]), LOOP[:, :12])
    for i in range(5):
        table.admit(f"other-{i}")
    table.admit("a")
    assert not table.follow(table.slots(["a"]), LOOP[:, :11])
    assert table.follow(table.slots(["a"]), LOOP[:, :1])


def test_an_id_used_again_starts_afresh() -> None:
    """Released and admitted at once, without a step in between, as a scheduler may do."""
    table = make_table("a")
    table.follow(table.slots(["a"]), LOOP)
    table.release(["a", "never seen"])
    table.admit("a")
    assert not table.tripped(table.slots(["a"]))
    assert not table.follow(table.slots(["a"]), LOOP[:, :23])


def test_rows_without_tokens_add_nothing() -> None:
    """A partial prefill, and a step that vLLM throws away: the loop is as long as before."""
    table = make_table("a", "b")
    slots = table.slots(["a", "b"])
    table.follow(slots, LOOP[:, :23].repeat(2, 1))
    before = table._state.clone()
    table.follow(slots, torch.full((2, 6), -1), torch.ones(2, 5, dtype=torch.bool))
    assert torch.equal(table._state, before)
    assert table.follow(slots, rows([5], [6])).tolist() == [True, False]


def test_a_cluster_is_more_than_the_bound_in_the_window() -> None:
    """One below the bound, at it and above; sparse ones never trip, however many there are."""
    for number, tripped in ((MOST_EXCEPTIONS, False), (MOST_EXCEPTIONS + 1, True)):
        assert exceptions_in(make_table("a"), "a", number) is tripped
    table = make_table("a")
    slots = table.slots(["a"])
    for i in range(100):
        block = 10 * i + torch.arange(8).unsqueeze(0)
        assert not table.follow(slots, block, torch.eye(7, dtype=torch.bool)[:1])


def test_exceptions_behind_the_emitted_tokens_do_not_count() -> None:
    """A strict block of one token whose discarded tail was marked; enforced rows count what they emit."""
    table = make_table("a")
    slots = table.slots(["a"])
    for i in range(40):
        assert not table.follow(slots, rows([i, -1, -1]), torch.tensor([[False, True]]))


@pytest.mark.parametrize(("tokens", "tripped"), [(2, True), (6, False)])
def test_shadow_counts_over_the_tokens_that_would_have_been(tokens: int, tripped: bool) -> None:
    """One exception in each block of 2 is a cluster, in each block of 6 it is not; strict emits one token."""
    table = make_table("a", "enforced")
    slots = table.slots(["a", "enforced"])
    exception = torch.eye(5, dtype=torch.bool)[:1].repeat(2, 1)
    for i in range(40):
        emitted = rows([i, -1, -1, -1, -1, -1], [i, 2, 3, 4, 5, 6])
        result = table.follow(slots, emitted, exception, torch.tensor([tokens, -1]))
    assert result.tolist() == [tripped, False]


def test_shadow_looks_for_loops_in_the_text_that_is_emitted() -> None:
    """Whatever would have been kept behind it."""
    table = make_table("a")
    slots = table.slots(["a"])
    for _ in range(23):
        none = torch.zeros(1, 5, dtype=torch.bool)
        assert not table.follow(slots, rows([5, -1, -1, -1, -1, -1]), none, torch.tensor([6]))
    assert table.follow(slots, rows([5]))


def test_shift_in_keeps_the_newest() -> None:
    """Each row by its own count."""
    window = torch.tensor([[1, 2, 3], [4, 5, 6]])
    values = torch.tensor([[7, 8, 9, 10], [11, -1, -1, -1]])
    assert shift_in(window, values, torch.tensor([4, 1])).tolist() == [[8, 9, 10], [5, 6, 11]]
