"""The raw result: one line per prompt and arm."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vllm_asd.tools.json_lines import read_lines


@dataclass(frozen=True)
class Run:
    """What one request came to.

    Attributes:
        task: Data set.
        id: Prompt.
        arm: Name of the arm.
        token_ids: The answer.
        emitted: Tokens per engine step: first the prompt's own, which has no drafts, then those of each
            verification round.
        accepted: Draft tokens kept, as vLLM counts them.
        rounds: Verification rounds, as vLLM counts them.
        strict: What strict verification would have kept of each round's drafts, in draft tokens; None for the
            control.
        exceptions: Position in the answer and regret in nats, each.
        finish_reason: Why it ended.
        replay: Of the control alone: per arm the sums of :data:`eval.frontier.replay.COLUMNS` over its own
            blocks, had they been decided under that arm.
    """

    task: str
    id: str
    arm: str
    token_ids: list[int]
    emitted: list[int]
    accepted: int
    rounds: int
    strict: list[int] | None
    exceptions: list[tuple[int, float]]
    finish_reason: str
    replay: dict[str, list[float]] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Length of the answer."""
        return len(self.token_ids)

    @property
    def regret(self) -> float:
        """Nats, of the exceptions in the answer."""
        return sum(regret for _, regret in self.exceptions)


def read_runs(path: Path) -> list[Run]:
    """What was kept; a last line that was cut off is dropped."""
    runs = []
    for row in read_lines(path):
        row["exceptions"] = [(position, regret) for position, regret in row["exceptions"]]
        runs.append(Run(**row))
    return runs


def complete_prompts(runs: Sequence[Run], arms: Sequence[str]) -> dict[tuple[str, str], dict[str, Run]]:
    """The prompts that have all these arms: task and id to arm to run, in order of the file."""
    by_prompt: dict[tuple[str, str], dict[str, Run]] = {}
    for run in runs:
        by_prompt.setdefault((run.task, run.id), {})[run.arm] = run
    return {key: found for key, found in by_prompt.items() if all(arm in found for arm in arms)}
