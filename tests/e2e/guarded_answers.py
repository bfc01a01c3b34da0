"""What the tests of `asd_guard` in real engines share: batches that trip it, and a judge of their answers."""

from pathlib import Path
from typing import Any

from eval.frontier.loops import loops
from tests.e2e.engines import greedy

ON = {"asd_guard": "on"}
# A gate that lets clusters through, and one that leaves loops alone to trip the guard.
KINDS: tuple[dict[str, Any], ...] = ({"gate": 2.0}, {"gate": 0.05, "words": 8})
PROMPTS = [[5 + (11 * row + 3 * i) % 400 for i in range(10)] for row in range(8)]


def params(row: int, tokens: int, gate: float, words: int | None = None, **wishes: Any) -> dict[str, Any]:
    """What a prompt is asked with; `words` is how many there are for its answer, None for all."""
    allowed = {} if words is None else {"allowed_token_ids": [10 + 50 * row + 5 * i for i in range(words)]}
    return greedy(tokens, extra_args={"asd_gate": gate, **wishes}, **allowed)


def batch(num_prompts: int, tokens: int, guarded: dict[str, Any]) -> list[dict[str, Any]]:
    """Each prompt with and without a guard, in both kinds, all at once."""
    return [
        {"prompt": PROMPTS[row], "params": params(row, tokens, **kind, **wish)}
        for row in range(num_prompts)
        for kind in KINDS
        for wish in ({}, guarded)
    ]


def engine(model: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Float32: no near-tie hangs on the shape of a batch."""
    return {"model": str(model), "dtype": "float32", "speculative_config": config}


def answers(result: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The completions of a batch."""
    return [request["completions"][0] for request in result]


def trips_at(answer: dict[str, Any]) -> int | None:
    """Where the guard must have tripped, told from the answer, its trace and vLLM's own block lengths."""
    tokens, metrics = answer["token_ids"], answer["metrics"]
    positions = [entry["position"] for entry in metrics["asd"]["exception_trace"]]
    end = 1
    for accepted in metrics["per_step_accepted"]:
        end += accepted + 1
        clustered = sum(end - 64 <= position < end for position in positions) > 12
        if end <= len(tokens) and (clustered or loops(tokens[:end])):
            return int(end)
    return None


def check(with_guard: list[dict[str, Any]], without: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Judge a batch by itself and by the same batch without a guard.

    Returns:
        What a strict engine has to be asked: the outputs up to where they turned strict.
    """
    plain, guarded, twins = with_guard[::2], with_guard[1::2], without[1::2]
    assert [answer["token_ids"] for answer in plain] == [answer["token_ids"] for answer in without[::2]]
    assert all(answer["metrics"]["asd"]["guarded_at_token"] is None for answer in plain + without)
    tripped = []
    for index, (answer, twin) in enumerate(zip(guarded, twins, strict=True)):
        report, tokens = answer["metrics"]["asd"], answer["token_ids"]
        at = report["guarded_at_token"]
        assert report["guard"] == "on"
        assert at == trips_at(answer), index
        positions = [entry["position"] for entry in report["exception_trace"]]
        if at is None:
            assert tokens == twin["token_ids"]
            continue
        assert tokens[:at] == twin["token_ids"][:at]
        assert all(position < at for position in positions)
        later = [e for e in twin["metrics"]["asd"]["exception_trace"] if e["position"] >= at]
        tripped.append({"index": index, "at": at, "tokens": tokens, "lost": len(later)})
    return tripped
