"""What `vllm-asd audit` does with its options."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from vllm_asd.tools.audit.harness import TaskChoice, load_tasks
from vllm_asd.tools.audit.limits import audited_limits
from vllm_asd.tools.audit.report_schema import AuditReport
from vllm_asd.tools.audit.run import Audit, run_audit
from vllm_asd.tools.provenance import provenance
from vllm_asd.tools.server.served import inspect_server, require_detailed
from vllm_asd.tools.tasks import BUILTIN_DATA

BUILTIN = "builtin"


@dataclass(frozen=True)
class Options:
    """The command's options, read."""

    url: str
    model: str | None
    tasks: tuple[str, ...]
    data: str | None
    config: Path | None
    limits: str | None
    limit: int | None
    concurrency: int
    max_tokens: Mapping[str, int]
    completions: bool
    run_code: bool
    margin: float
    likelihood_items: int | None
    folder: Path


def audit(options: Options, console: Console) -> AuditReport:
    """Ask the server what it is, load the tasks, run.

    Raises:
        ValueError: An option or the server can't be used (NotServed is one); one line.
        Unanswered: The server failed on the way.
    """
    served = inspect_server(options.url, options.model)
    require_detailed(served)
    audited = audited_limits(served, options.config, options.limits)
    choice = TaskChoice(
        names=options.tasks,
        data_folder=_data_folder(options.data),
        limit=options.limit,
        max_tokens=options.max_tokens,
        completions=options.completions,
        run_code=options.run_code,
    )
    for note in audited.notes:
        console.print(note, style="yellow", markup=False)
    tasks = load_tasks(choice)
    plan = Audit(
        served=served,
        audited=audited,
        choice=choice,
        concurrency=options.concurrency,
        folder=options.folder,
        margin=options.margin,
        likelihood_items=options.likelihood_items,
    )
    return run_audit(plan, tasks, provenance(("vllm-asd",)))


def _data_folder(data: str | None) -> Path | None:
    if data is None:
        return None
    folder = BUILTIN_DATA if data == BUILTIN else Path(data)
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}: correct --data")
    return folder
