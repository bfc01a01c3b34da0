"""Each rule of the comparison keeps what its source keeps, and in one batch none disturbs another."""

import math
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from eval.frontier.arms import Arm
from eval.frontier.rules import Fly, LookAhead, Ratio, Relaxed, Rule, Typical, Walk
from eval.frontier.seam import KEY, RulePerRequest, install
from tests import v1_step
from vllm_asd.config import AsdConfig
from vllm_asd.kernels import Column, DraftBlocks, Outcome, RowLimits, verify_drafts, verify_drafts_reference
from vllm_asd.kernels.accounts import BLOCK_CAP, BUDGET, GATE, REMAINING

torch.set_num_threads(1)

VOCAB, STOP = 12, 11
LIMITS = {"asd_budget": 100.0, "asd_gate": 0.5, "asd_block_cap": 2}
RULES: tuple[Rule, ...] = (
    Walk("remaining"),
    Walk("realized"),
    LookAhead(),
    Fly(window=1, entropy=0.5),
    Fly(window=2, entropy=0.3),
    Relaxed(delta=0.2, top=3),
    Ratio(least=0.5),
    Typical(threshold=0.2, alpha=0.5),
)


def tolerated(rule: Rule, logits: Sequence[float], target: int, draft: int, matches_behind: int) -> bool:
    """The rivals' conditions in scalars, as their sources have them."""
    total = sum(math.exp(value) for value in logits)
    probs = [math.exp(value) / total for value in logits]

    def entropy(values: Sequence[float]) -> float:
        return -sum(p * math.log(p) for p in values)

    best_first = sorted(probs, reverse=True)
    match rule:
        case Fly(window, threshold, top):
            return entropy(best_first[:top]) >= threshold and matches_behind >= window
        case Relaxed(delta, top):
            return probs[draft] in best_first[:top] and probs[draft] >= best_first[0] - delta
        case Ratio(least):
            return probs[draft] / probs[target] >= least
        case Typical(threshold, alpha):
            return probs[draft] > min(threshold, alpha * math.exp(-entropy(probs)))
    raise AssertionError(rule)


def kept(
    rule: Rule, logits: list[list[float]], drafts: list[int], cap: int, budget: float
) -> tuple[int, float]:
    """A rival's walk through one block: accepted drafts and the regret they cost."""
    targets = [row.index(max(row)) for row in logits]
    charged, misses = 0.0, 0
    for i, (draft, target) in enumerate(zip(drafts, targets, strict=True)):
        if draft == target:
            continue
        behind = 0
        while i + 1 + behind < len(drafts) and drafts[i + 1 + behind] == targets[i + 1 + behind]:
            behind += 1
        misses += 1
        charged += logits[i][target] - logits[i][draft]
        allowed = STOP not in (draft, target) and misses <= cap and charged <= budget
        if not allowed or not tolerated(rule, logits[i], target, draft, behind):
            return i, charged - (logits[i][target] - logits[i][draft])
    return len(drafts), charged


def step(rng: random.Random, num_rows: int, width: int) -> tuple[DraftBlocks, RowLimits]:
    """Random drafts of ragged lengths; logits in eighths, which float32 and float64 add alike."""
    lengths = [rng.randint(0, width) for _ in range(num_rows)]
    num_flat = sum(lengths)
    logits = [[rng.randrange(-16, 17) / 8 for _ in range(VOCAB)] for _ in range(num_flat)]
    for row in logits:
        row[rng.randrange(VOCAB)] = 2.5
    places = [rng.choice([0, 0, 0, 1, 1, rng.randrange(VOCAB)]) for _ in logits]
    drafts = [row.index(sorted(row, reverse=True)[place]) for row, place in zip(logits, places, strict=True)]
    scores = torch.tensor(logits).view(num_flat, VOCAB)
    blocks = DraftBlocks(
        logits=scores,
        argmax=scores.argmax(1) if num_flat else torch.zeros(0, dtype=torch.int64),
        draft_ids=torch.tensor(drafts, dtype=torch.int32),
        cu_num_draft=torch.tensor(lengths).cumsum(0).to(torch.int32),
        width=width,
    )
    limits = RowLimits.of(
        remaining=torch.tensor(
            [rng.choice([0.0, 1.0, 1e6, 1e6]) for _ in range(num_rows)], dtype=torch.float64
        ),
        gate=torch.tensor(
            [rng.choice([0.0, 0.25, 0.5, 0.5, 1.0]) for _ in range(num_rows)], dtype=torch.float64
        ),
        block_cap=torch.tensor([rng.choice([1, 128]) for _ in range(num_rows)], dtype=torch.int32),
        shadow=torch.zeros(num_rows, dtype=torch.bool),
        protected_ids=torch.full((num_rows, 1), STOP),
        vocab_size=VOCAB,
    )
    return blocks, limits


