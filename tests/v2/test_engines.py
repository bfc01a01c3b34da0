"""Model Runner V2 in real engines: the same decisions as V1, and at budget 0 vLLM itself.

One process per runner starts all engines one after the other; the tests look at what they wrote down. In
float32, where the two runners' logits differ by rounding alone, which no choice here hangs on.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.engines import speculation
from tests.v2.eagle3_head import make_random_eagle3_head
from tests.v2.environment import run_module, triton_environment
from tests.v2.random_drafters import make_random_dspark_drafter, make_tiny_mimo

pytest.importorskip("triton")

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

TOKENS = 20
BUDGET = 1.2
# t5 … t511 are the tiny Llama's words.
PROMPTS = [[1, 5 + i, 7 * i + 9, 30, 31, 5 + i, 7 * i + 9] for i in range(6)]
ENGINES = ("draft_model", "realized", "eagle3", "mtp", "ngram", "dspark")
# vLLM has DSpark on V2 alone.
ENGINES_ON_V1 = ENGINES[:-1]
# Drafters whose engines are started without the plugin too.
CONTROLS = ("draft_model", "eagle3", "ngram")


def greedy(**extra_args: Any) -> dict[str, Any]:
    """Greedy sampling parameters with ASD's keys."""
    return {
        "temperature": 0.0,
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "logprobs": 1,
        "extra_args": {f"asd_{key}": value for key, value in extra_args.items()},
    }


def sampled(seed: int) -> dict[str, Any]:
    """Parameters of a request that stays vLLM's."""
    return {"temperature": 0.8, "max_tokens": TOKENS, "ignore_eos": True, "logprobs": 1, "seed": seed}


def batches() -> list[list[dict[str, Any]]]:
    """All relaxed; mixed with strict, shadow and sampled requests; all strict."""
    mixed = [greedy(), sampled(1), greedy(budget=0), greedy(mode="shadow"), sampled(2), greedy(gate=0.05)]
    strict = [greedy(budget=0), sampled(1), greedy(budget=0), greedy(budget=0), sampled(2), greedy(budget=0)]
    return [
        [{"prompt": prompt, "params": params} for prompt, params in zip(PROMPTS, kinds, strict=True)]
        for kinds in ([greedy()] * 6, mixed, strict)
    ]


@dataclass(frozen=True)
class Results:
    """Per engine name what `tests.e2e.run_engines` reports."""

    v1: dict[str, Any]
    v2: dict[str, Any]
    v2_without_plugin: dict[str, Any]


@pytest.fixture(scope="module")
def results(
    tmp_path_factory: pytest.TempPathFactory, tiny_llama_dir: Path, tiny_llama_drafter_dir: Path
) -> Results:
    """Three processes: V1, V2, and V2 without the plugin."""
    folder = tmp_path_factory.mktemp("v2")
    head = make_random_eagle3_head(folder / "eagle3")
    dspark = make_random_dspark_drafter(folder / "dspark")
    mimo = make_tiny_mimo(folder / "mimo")

    def job(asd: bool, names: tuple[str, ...]) -> list[dict[str, Any]]:
        limits: dict[str, Any] = {"budget": BUDGET, "gate": 0.5}
        lax: dict[str, Any] = {"budget": 60.0, "gate": 3.0, "block_cap": 3}
        realized = limits | {"pricing": "realized", "refill": 0.02, "protect": "none"}
        configs = {
            "draft_model": speculation("draft_model", 4, tiny_llama_drafter_dir, **(limits if asd else {})),
            "realized": speculation("draft_model", 3, tiny_llama_drafter_dir, **(realized if asd else {})),
            "eagle3": speculation("eagle3", 3, head, **(lax if asd else {})),
            "mtp": speculation("mtp", 3, **(lax if asd else {})),
            "dspark": speculation("dspark", 3, dspark, **(lax if asd else {})),
            "ngram": speculation("ngram", 3, **(lax if asd else {})),
        }
        common = {
            "tokenizer": str(tiny_llama_dir),
            "dtype": "float32",
            "max_model_len": 256,
            "max_num_seqs": 8,
        }
        targets = {name: str(mimo if name == "mtp" else tiny_llama_dir) for name in names}
        return [
            {
                "engine": {**common, "model": targets[name], "speculative_config": configs[name]},
                "batches": batches(),
            }
            for name in names
        ]

    def run(name: str, plugin: bool = True, **changes: str) -> dict[str, Any]:
        job_path, result_path = folder / f"{name}.job.json", folder / f"{name}.json"
        names = CONTROLS if not plugin else ENGINES_ON_V1 if name == "v1" else ENGINES
        job_path.write_text(json.dumps(job(plugin, names)))
        environment = triton_environment(plugin) | changes
        arguments = ["tests.e2e.run_engines", str(job_path), str(result_path)]
        log = run_module(arguments, environment, folder / f"{name}.log")
        assert ("gpu/model_runner.py" in log or "[model_runner.py" in log) == (name != "v1")
        return dict(zip(names, json.loads(result_path.read_text()), strict=True))

    return Results(
        v1=run("v1", VLLM_USE_V2_MODEL_RUNNER="0"),
        v2=run("v2"),
        v2_without_plugin=run("v2-without", plugin=False),
    )


