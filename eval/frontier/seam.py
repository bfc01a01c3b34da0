"""Give each request its own rule, at the place where the plugin decides.

A rule only says which mismatches it would keep. They are handed to the plugin's kernel as the positions in
scope, with no gate: the walk, the account, the counts and the rewriting are the plugin's for every rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eval.frontier.arms import STRICT, Arm
from eval.frontier.lookahead import best_prefix
from eval.frontier.replay import Replay
from eval.frontier.rules import LookAhead, Mismatches, Rule, Tolerance, Walk
from vllm_asd.kernels import Column, DraftBlocks, Outcome, RowLimits, pad_rows, row_positions, score_drafts
from vllm_asd.kernels.accounts import GATE
from vllm_asd.policy.pricing import in_draft, tokens_at_stake
from vllm_asd.upstream.scheduled import stop_ids
from vllm_asd.verification import Decide, Verifier

KEY = "frontier_key"


class Block(NamedTuple):
    """What one verification round of one request decided, in draft tokens kept."""

    accepted: int
    strict_accepted: int


class RulePerRequest:
    """Stands in for ``verify_drafts``: decides each row by the rule of its request.

    Attributes:
        blocks: What was decided, per key, in order.
        replay: What the rules of the replayed arms would have kept of the control's blocks.
    """

    def __init__(
        self, request_ids: Callable[[], list[str]], native: Decide, replayed: Sequence[Arm] = ()
    ) -> None:
        """Start without requests.

        Args:
            request_ids: The ids of the running batch, in its order.
            native: The plugin's ``verify_drafts``.
            replayed: Arms that the control's blocks are decided again under.
        """
        self._request_ids = request_ids
        self._native = native
        self._rules: dict[str, tuple[str, Rule]] = {}
        self._stop_ids: dict[str, list[int]] = {}
        self.blocks: dict[str, list[Block]] = {}
        self.replay = Replay(replayed, self._decide)

    def admit(self, request_id: str, key: str, rule: Rule, stop_ids: Iterable[int] = ()) -> None:
        """Say what a request is called, which rule it has, and which tokens end it."""
        self._rules[request_id] = (key, rule)
        self._stop_ids[request_id] = sorted(stop_ids)
        self.blocks.setdefault(key, [])

    def release(self, request_id: str) -> None:
        """Forget a finished request; what it decided stays."""
        self._rules.pop(request_id, None)
        self._stop_ids.pop(request_id, None)

    def __call__(self, blocks: DraftBlocks, rows: RowLimits, outcome: Outcome) -> None:
        """Decide one step; ``verify_drafts``'s contract.

        Raises:
            RuntimeError: The step does not bring all rows of the batch at once, as V1 does.
        """
        ids = self._request_ids()
        if len(ids) != blocks.num_rows:
            raise RuntimeError(f"a step of {blocks.num_rows} rows in a batch of {len(ids)}")
        controls = {row: key for row, i in enumerate(ids) if (key := self._key(i)).split(" ")[0] == STRICT}
        self.replay.observe(controls, {row: self._stop_ids[ids[row]] for row in controls}, blocks)
        rules = [self._rules[i][1] if i in self._rules else Walk(rows.pricing) for i in ids]
        self._decide(blocks, rows, outcome, rules)
        names = (Column.NUM_DRAFT, Column.ACCEPTED, Column.STRICT_ACCEPTED)
        columns = (outcome.counts(name).tolist() for name in names)
        for request_id, num_draft, accepted, strict in zip(ids, *columns, strict=True):
            if num_draft and request_id in self._rules:
                self.blocks[self._key(request_id)].append(Block(accepted, strict))

    def _key(self, request_id: str) -> str:
        return self._rules[request_id][0] if request_id in self._rules else ""

    def _decide(self, blocks: DraftBlocks, rows: RowLimits, outcome: Outcome, rules: list[Rule]) -> None:
        blocks = blocks._replace(width=outcome.width)
        _verify(self._native, blocks, _with_rules(blocks, rows, rules), outcome, rules)


def _verify(
    native: Decide, blocks: DraftBlocks, rows: RowLimits, outcome: Outcome, rules: list[Rule]
) -> None:
    """Decide the rows by the plugin's kernel, once per pricing; a closed row is left as it is."""
    realized = torch.tensor([rule == Walk("realized") for rule in rules])
    native(blocks, _but(rows, realized)._replace(pricing="remaining"), outcome)
    if realized.any():
        other = Outcome(outcome.table.clone(), outcome.width)
        native(blocks, _but(rows, ~realized)._replace(pricing="realized"), other)
        outcome.table[realized] = other.table[realized]


def _but(rows: RowLimits, closed: Tensor) -> RowLimits:
    """The same limits with more rows closed."""
    return rows._replace(closed=closed if rows.closed is None else rows.closed | closed)


