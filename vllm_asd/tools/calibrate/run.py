"""One calibration from the first request to the chosen setting, resumable from its folder."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from vllm_asd.tools.answers import Answer, Prompt, collect, read_answers, read_prompts
from vllm_asd.tools.calibrate.grid import Grid, Setting
from vllm_asd.tools.calibrate.outcome import Caps, Outcome, compare, measure_ledgers
from vllm_asd.tools.calibrate.rejections import ARM, XARGS, Rejections, first_rejections
from vllm_asd.tools.calibrate.search import Found, answers_needed, search
from vllm_asd.tools.data_option import DataFile
from vllm_asd.tools.server.served import Served
from vllm_asd.tools.settings_file import keep_settings

CONTROL = "strict"
_CONTROL_XARGS: dict[str, Any] = {"asd_budget": 0}
CONDITIONS = "conditions.json"
_ANSWERS = "answers.jsonl"


@dataclass(frozen=True)
class Plan:
    """What is run.

    Attributes:
        served: The server.
        data: Where the prompts come from.
        prompts: All of them, the data sets alternating, so that each rung has its share of each.
        grid: What is tried.
        caps: What is allowed.
        max_tokens: Longest answer.
        concurrency: Requests at a time.
        folder: For the answers.
        pricing: The server's, as the user says it.
    """

    served: Served
    data: Sequence[DataFile]
    prompts: Sequence[Prompt]
    grid: Grid
    caps: Caps
    max_tokens: int
    concurrency: int
    folder: Path
    pricing: str

    def conditions(self) -> dict[str, Any]:
        """What must not change between a run and its resumption."""
        return {
            "model": self.served.model,
            "vllm": self.served.vllm_version,
            "num_draft_tokens": self.served.num_draft_tokens,
            "max_tokens": self.max_tokens,
            "pricing": self.pricing,
            "data": {file.name: file.sha256 for file in self.data},
        }

    def announcement(self) -> str:
        """What is about to happen, and how long it will be."""
        answers = 2 * len(self.prompts) + answers_needed(len(self.grid), len(self.prompts))
        length = f"up to {self.max_tokens} tokens"
        return (
            f"{self.served.model} at {self.served.base_url} (vLLM {self.served.vllm_version}, "
            f"K={self.served.num_draft_tokens}, pricing {self.pricing!r} as you say): "
            f"{len(self.grid)} settings, {len(self.prompts)} prompts, about {answers} answers of {length}"
        )


@dataclass(frozen=True)
class Calibration:
    """What came out.

    Attributes:
        rejections: First strict rejections.
        rejections_by_task: Likewise for each data set that has enough of them.
        found: The search's result.
        by_task: The best setting's outcome on each data set.
        control_noise: Share of answers in which two strict runs differ: what is not the setting's doing.
    """

    rejections: Rejections
    rejections_by_task: Mapping[str, Rejections]
    found: Found
    by_task: Mapping[str, Outcome]
    control_noise: float


def deal(data: Sequence[DataFile], total: int) -> list[Prompt]:
    """The first prompts of every file in turn, about `total` together.

    Raises:
        OSError: A file can't be read.
        ValueError: A line is no prompt, a prompt stands there twice, or there are fewer than two.
    """
    share = -(-total // len(data))
    piles = []
    for file in data:
        try:
            piles.append(list(read_prompts(file.name, file.path, share)))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            wanted = "each line must be JSON with `id` and `prompt`"
            raise ValueError(f"{file.path}: {wanted} ({error!r})") from None
    prompts = [p for p in chain.from_iterable(zip_longest(*piles)) if p is not None][:total]
    if len({(p.task, p.id) for p in prompts}) < len(prompts):
        raise ValueError("an `id` stands twice in the same data set: make them unique")
    if len(prompts) < 2:
        raise ValueError("fewer than two prompts: give more with --data or --prompts")
    return prompts


def calibrate(plan: Plan) -> Calibration:
    """Measure the first rejections, then search around their lower quartile.

    Raises:
        ValueError: Too little to calibrate on, a server too strict for the grid, a folder begun under
            other conditions, or no setting within the caps; one line each.
        openai.OpenAIError: A request failed. What was finished is in the folder.
    """
    plan.grid.refuse_narrower(plan.served.limits)
    keep_settings(plan.folder / CONDITIONS, plan.conditions())
    arms = {ARM: XARGS, CONTROL: _CONTROL_XARGS}
    both = _by_arm(_ask(plan, arms, len(plan.prompts)))
    looking, control = (_in_order(plan.prompts, both[arm]) for arm in arms)
    rejections = first_rejections(looking)
    plan.grid.refuse_narrower(plan.served.limits, rejections.gate)

    def run(settings: Sequence[Setting], prompts: int) -> list[Outcome]:
        asked = _by_arm(_ask(plan, {s.arm: s.keys for s in settings}, prompts))
        return [_outcome(setting, plan.prompts[:prompts], asked) for setting in settings]

    def measure(settings: Sequence[Setting], prompts: int) -> list[Outcome]:
        return measure_ledgers(settings, lambda some: run(some, prompts))

    found = search(plan.grid.settings(rejections.gate), len(plan.prompts), plan.caps, measure)
    answers = _by_arm(read_answers(plan.folder / _ANSWERS))
    by_task = {
        file.name: _outcome(found.best.ran, prompts, answers)
        for file in plan.data
        if (prompts := [p for p in plan.prompts if p.task == file.name])
    }
    noise = [a.digest != b.digest for a, b in zip(looking, control, strict=True)]
    return Calibration(rejections, _rejections_by_task(looking), found, by_task, sum(noise) / len(noise))


def _rejections_by_task(looking: Sequence[Answer]) -> dict[str, Rejections]:
    found = {}
    for task in dict.fromkeys(answer.task for answer in looking):
        with suppress(ValueError):
            found[task] = first_rejections([answer for answer in looking if answer.task == task])
    return found


Key = tuple[str, str]


def _ask(plan: Plan, arms: Mapping[str, Mapping[str, Any]], prompts: int) -> list[Answer]:
    served = plan.served
    path = plan.folder / _ANSWERS
    some = plan.prompts[:prompts]
    return asyncio.run(
        collect(served.base_url, served.model, some, arms, path, plan.max_tokens, plan.concurrency)
    )


def _by_arm(answers: Sequence[Answer]) -> dict[str, dict[Key, Answer]]:
    arms: dict[str, dict[Key, Answer]] = {}
    for answer in answers:
        arms.setdefault(answer.arm, {})[answer.task, answer.id] = answer
    return arms


def _in_order(prompts: Sequence[Prompt], answers: Mapping[Key, Answer]) -> list[Answer]:
    return [answers[prompt.task, prompt.id] for prompt in prompts]


def _outcome(
    setting: Setting, prompts: Sequence[Prompt], answers: Mapping[str, Mapping[Key, Answer]]
) -> Outcome:
    control, relaxed = (_in_order(prompts, answers[arm]) for arm in (CONTROL, setting.arm))
    return compare(setting, control, relaxed)