def requests_of(engine: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each request's parameters and its completion."""
    for asked, answered in zip(batches(), engine["batches"], strict=True):
        for request, answer in zip(asked, answered, strict=True):
            yield request["params"], answer["completions"][0]


def without_rounding(value: Any) -> Any:
    """Nats to five digits: the two runners compute logits in another order."""
    if isinstance(value, float):
        return pytest.approx(value, abs=1e-5)
    if isinstance(value, dict):
        return {key: without_rounding(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [without_rounding(entry) for entry in value]
    return value


@pytest.mark.parametrize("engine", ["draft_model", "realized", "eagle3", "mtp"])
def test_both_runners_decide_alike(results: Results, engine: str) -> None:
    """Tokens, exceptions, charges, the whole report of every greedy request."""
    exceptions = 0
    for (params, v1), (_, v2) in zip(
        requests_of(results.v1[engine]), requests_of(results.v2[engine]), strict=True
    ):
        if params["temperature"] > 0:
            continue
        assert v2["token_ids"] == v1["token_ids"]
        assert v2["metrics"]["asd"] == without_rounding(v1["metrics"]["asd"])
        exceptions += v2["metrics"]["asd"]["exceptions"]
    assert exceptions > 10


def test_ngrams_are_relaxed_on_both_runners(results: Results) -> None:
    """V2 fills empty draft slots where V1 proposes nothing: only strict requests can be equal."""
    for runner in (results.v1, results.v2):
        relaxed = [
            c["metrics"]["asd"]["exceptions"] for p, c in requests_of(runner["ngram"]) if p == greedy()
        ]
        assert sum(relaxed) > 0
    pairs = zip(requests_of(results.v1["ngram"]), requests_of(results.v2["ngram"]), strict=True)
    for (params, v1), (_, v2) in pairs:
        if params == greedy(budget=0):
            assert v2["token_ids"] == v1["token_ids"]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_trace_is_what_was_emitted(results: Results, engine: str) -> None:
    """Each exception's token stands where the trace says, and their regret is what was charged."""
    for params, completion in requests_of(results.v2[engine]):
        if params["temperature"] > 0:
            continue
        report = completion["metrics"]["asd"]
        trace = report["exception_trace"]
        assert report["regret"] == pytest.approx(sum(entry["regret"] for entry in trace))
        assert len(trace) == report["exceptions"]
        if report["refill"] == 0:
            assert report["regret"] <= report["regret_spent"] + 1e-9
            assert report["regret_spent"] <= report["budget"]
        for entry in trace:
            if report["mode"] == "enforce":
                assert completion["token_ids"][entry["position"]] == entry["token_id"]
            assert entry["token_id"] != entry["target_token_id"]


def test_dspark_is_relaxed(results: Results) -> None:
    """Its drafter is random: what is kept besides the target's own tokens was kept as an exception."""
    kept = [c["metrics"]["asd"] for p, c in requests_of(results.v2["dspark"]) if p == greedy()]
    assert min(report["exceptions"] for report in kept) > 0


def test_the_budget_binds(results: Results) -> None:
    """Otherwise the equalities above would say little about the ledger."""
    stops = [
        completion["metrics"]["asd"]["blocks_by_stop"]["budget"]
        for params, completion in requests_of(results.v2["draft_model"])
        if params == greedy()
    ]
    assert sum(stops) > 0


@pytest.mark.parametrize("engine", CONTROLS)
def test_budget_0_is_vllm(results: Results, engine: str) -> None:
    """The all-strict batch, greedy and sampled: ids and log-probabilities, to the last bit."""
    ours = results.v2[engine]["batches"][2]
    theirs = results.v2_without_plugin[engine]["batches"][2]
    for our, their in zip(ours, theirs, strict=True):
        assert our["completions"][0]["token_ids"] == their["completions"][0]["token_ids"]
        assert our["completions"][0]["logprobs"] == their["completions"][0]["logprobs"]


@pytest.mark.parametrize("engine", CONTROLS)
def test_sampled_requests_are_vllms_beside_relaxed_ones(results: Results, engine: str) -> None:
    """In the mixed batch too: a seeded request's tokens do not depend on its neighbours."""
    ours = list(requests_of(results.v2[engine]))[6:12]
    theirs = list(requests_of(results.v2_without_plugin[engine]))[6:12]
    compared = 0
    for (params, our), (_, their) in zip(ours, theirs, strict=True):
        if params["temperature"] > 0:
            assert our["token_ids"] == their["token_ids"]
            compared += 1
    assert compared == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_no_entry_outlives_its_request(results: Results, engine: str) -> None:
    """Those of vLLM's warm-up included."""
    assert results.v2[engine]["ledger_entries"] == 0


def test_soak(tmp_path: Path, tiny_llama_dir: Path, tiny_llama_drafter_dir: Path) -> None:
    """Preemptions, aborts and reused ids; V2 drops a preempted request and gets it back as a new one."""
    arguments = ["tests.e2e.soak", str(tiny_llama_dir), str(tiny_llama_drafter_dir), "40"]
    log = run_module(arguments, triton_environment(), tmp_path / "soak.log")
    seen = json.loads(next(line for line in log.splitlines() if line.startswith('{"finished"')))
    assert seen["left_in_ledger"] == seen["left_in_scheduler"] == 0
    assert min(seen["preemptions"], seen["aborted"], seen["reused_ids"]) > 0
    assert seen["charged"] > 10
