"""From the answers of an audit to its report, and the report's files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vllm_asd.tools.audit import plots
from vllm_asd.tools.audit.groups import group, sight_of
from vllm_asd.tools.audit.items import Item
from vllm_asd.tools.audit.pairs import pair_items
from vllm_asd.tools.audit.report_html import html
from vllm_asd.tools.audit.report_markdown import markdown
from vllm_asd.tools.audit.report_schema import AuditReport, CodeIsolation
from vllm_asd.tools.audit.verdict import overall
from vllm_asd.tools.statistics.noninferiority import ALPHA, POWER

REPORT, MARKDOWN, HTML = "report.json", "report.md", "report.html"


def build_report(
    items: Sequence[Item],
    meta: Mapping[str, Any],
    margin: float,
    chance: Mapping[str, float] | None = None,
    code_isolation: CodeIsolation | None = None,
) -> AuditReport:
    """Compute the report.

    Args:
        items: The answers of all arms.
        meta: Provenance, kept as it is; `model` and `drafter` make the title.
        margin: Largest tolerated loss of score, as a fraction: 0.01 is one point.
        chance: Score of blind guessing, of the tasks where guessing scores.
        code_isolation: How what the model wrote was confined; None if no task runs code.

    Raises:
        ValueError: No item has both arms, arms answered different prompts, or the margin is out of range.
    """
    paired = pair_items(items)
    tasks = []
    for task in paired.tasks:
        rows = paired.of_task(task)
        sight = sight_of([row.control for row in rows], (chance or {}).get(task))
        tasks.append(group(task, rows, margin, sight))
    pooled = group("pooled", paired.rows, margin)
    return AuditReport(
        margin=margin,
        alpha=ALPHA,
        power=POWER,
        overall=overall(tasks, pooled, paired.rows, margin),
        pooled=pooled,
        tasks=tasks,
        unpaired=paired.unpaired,
        code_isolation=code_isolation,
        provenance=dict(meta),
    )


def write_report(
    items: Sequence[Item],
    meta: Mapping[str, Any],
    folder: Path,
    margin: float,
    chance: Mapping[str, float] | None = None,
    code_isolation: CodeIsolation | None = None,
) -> AuditReport:
    """Write `report.json`, `report.md`, `report.html` and the pictures into `folder`, made if need be.

    Arguments and errors are those of `build_report`.
    """
    report = build_report(items, meta, margin, chance, code_isolation)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / REPORT).write_text(report.model_dump_json(by_alias=True, indent=2) + "\n", encoding="utf-8")
    plots.draw_all(report, [item for item in items if item.arm == "asd"], folder)
    page = markdown(report)
    (folder / MARKDOWN).write_text(page, encoding="utf-8")
    (folder / HTML).write_text(html(report, page, folder), encoding="utf-8")
    return report


def json_schema() -> dict[str, Any]:
    """The JSON schema of `report.json`."""
    return AuditReport.model_json_schema(by_alias=True)