def copy(blocks: DraftBlocks) -> DraftBlocks:
    """The argmax is rewritten in place."""
    return blocks._replace(argmax=blocks.argmax.clone())


def with_columns(rows: RowLimits, columns: dict[int, float]) -> RowLimits:
    """Limits with the same value in every row's account."""
    accounts = rows.accounts.clone()
    for column, value in columns.items():
        accounts[1:, column] = value
    return rows._replace(accounts=accounts)


def empty(blocks: DraftBlocks) -> Outcome:
    """A table wider than the step's longest row, as the worker's is."""
    return Outcome.empty(blocks.num_rows, blocks.width + 2, 0, torch.device("cpu"))


def under(rules: Sequence[Rule], blocks: DraftBlocks, rows: RowLimits) -> Outcome:
    """One step with these rules, row by row."""
    ids = [f"r{row}" for row in range(len(rules))]
    chooser = RulePerRequest(lambda: ids, verify_drafts)
    for request_id, rule in zip(ids, rules, strict=True):
        chooser.admit(request_id, request_id, rule)
    outcome = empty(blocks)
    chooser(blocks, rows, outcome)
    return outcome


@pytest.mark.parametrize("rule", [rule for rule in RULES if not isinstance(rule, Walk | LookAhead)], ids=str)
def test_a_rival_keeps_what_its_source_keeps(rule: Rule) -> None:
    """Against a scalar walk, with stop tokens, cap and budget in force; the account is the plugin's."""
    rng = random.Random(str(rule))
    exceptions = 0
    for _ in range(60):
        blocks, rows = step(rng, num_rows=8, width=6)
        before = copy(blocks)
        outcome = under([rule] * 8, blocks, rows)
        starts = [0, *before.cu_num_draft.tolist()]
        for row in range(8):
            part = slice(starts[row], starts[row + 1])
            logits, drafts = before.logits[part].tolist(), before.draft_ids[part].tolist()
            strict = rows.remaining[row] == 0 or rows.gate[row] == 0
            cap = 0 if strict else int(rows.block_cap[row])
            expected = kept(rule, logits, drafts, cap, float(rows.remaining[row]))
            figures = outcome.table[row, [Column.ACCEPTED, Column.CHARGED]].tolist()
            assert tuple(figures) == expected
        exceptions += int(outcome.column(Column.EXCEPTIONS).sum())
    assert exceptions > 10


def test_rules_in_one_batch_decide_as_each_would_alone() -> None:
    """And an unknown row, as the plugin itself does."""
    rng = random.Random(0)
    for _ in range(30):
        rules = [rng.choice(RULES) for _ in range(10)]
        blocks, rows = step(rng, num_rows=10, width=5)
        together = copy(blocks)
        outcome = under(rules, together, rows)
        flat_row = torch.searchsorted(blocks.cu_num_draft, torch.arange(len(blocks.draft_ids)), right=True)
        for rule in set(rules):
            alone = copy(blocks)
            expected = under([rule] * 10, alone, rows)
            picked = torch.tensor([other == rule for other in rules])
            assert torch.equal(outcome.table[picked], expected.table[picked])
            assert torch.equal(together.argmax[picked[flat_row]], alone.argmax[picked[flat_row]])


def test_without_a_rule_a_row_is_the_plugins() -> None:
    """Requests that the comparison does not know meet the kernel unchanged."""
    blocks, rows = step(random.Random(1), num_rows=10, width=5)
    expected_blocks = copy(blocks)
    expected, outcome = empty(blocks), empty(blocks)
    verify_drafts_reference(expected_blocks, rows, expected)
    RulePerRequest(lambda: ["stranger"] * 10, verify_drafts)(blocks, rows, outcome)
    assert torch.equal(outcome.table, expected.table)
    assert torch.equal(blocks.argmax, expected_blocks.argmax)


