"""The audit's use of lm-eval: load tasks, fit them to the audit, evaluate one arm, keep lm-eval's files."""

import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# The audit shows its own progress; lm-eval's bars can only be turned off before it is imported.
os.environ.setdefault("TQDM_DISABLE", "1")

from lm_eval import simple_evaluate
from lm_eval.api.task import Task
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

from vllm_asd.tools.audit.arm_model import ChatModel, CompletionsModel
from vllm_asd.tools.tasks import TASK_FOLDER
from vllm_asd.tools.tasks.documents import NoDocuments
from vllm_asd.tools.tasks.isolation import confinement_here

# lm-eval warns about each task's ordinary ways of loading.
logging.getLogger("lm_eval").setLevel(logging.ERROR)
Sample = dict[str, Any]


@dataclass(frozen=True)
class TaskChoice:
    """Which tasks, and how they are asked.

    Attributes:
        names: Of our tasks with a data folder, of lm-eval's without.
        data_folder: Holds `<set>/audit.jsonl`; None loads from the Hugging Face hub.
        limit: Items per task; None takes all.
        max_tokens: Longest answer by task; the key "" is for all others. Missing: the task's own.
        completions: Ask a base model, without a chat template.
        run_code: Tasks may run what the model wrote.
    """

    names: Sequence[str]
    data_folder: Path | None
    limit: int | None
    max_tokens: Mapping[str, int] = field(default_factory=dict)
    completions: bool = False
    run_code: bool = False


def our_task_names() -> list[str]:
    """The tasks that read a data folder."""
    return sorted(path.stem for path in TASK_FOLDER.glob("*.yaml"))


def load_tasks(choice: TaskChoice) -> dict[str, Task]:
    """Load the tasks and fit them to the choice.

    Raises:
        ValueError: An unknown task, one without data, one that generates no answer, or one that runs code
            without leave, or that nothing here can confine; one line.
    """
    tasks: dict[str, Task] = _manager(choice).load(list(choice.names))["tasks"]
    wrong = set(choice.max_tokens) - set(tasks) - {""}
    if wrong:
        raise ValueError(f"--max-tokens names {min(wrong)}, which is not among the tasks: {', '.join(tasks)}")
    for name, task in tasks.items():
        if task.OUTPUT_TYPE != "generate_until":
            raise ValueError(
                f"{name} is a {task.OUTPUT_TYPE} task and generates no answer: choose one that does, "
                "such as mmlu_generative"
            )
        if runs_code(task):
            _require_leave(name, choice)
        _fit(name, task, choice)
    return tasks


def runs_code(task: Task) -> bool:
    """Whether scoring a task runs what the model wrote."""
    return bool(getattr(task, "UNSAFE_CODE", False))


def _require_leave(name: str, choice: TaskChoice) -> None:
    if not choice.run_code:
        raise ValueError(f"{name} runs code that the model writes: allow it with --run-code")
    if choice.data_folder is not None:
        confinement_here()  # refused now, not after hours of answers


def evaluate_arm(
    model: ChatModel | CompletionsModel, tasks: Mapping[str, Task], choice: TaskChoice, folder: Path
) -> dict[str, list[Sample]]:
    """Have lm-eval ask, extract and score all tasks; its results and samples go to `folder`.

    Returns:
        lm-eval's samples of each task.
    """
    tracker = EvaluationTracker(output_path=str(folder))
    results = simple_evaluate(
        model=model,
        model_args={"model": model.model},
        tasks=list(tasks.values()),
        # They are loaded; left to itself, lm-eval would read all its own tasks' files again.
        task_manager=_manager_of(None),
        limit=choice.limit,
        bootstrap_iters=0,
        evaluation_tracker=tracker,
        apply_chat_template=not choice.completions,
        confirm_run_unsafe_code=choice.run_code,
    )
    samples: dict[str, list[Sample]] = results.pop("samples")
    # A run that was resumed writes them anew.
    shutil.rmtree(folder, ignore_errors=True)
    tracker.save_results_aggregated(results, samples)
    for name, of_task in samples.items():
        tracker.save_results_samples(name, [dict(sample) for sample in of_task])
    return samples


def chance_of(tasks: Mapping[str, Task]) -> dict[str, float]:
    """Score of blind guessing, where a task says it."""
    return {
        name: float(metadata["chance"]) for name, task in tasks.items() if "chance" in (metadata := _of(task))
    }


def _manager(choice: TaskChoice) -> TaskManager:
    manager = TaskManager() if choice.data_folder is None else _manager_of(choice.data_folder)
    unknown = [name for name in choice.names if name not in manager.all_tasks]
    if unknown:
        known = (
            ", ".join(our_task_names()) if choice.data_folder else "`lm-eval ls tasks` lists what there is"
        )
        raise ValueError(f"there is no task {unknown[0]}: {known}")
    return manager


def _manager_of(data_folder: Path | None) -> TaskManager:
    metadata = {"data_folder": str(data_folder)} if data_folder else None
    return TaskManager(include_path=TASK_FOLDER, include_defaults=False, metadata=metadata)


def _fit(name: str, task: Task, choice: TaskChoice) -> None:
    for_base = _of(task).get("completions")
    if choice.completions and for_base:
        task.set_config("doc_to_text", for_base["doc_to_text"])
        task.set_config("generation_kwargs", {"until": list(for_base["until"])}, update=True)
    longest = choice.max_tokens.get(name, choice.max_tokens.get(""))
    if longest is not None:
        task.set_config("generation_kwargs", {"max_gen_toks": longest}, update=True)


def _of(task: Task) -> dict[str, Any]:
    return task.config.metadata or {}


__all__ = [
    "NoDocuments",
    "Sample",
    "TaskChoice",
    "chance_of",
    "evaluate_arm",
    "load_tasks",
    "our_task_names",
    "runs_code",
]
