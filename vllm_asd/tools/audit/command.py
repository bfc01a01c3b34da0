"""What `vllm-asd audit` does with its options."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lm_eval.api.task import Task
from rich.console import Console

from vllm_asd.tools.audit.harness import TaskChoice, load_tasks
from vllm_asd.tools.audit.limits import audited_limits, calibration
from vllm_asd.tools.audit.report_schema import AuditReport
from vllm_asd.tools.audit.run import SETTINGS, Audit, run_audit
from vllm_asd.tools.limits_option import GivenLimits, read_limits
from vllm_asd.tools.provenance import provenance
from vllm_asd.tools.server.served import inspect_server, require_detailed
from vllm_asd.tools.settings_file import refuse_other_folder
from vllm_asd.tools.tasks import BUILTIN_DATA


@dataclass(frozen=True)
class Options:
    """The command's options, read."""

    url: str
    served_model: str | None
    tasks: tuple[str, ...]
    data: Path | str | None
    limits: str | None
    prompts: int | None
    concurrency: int
    max_tokens: Mapping[str, int]
    completions: bool
    run_code: bool
    margin: float
    likelihood_items: int | None
    folder: Path


@dataclass(frozen=True)
class Prepared:
    """What the options come to, before any server is asked."""

    limits: GivenLimits | None
    choice: TaskChoice
    tasks: dict[str, Task]


def prepare(options: Options) -> Prepared:
    """Read the limits, load the tasks, look at the folder.

    Raises:
        ValueError: An option can't be used; one line.
    """
    refuse_other_folder(options.folder / SETTINGS)
    limits = None if options.limits is None else read_limits(options.limits)
    if limits is not None and limits.path is not None:
        calibration(limits.path)
    choice = TaskChoice(
        names=options.tasks,
        data_folder=BUILTIN_DATA if isinstance(options.data, str) else options.data,
        limit=options.prompts,
        max_tokens=options.max_tokens,
        completions=options.completions,
        run_code=options.run_code,
    )
    return Prepared(limits, choice, load_tasks(choice))


def audit(options: Options, prepared: Prepared, console: Console) -> AuditReport:
    """Ask the server what it is, and run.

    Raises:
        ValueError: The server can't be used (NotServed is one); one line.
        Unanswered: The server failed on the way.
    """
    served = inspect_server(options.url, options.served_model)
    require_detailed(served)
    audited = audited_limits(served, prepared.limits)
    for note in audited.notes:
        console.print(note, style="yellow", markup=False)
    plan = Audit(
        served=served,
        audited=audited,
        choice=prepared.choice,
        concurrency=options.concurrency,
        folder=options.folder,
        margin=options.margin,
        likelihood_items=options.likelihood_items,
    )
    return run_audit(plan, prepared.tasks, provenance(("vllm-asd",)))