def test_the_controls_blocks_are_decided_again_and_left_alone() -> None:
    """Under every arm, as that arm decides them; stop tokens hold though the control has no account."""
    rng = random.Random(2)
    arms = [Arm("a", 0, f"a{i}", rule, dict(LIMITS)) for i, rule in enumerate(RULES)]
    ids = ["r0", "r1", "r2"]
    chooser = RulePerRequest(lambda: ids, verify_drafts, arms)
    for request_id in ids:
        chooser.admit(
            request_id, f"{'strict' if request_id != 'r1' else 'paper'} task {request_id}", RULES[0], [STOP]
        )
    expected = {f"strict task r{row}": {arm.name: [0.0] * 5 for arm in arms} for row in (0, 2)}
    for _ in range(20):
        blocks, rows = step(rng, num_rows=3, width=5)
        budget = LIMITS["asd_budget"]
        given = {REMAINING: budget, BUDGET: budget, GATE: LIMITS["asd_gate"]}
        full = with_columns(rows, {**given, BLOCK_CAP: LIMITS["asd_block_cap"]})
        for arm in arms:
            outcome = under([arm.rule] * 3, copy(blocks), full)
            names = [Column.ACCEPTED, Column.STRICT_ACCEPTED, Column.EXCEPTIONS, Column.CHARGED]
            for row in (0, 2):
                if outcome.column(Column.NUM_DRAFT)[row]:
                    sums = expected[f"strict task r{row}"][arm.name]
                    for index, count in enumerate((1, *outcome.table[row, names].tolist())):
                        sums[index] += count
        before = blocks.argmax.clone()
        chooser(blocks, with_columns(rows, {REMAINING: 0.0}), empty(blocks))
        assert torch.equal(blocks.argmax, before)
    assert chooser.replay.sums == expected
    assert sum(sums[3] for found in expected.values() for sums in found.values()) > 20


def request(request_id: str, arm: str, **limits: Any) -> Any:
    """A new request as the scheduler announces it."""
    extra = {"asd_budget": 100.0, "asd_gate": 1.0, "asd_block_cap": 2, **limits, KEY: f"{arm} task prompt"}
    params = SimpleNamespace(extra_args=extra, temperature=0.0, stop_token_ids=[], eos_token_id=None)
    return SimpleNamespace(req_id=request_id, sampling_params=params, prompt_token_ids=[1])


def test_through_vllms_own_sampler() -> None:
    """The same drafts in one batch, four rules: each row emits what its rule keeps and is charged for it."""
    runner = v1_step.Runner(4)
    v1_step.attach(runner, AsdConfig(asd_budget=100.0, asd_gate=1.0, asd_block_cap=2), {})
    rules: dict[str, Rule] = {
        "strict": Walk("remaining"),
        "paper": Walk("remaining"),
        "realized": Walk("realized"),
        "best": LookAhead(),
    }
    chooser = install(runner, rules)
    new = [
        request("r0", "strict", asd_budget=0),
        *(request(f"r{i}", arm) for i, arm in enumerate(rules) if i),
    ]
    runner.execute_model(SimpleNamespace(scheduled_new_reqs=new, finished_req_ids=set()))

    # No: 1.5 nats for one token. No: 0.25 nats, and two matches. Bonus: token 9.
    row = torch.full((5, VOCAB), -5.0)
    for position, (best, second, gap) in enumerate(
        [(1, 2, 1.5), (3, 4, 0.25), (5, 0, 5.0), (6, 0, 5.0), (9, 0, 5.0)]
    ):
        row[position, best], row[position, second] = 5.0, 5.0 - gap
    runner.sampling = v1_step.sampling([0.0] * 4)
    output = runner.sample_tokens((row.repeat(4, 1), v1_step.metadata([[2, 4, 5, 6]] * 4)))

    assert output.output.sampled_token_ids.tolist() == [
        [1, -1, -1, -1, -1],
        [2, 4, 5, 6, 9],
        [1, -1, -1, -1, -1],
        [2, 4, 5, 6, 9],
    ]
    assert [runner.asd_verifier.ledger.spent(f"r{i}") for i in (1, 2, 3)] == [1.75, 0.0, 1.75]
    assert chooser.blocks["best task prompt"] == [(4, 0)]
    assert chooser.blocks["realized task prompt"] == [(0, 0)]
