"""A fault is heard where vLLM listens; a rank to which nobody listens ends instead of staying behind."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_asd.upstream.rank_fault import answers, end_if_silent

parallel_state: Any = pytest.importorskip("vllm.distributed.parallel_state")


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets a test say which place in its groups this process has."""

    def place(tensor: int, prefill_context: int = 0) -> None:
        monkeypatch.setattr(parallel_state, "model_parallel_is_initialized", lambda: True)
        for name, rank in (("get_tp_group", tensor), ("get_pcp_group", prefill_context)):
            group = SimpleNamespace(is_first_rank=rank == 0)
            monkeypatch.setattr(parallel_state, name, lambda group=group: group)

    return place


def fail() -> None:
    """Have a fault as the seams have theirs."""
    try:
        raise ValueError("no decision")
    except Exception:
        end_if_silent()
        raise


def test_without_ranks_a_fault_passes_through() -> None:
    """One process: unit tests, and engines of one rank."""
    assert answers()
    with pytest.raises(ValueError, match="no decision"):
        fail()


def test_the_first_rank_raises(ranks: Any) -> None:
    """Its answer reaches the engine core, with the reason."""
    ranks(tensor=0)
    with pytest.raises(ValueError, match="no decision"):
        fail()


@pytest.mark.parametrize("place", [{"tensor": 1}, {"tensor": 0, "prefill_context": 1}])
def test_any_other_rank_ends_and_says_why(
    ranks: Any, place: dict[str, int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the traceback in its log, and a status that is not success."""
    ranks(**place)
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    with pytest.raises(SystemExit) as ended:
        fail()
    assert ended.value.code == 1
    assert "ends so that the engine does" in caplog.text
    assert "ValueError: no decision" in caplog.text