def _with_rules(blocks: DraftBlocks, rows: RowLimits, rules: list[Rule]) -> RowLimits:
    """Put what the rules choose into the scope, and lift the gate where they do; :class:`Walk` has none."""
    chosen = [row for row, rule in enumerate(rules) if not isinstance(rule, Walk)]
    if not chosen:
        return rows
    scored = _score(blocks, rows)
    scope = torch.ones_like(scored.is_match) if rows.in_scope is None else rows.in_scope.clone()
    for rule in set(rules):
        picked = torch.tensor([rule == other for other in rules])
        if isinstance(rule, LookAhead):
            scope &= _within_best_prefix(scored, rows) | ~picked.unsqueeze(1)
        elif isinstance(rule, Tolerance):
            scope &= _tolerated(rule, blocks, scored, picked) | ~picked.unsqueeze(1)
    # In a copy: the accounts are the ledger's. A gate of 0 is strict, whatever the rule.
    accounts = rows.accounts.clone()
    slots = rows.slots[chosen]
    gate = accounts[slots, GATE]
    accounts[slots, GATE] = torch.where(gate > 0, torch.inf, gate)
    return rows._replace(in_scope=scope, accounts=accounts)


class _Scored(NamedTuple):
    """[R, K] regrets (+inf where the plugin keeps nothing) and matches; [R] drafts per row."""

    regret: Tensor
    is_match: Tensor
    num_draft: Tensor


def _score(blocks: DraftBlocks, rows: RowLimits) -> _Scored:
    cu, width = blocks.cu_num_draft, blocks.width
    scores = score_drafts(blocks.logits, blocks.argmax, blocks.draft_ids)
    ids = pad_rows(blocks.draft_ids, cu, width, -1).to(torch.int64)
    targets = pad_rows(blocks.argmax, cu, width, -1)
    num_draft = ((ids >= 0) & (ids < blocks.logits.shape[1])).cumprod(1).sum(1)
    refused = rows.protected.hold(ids) | rows.protected.hold(targets)
    if rows.in_scope is not None:
        refused |= ~rows.in_scope
    regret = pad_rows(scores.regret, cu, width, torch.inf).masked_fill(refused, torch.inf)
    return _Scored(regret, pad_rows(scores.is_match, cu, width, False), num_draft)


def _within_best_prefix(scored: _Scored, rows: RowLimits) -> Tensor:
    """[R, K]; the best prefix ends before a mismatch or at the end, so its scope is enough to walk it."""
    best = best_prefix(*scored, rows.remaining, rows.gate, rows.block_cap)
    return in_draft(best.accepted, scored.is_match.shape[1])


def _tolerated(rule: Tolerance, blocks: DraftBlocks, scored: _Scored, picked: Tensor) -> Tensor:
    """[R, K]; the rule is asked only where it decides something, since a softmax is dear."""
    open_to_it = ~scored.is_match & scored.regret.isfinite() & picked.unsqueeze(1)
    open_to_it &= in_draft(scored.num_draft, blocks.width)
    row, position = row_positions(blocks.cu_num_draft, blocks.draft_ids.shape[0])
    flat = open_to_it[row, position].nonzero().squeeze(1)
    place = (row[flat], position[flat])
    at = Mismatches(
        logits=blocks.logits[flat],
        argmax=blocks.argmax[flat],
        draft_ids=blocks.draft_ids[flat].to(torch.int64),
        matches_behind=tokens_at_stake(scored.is_match, scored.num_draft, "realized")[place] - 1,
    )
    tolerated = torch.zeros_like(scored.is_match)
    tolerated[place] = rule.tolerates(at)
    return tolerated


def install(runner: Any, rules: Mapping[str, Rule], replayed: Sequence[Arm] = ()) -> RulePerRequest:
    """Let the requests of a V1 runner in this process choose their rule.

    A request names itself in ``extra_args[KEY]``; its rule is that of the name before the first blank.

    Args:
        runner: With the plugin's seam attached.
        rules: By name of the arm.
        replayed: Arms that the control's blocks are decided again under.
    """
    verifier: Verifier = runner.asd_verifier
    chooser = RulePerRequest(lambda: list(runner.input_batch.req_ids), verifier.decide, replayed)
    execute = runner.execute_model

    def execute_model(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        for request_id in scheduler_output.finished_req_ids:
            chooser.release(request_id)
        for new in scheduler_output.scheduled_new_reqs:
            key = (new.sampling_params.extra_args or {}).get(KEY)
            if key is not None:
                stop = stop_ids(new.sampling_params)
                chooser.admit(new.req_id, key, rules[key.split(" ")[0]], stop)
        return execute(scheduler_output, *args, **kwargs)

    runner.execute_model = execute_model
    verifier.decide = chooser
    return chooser
