"""One answered item of an audit, and the file of them: what the running part writes and the report reads.

The file holds answers, scores and counts, but no prompt: a prompt is named by its hash.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vllm_asd.tools.whole_file import write_whole

Arm = Literal["control", "asd", "control-again"]
ARMS: tuple[Arm, ...] = ("control", "asd", "control-again")

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class Item(BaseModel):
    """One answer of one arm. The three arms run in the order strict, ASD, strict."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str = Field(min_length=1, description="Name of the task")
    item_id: str = Field(min_length=1, description="Name of the item, unique within its task")
    arm: Arm = Field(description="control (budget 0), asd (the limits audited), or control-again (budget 0)")
    prompt_hash: Sha256 = Field(description="SHA-256 of the prompt's text; the prompt itself is not kept")
    answer: str = Field(description="The answer's text")
    answer_hash: Sha256 = Field(description="SHA-256 of the answer's token ids")
    extracted: str | None = Field(
        description="What the task reads out of the answer; null when nothing is found"
    )
    score: Annotated[float, Field(ge=0, le=1)] | None = Field(
        description="The task's score: 0 or 1, or graded in between; null where the task has no right answer"
    )
    tokens: Count = Field(description="Tokens of the answer")
    finish_reason: str = Field(description="Why the answer ended, as the server says it")
    latency_s: NonNegative = Field(description="Wall time of the request in seconds")
    rounds: Count = Field(description="Verification rounds: forward passes of the target that scored a block")
    accepted: Count = Field(description="Draft tokens accepted")
    strict_accepted: Count | None = Field(
        description="What strict verification would have accepted of the same blocks; null if not counted"
    )
    exceptions: Count = Field(description="Accepted draft tokens that were not the target's argmax")
    regret_spent: NonNegative = Field(description="Summed regret of the exceptions in nats")
    exception_regrets: tuple[NonNegative, ...] = Field(description="Regret of each exception in nats")
    exhausted_at: Count | None = Field(
        description="Token at which the budget was spent; null if it never was"
    )
    loglikelihood: Annotated[float, Field(allow_inf_nan=False)] | None = Field(
        description="The target's mean log-likelihood per token of the answer in nats; null if not measured"
    )

    @property
    def key(self) -> tuple[str, str, str]:
        """Task, item and arm: what no two items of an audit share."""
        return self.task, self.item_id, self.arm


def read_items(path: Path) -> list[Item]:
    """The items of a file, in the file's order; an unfinished last line (a killed run) is left out.

    Raises:
        ValueError: A finished line is no item, or an item stands there twice; names the file and the line.
    """
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")[:-1]
    items: dict[tuple[str, str, str], Item] = {}
    for number, line in enumerate(lines, start=1):
        item = _parse(line, f"{path}:{number}")
        if item.key in items:
            raise ValueError(f"{path}:{number}: {'/'.join(item.key)} stands twice; remove one of the lines")
        items[item.key] = item
    return list(items.values())


def _parse(line: str, where: str) -> Item:
    try:
        return Item.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "line"
        raise ValueError(f"{where}: {key}: {first['msg']}") from error


def write_items(path: Path, items: Iterable[Item]) -> None:
    """Writes the file, in place of an earlier one."""
    write_whole(path, "".join(item.model_dump_json() + "\n" for item in items))
