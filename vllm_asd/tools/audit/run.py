"""The protocol: strict, ASD, strict on one server, then the likelihoods, then the report."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm_eval.api.task import Task
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from vllm_asd.tools.answers import prompt_digest
from vllm_asd.tools.audit.arm_model import CHAT_ROUTE, COMPLETIONS_ROUTE, ChatModel, CompletionsModel
from vllm_asd.tools.audit.collect import Answers, Samples, collect_items, ungraded_tasks
from vllm_asd.tools.audit.harness import TaskChoice, chance_of, evaluate_arm, runs_code
from vllm_asd.tools.audit.items import ARMS, Arm, write_items
from vllm_asd.tools.audit.likelihood import mean_loglikelihoods
from vllm_asd.tools.audit.limits import Audited
from vllm_asd.tools.audit.report import write_report
from vllm_asd.tools.audit.report_schema import AuditReport, CodeIsolation
from vllm_asd.tools.audit.responses import Record, RecordFile
from vllm_asd.tools.audit.sender import Sender
from vllm_asd.tools.server.served import Served
from vllm_asd.tools.settings_file import keep_settings
from vllm_asd.tools.tasks.isolation import confinement_here

ITEMS, SETTINGS, PRIVATE = "items.jsonl", "settings.json", "lm-eval"


@dataclass(frozen=True)
class Audit:
    """What to do.

    Attributes:
        served: The server.
        audited: The limits of the ASD arm.
        choice: The tasks.
        concurrency: Requests at a time, in every arm.
        folder: Where everything goes.
        margin: Largest tolerated loss of score, as a fraction.
        likelihood_items: Of how many items per task the answers' likelihood is measured; None takes all.
    """

    served: Served
    audited: Audited
    choice: TaskChoice
    concurrency: int
    folder: Path
    margin: float
    likelihood_items: int | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """What must not change between a killed run and the one that goes on."""
        served, choice = self.served, self.choice
        return {
            "model": Path(served.root).name,
            "vllm": served.vllm_version,
            "num_draft_tokens": served.num_draft_tokens,
            "server_limits": vars(served.limits),
            "limits": self.audited.xargs,
            "concurrency": self.concurrency,
            "chat": not choice.completions,
            "max_tokens": dict(choice.max_tokens),
        }


def refuse_calibrated(tasks: Mapping[str, Task], audit: Audit) -> None:
    """Refuse an audit on prompts that its limits were chosen on.

    Raises:
        ValueError: There are such prompts; says how many, and of which tasks.
    """
    calibrated = audit.audited.calibrated or frozenset()
    seen: dict[str, int] = {}
    total = 0
    for name, task in tasks.items():
        for _, document in task.doc_iterator(limit=audit.choice.limit):
            total += 1
            texts = [task.doc_to_text(document), *document.values()]
            if any(isinstance(text, str) and prompt_digest(text) in calibrated for text in texts):
                seen[name] = seen.get(name, 0) + 1
    if seen:
        where = ", ".join(f"{count} of {name}" for name, count in seen.items())
        raise ValueError(
            f"calibration used {sum(seen.values())} of these {total} prompts ({where}): audit on others"
        )


def run_audit(audit: Audit, tasks: Mapping[str, Task], meta: Mapping[str, Any]) -> AuditReport:
    """Run what is not done yet, and write the report.

    Args:
        audit: What to do.
        tasks: Loaded for it.
        meta: Provenance; what the audit knows itself is added.

    Raises:
        Unanswered: The server failed; what was answered is kept.
        ValueError: The folder was begun with other settings, or prompts were used in calibration.
    """
    refuse_calibrated(tasks, audit)
    keep_settings(audit.folder / SETTINGS, audit.settings)
    private = audit.folder / PRIVATE
    private.mkdir(exist_ok=True)
    # Prompts are in there: not for the repository.
    (private / ".gitignore").write_text("*\n", encoding="utf-8")
    answers: Answers = {}
    samples: Samples = {}
    kept = RecordFile(private / "responses.jsonl")
    scored = RecordFile(private / "likelihoods.jsonl")
    try:
        with _progress() as progress:
            for arm in ARMS:
                model = _model(audit, arm, kept, progress)
                samples[arm] = evaluate_arm(model, tasks, audit.choice, private / arm)
                answers[arm] = model.answers
            url = audit.served.base_url + COMPLETIONS_ROUTE
            sender = Sender(url, audit.concurrency, scored, progress)
            chosen = _first_of_each_task(answers, audit.likelihood_items)
            likelihoods = mean_loglikelihoods(audit.served, chosen, sender)
    finally:
        kept.close()
        scored.close()
    items = collect_items(answers, samples, likelihoods)
    write_items(audit.folder / ITEMS, items)
    known = _meta(audit, tasks, samples, meta)
    confined = _code_isolation(audit, tasks)
    return write_report(items, known, audit.folder, audit.margin, chance_of(tasks), confined)


def _first_of_each_task(answers: Answers, most: int | None) -> Iterator[Record]:
    for of_arm in answers.values():
        taken: Counter[str] = Counter()
        for (task, _), record in of_arm.items():
            taken[task] += 1
            if most is None or taken[task] <= most:
                yield record


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description:14}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    )


def _model(audit: Audit, arm: Arm, kept: RecordFile, progress: Progress) -> ChatModel | CompletionsModel:
    completions = audit.choice.completions
    url = audit.served.base_url + (COMPLETIONS_ROUTE if completions else CHAT_ROUTE)
    xargs = audit.audited.xargs if arm == "asd" else {"asd_budget": 0}
    kind = CompletionsModel if completions else ChatModel
    return kind(audit.served, arm, xargs, Sender(url, audit.concurrency, kept, progress))


def _code_isolation(audit: Audit, tasks: Mapping[str, Task]) -> CodeIsolation | None:
    if not any(map(runs_code, tasks.values())):
        return None
    return "lm-eval" if audit.choice.data_folder is None else confinement_here().kind


def _meta(
    audit: Audit, tasks: Mapping[str, Task], samples: Samples, meta: Mapping[str, Any]
) -> dict[str, Any]:
    notes = list(audit.audited.notes)
    ungraded = ungraded_tasks(samples["control"])
    if ungraded:
        notes.append(f"No right answer, so no score: {', '.join(ungraded)}.")
    return {
        **meta,
        **audit.settings,
        "drafter": audit.audited.drafter or "not known (give --limits a frozen file)",
        "tasks": {
            name: {
                "items": len({sample["doc_id"] for sample in samples["control"][name]}),
                "max_tokens": task.config.generation_kwargs.get("max_gen_toks"),
                "version": task.VERSION,
            }
            for name, task in tasks.items()
        },
        "calibration_prompts": None if audit.audited.calibrated is None else len(audit.audited.calibrated),
        "notes": notes,
    }
