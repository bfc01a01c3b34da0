"""`asd_guard` in a real engine: a random Llama loops on few words, and a lax gate lets exceptions cluster."""

from pathlib import Path
from typing import Any

import pytest

from eval.frontier.loops import loops
from tests.e2e.engines import greedy, run, speculation
from tests.e2e.guarded_answers import KINDS, ON, PROMPTS, answers, batch, check, engine, params

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

TOKENS = 120


def prefixes(tripped: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Requests that go on where the guard tripped, for an engine without ASD."""
    requests = []
    for case in tripped:
        row, kind = divmod(case["index"], len(KINDS))
        asked = params(row, len(case["tokens"]) - case["at"], **KINDS[kind])
        del asked["extra_args"]
        requests.append({"prompt": PROMPTS[row] + case["tokens"][: case["at"]], "params": asked})
    return requests


def test_a_looping_answer_turns_strict(
    tmp_path: Path, tiny_llama_dir: Path, tiny_llama_drafter_dir: Path
) -> None:
    """At the very block that completes a loop or a cluster; from there on it is strict decoding's text."""
    limits = {"budget": 1000.0, "gate": 2.0, "block_cap": 4}
    asd = engine(tiny_llama_dir, speculation("draft_model", 4, tiny_llama_drafter_dir, **limits))
    native = engine(tiny_llama_dir, speculation("draft_model", 4, tiny_llama_drafter_dir))
    batches = [batch(len(PROMPTS), TOKENS, ON), batch(len(PROMPTS), TOKENS, {})]
    (relaxed,) = run(tmp_path, [{"engine": asd, "batches": batches}])
    tripped = check(answers(relaxed["batches"][0]), answers(relaxed["batches"][1]))
    # Otherwise the test says little: both conditions trip, and there would have been more to keep.
    looped = sum(loops(case["tokens"][: case["at"]]) for case in tripped)
    assert min(looped, len(tripped) - looped) > 2
    assert sum(case["lost"] for case in tripped) > 10
    tripped = [case for case in tripped if case["at"] < TOKENS]
    (strict,) = run(tmp_path, [{"engine": native, "batches": [prefixes(tripped)]}], plugin=False)
    expected = [case["tokens"][case["at"] :] for case in tripped]
    assert [answer["token_ids"] for answer in answers(strict["batches"][0])] == expected


def test_a_guarded_server_at_budget_0_and_in_shadow_is_vllm(
    tmp_path: Path, tiny_llama_dir: Path, tiny_llama_drafter_dir: Path
) -> None:
    """Token for token; in shadow the guard trips all the same, and then nothing more is foreseen."""
    lax = speculation("draft_model", 4, tiny_llama_drafter_dir, budget=1000.0, gate=2.0, guard="on")
    native = speculation("draft_model", 4, tiny_llama_drafter_dir)
    wishes: list[dict[str, Any]] = [{"asd_budget": 0}, {"asd_mode": "shadow"}, {}]
    batches = [[{"prompt": p, "params": greedy(TOKENS, extra_args=w)} for p in PROMPTS] for w in wishes]
    (ours,) = run(tmp_path, [{"engine": engine(tiny_llama_dir, lax), "batches": batches}])
    plain_batch = [{"prompt": prompt, "params": greedy(TOKENS)} for prompt in PROMPTS]
    (theirs,) = run(
        tmp_path, [{"engine": engine(tiny_llama_dir, native), "batches": [plain_batch]}], plugin=False
    )
    plain = [answer["token_ids"] for answer in answers(theirs["batches"][0])]
    strict, shadow, relaxed = map(answers, ours["batches"])
    assert [answer["token_ids"] for answer in strict] == plain
    assert [answer["token_ids"] for answer in shadow] == plain
    assert [answer["token_ids"] for answer in relaxed] != plain
    tripped = 0
    for answer in shadow:
        report = answer["metrics"]["asd"]
        if report["guarded_at_token"] is not None:
            tripped += 1
            positions = [entry["position"] for entry in report["exception_trace"]]
            # A block foresees up to four places beyond the token that strict emits.
            assert all(position < report["guarded_at_token"] + 4 for position in positions)
    assert tripped > 0
    assert any(answer["metrics"]["asd"]["guarded_at_token"] is not None for answer in relaxed)
