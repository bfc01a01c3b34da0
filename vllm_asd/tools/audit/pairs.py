"""From a flat list of answers to pairs: the same item, answered by the arms that are compared."""

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_asd.tools.audit.items import Item


@dataclass(frozen=True)
class ItemArms:
    """One item's answers.

    Attributes:
        control: Under budget 0.
        asd: Under the limits audited.
        again: Under budget 0 once more; None where that arm is missing.
    """

    control: Item
    asd: Item
    again: Item | None


@dataclass(frozen=True)
class Paired:
    """Items with both arms, and how many answers had no partner."""

    rows: list[ItemArms]
    unpaired: int

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks, in the order in which they came."""
        return list(dict.fromkeys(row.control.task for row in self.rows))

    def of_task(self, task: str) -> list[ItemArms]:
        """The rows of one task."""
        return [row for row in self.rows if row.control.task == task]


def pair_items(items: Sequence[Item]) -> Paired:
    """Pair the answers of each item.

    Raises:
        ValueError: The arms answered different prompts under one name, only some of them have a score, or no
            item has both a control's and ASD's answer.
    """
    by_item: dict[tuple[str, str], dict[str, Item]] = {}
    for item in items:
        by_item.setdefault((item.task, item.item_id), {})[item.arm] = item
    rows = []
    for arms in by_item.values():
        _check_same_question(arms)
        if "control" in arms and "asd" in arms:
            rows.append(ItemArms(arms["control"], arms["asd"], arms.get("control-again")))
    if not rows:
        raise ValueError("no item has answers of both arms, control and asd; let the audit run to its end")
    paired = sum(2 + (row.again is not None) for row in rows)
    return Paired(rows, len(items) - paired)


def _check_same_question(arms: dict[str, Item]) -> None:
    item = next(iter(arms.values()))
    where = f"{item.task}/{item.item_id}"
    if len({item.prompt_hash for item in arms.values()}) > 1:
        raise ValueError(f"{where}: the arms answered different prompts; start the audit anew")
    if len({item.score is None for item in arms.values()}) > 1:
        raise ValueError(f"{where}: only some of the arms have a score; score all of them or none")
