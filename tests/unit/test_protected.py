"""Protected tokens as bitmaps: what a set costs, who shares one, and that nobody gets another's."""

import random
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vllm_asd.config import AsdConfig
from vllm_asd.kernels import ProtectedIds
from vllm_asd.protected import ProtectedSets
from vllm_asd.verification import DraftShape, Verifier

CPU = torch.device("cpu")
VOCAB, ROWS = 151_936, 256
BITMAP = -(-VOCAB // 32) * 4


class Allocations(TorchDispatchMode):
    """Adds up, in bytes, what torch allocates, views not."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = self.largest = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        # What torch.tensor made comes here as the argument of lift_fresh.
        given = () if func is torch.ops.aten.lift_fresh.default else args
        known = {t.untyped_storage().data_ptr() for t in tree_leaves(given) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() not in known:
                self.total += leaf.untyped_storage().nbytes()
                self.largest = max(self.largest, leaf.untyped_storage().nbytes())
        return result


class Cost(NamedTuple):
    """Of one change of the batch, in bytes."""

    total: int
    largest: int
    host_peak: int


def batch_change(whole_vocabulary: bool) -> Cost:
    """A batch in another order, one of its requests with every token of the vocabulary as a stop token."""
    verifier = Verifier(AsdConfig(), CPU, ROWS, DraftShape(7, VOCAB))
    ids = [f"request-{row}" for row in range(ROWS)]
    for row, request_id in enumerate(ids):
        stop_ids = range(VOCAB) if whole_vocabulary and row == 100 else [2, 3]
        verifier.admit(request_id, verifier.config.limits, stop_ids)
    with Allocations():  # whose first use imports what is not to be counted
        assert verifier.begin(ids)
    random.Random(0).shuffle(ids)
    tracemalloc.start()
    try:
        with Allocations() as allocated:
            assert verifier.begin(ids)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return Cost(allocated.total, allocated.largest, peak)


def test_a_client_that_sends_its_whole_vocabulary_slows_nobody_down() -> None:
    """Any change of the batch cost a padded row of it per request: 297 MiB and 421 ms at 256 rows."""
    normal, beside_it = batch_change(False), batch_change(True)
    assert 0 < beside_it.total <= 2 * normal.total
    assert beside_it.largest <= 8 * ROWS
    assert beside_it.host_peak <= 2 * normal.host_peak < 1_000_000


def test_its_admission_takes_one_bitmap() -> None:
    """Of 18.5 KiB, once, and none when another request sends the same."""
    sets = ProtectedSets(VOCAB, CPU)
    sets.acquire([2])
    sets.acquire([3])
    size = sets.of_rows(torch.zeros(1, dtype=torch.int64)).words.nbytes
    assert size == 4 * BITMAP, "rows come in powers of two"
    with Allocations() as allocated:
        row = sets.acquire(range(VOCAB))
        assert sets.acquire(reversed(range(VOCAB))) == row
    assert allocated.largest <= BITMAP
    assert sets.of_rows(torch.zeros(1, dtype=torch.int64)).words.nbytes == size


def members(sets: ProtectedSets, row: int, vocab_size: int) -> set[int]:
    """Ask for every token, and some that are none."""
    ids = torch.arange(-2, vocab_size + 70).unsqueeze(0)
    held = sets.of_rows(torch.tensor([row])).hold(ids)[0].tolist()
    return {token for token, is_held in zip(ids[0].tolist(), held, strict=True) if is_held}


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 100])
def test_a_set_holds_its_tokens_and_no_other(vocab_size: int) -> None:
    """The borders of words; ids outside the vocabulary, however large, are no draft that could be kept."""
    sets = ProtectedSets(vocab_size, CPU)
    edges = {0, 30, 31, 32, 33, 63, 64, 95, 96, 99}
    row = sets.acquire([*edges, -1, -(2**70), 2**31, 2**63, 2**64, vocab_size, vocab_size + 1])
    assert members(sets, row, vocab_size) == {token for token in edges if token < vocab_size}
    assert members(sets, 0, vocab_size) == set()


def test_equal_sets_share_a_row_and_distinct_ones_stay_apart() -> None:
    """In any order, as often as an id may be said, whoever came first."""
    sets = ProtectedSets(100, CPU)
    one, two, three = sets.acquire([5]), sets.acquire([5, 99]), sets.acquire([99])
    assert len({0, one, two, three}) == 4
    assert sets.acquire([99, 5, 5, 1000]) == two
    assert sets.acquire([]) == sets.acquire([-1]) == 0
    assert [members(sets, row, 100) for row in (one, two, three)] == [{5}, {5, 99}, {99}]


def test_a_row_is_used_again_once_its_last_user_is_gone() -> None:
    """A server that runs for months must not grow with the sets it was sent."""
    sets = ProtectedSets(100, CPU)
    shared = sets.acquire([7])
    assert sets.acquire([7]) == shared
    sets.release(shared)
    used = set()
    for token in range(50):
        row = sets.acquire([token, 60])
        assert members(sets, row, 100) == {token, 60}
        assert members(sets, shared, 100) == {7}
        used.add(row)
        sets.release(row)
    assert len(used) == 1
    sets.release(shared)
    assert {sets.acquire([token]) for token in range(3)} >= {shared} | used
    sets.release(sets.acquire([]))
    assert members(sets, 0, 100) == set()


@pytest.mark.parametrize("seed", range(5))
def test_many_lives_against_dictionaries(seed: int) -> None:
    """Acquired, shared, released and grown: each row in use holds its set, rows in use are one per set."""
    rng = random.Random(seed)
    sets = ProtectedSets(70, CPU)
    users: list[tuple[int, frozenset[int]]] = []
    for _ in range(200):
        if users and rng.random() < 0.45:
            sets.release(users.pop(rng.randrange(len(users)))[0])
        else:
            wanted = frozenset(rng.sample(range(70), rng.choice([0, 1, 1, 2])))
            users.append((sets.acquire(wanted), wanted))
    assert len({row for row, _ in users}) == len({wanted for _, wanted in users})
    assert all(members(sets, row, 70) == wanted for row, wanted in users)


def test_bitmaps_are_packed_as_the_kernels_read_them() -> None:
    """Token t's bit is bit t % 32 of word t // 32, the sign bit included."""
    words = ProtectedIds.pack([0, 31, 33], 40)
    assert words.tolist() == [1 - 2**31, 2]
