"""Run the arms side by side in one engine in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from eval.frontier.arms import REPLAYED, SERVER, Arm
from eval.frontier.runs import Run, read_runs
from eval.frontier.seam import KEY, RulePerRequest, install
from vllm_asd.tools.answers import Prompt
from vllm_asd.tools.json_lines import open_to_append

IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
NGRAM = "ngram"
_NGRAM = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
_PLAIN_EVERY = 25


@dataclass(frozen=True)
class Settings:
    """What all requests of a folder have in common.

    Attributes:
        target: Folder of the target model.
        drafter: Folder of the drafter; None for a method that has none.
        method: vLLM's name of the drafting method.
        draft_tokens: K.
        dtype: vLLM's `--dtype` for both models.
        max_tokens: Longest answer.
        ignore_eos: Whether every answer gets that long.
        repetition_penalty: vLLM's; 1 for none.
        batch: Requests at a time.
    """

    target: Path
    drafter: Path | None
    method: str
    draft_tokens: int
    dtype: str
    max_tokens: int
    ignore_eos: bool
    repetition_penalty: float
    batch: int

    def described(self) -> dict[str, Any]:
        """Plain values, folders by their names; not the batch, which decides nothing."""
        row = asdict(self)
        row.pop("batch")
        return {**row, "target": self.target.name, "drafter": self.drafter and self.drafter.name}

    def speculation(self) -> dict[str, Any]:
        """What vLLM is told about drafting; ASD's keys come on top."""
        own = _NGRAM if self.drafter is None else {"model": str(self.drafter)}
        return {"method": self.method, "num_speculative_tokens": self.draft_tokens, **own}


def run_arms(settings: Settings, prompts: Sequence[Prompt], arms: Sequence[Arm], path: Path) -> None:
    """Run what is not in `path` yet and append each answer to it as it comes.

    All arms of a prompt enter one after the other, so that they run in the same batches.

    Args:
        settings: Of the engine and of all requests.
        prompts: In the order in which they are to be done.
        arms: All of them, for each prompt.
        path: The raw results, JSON lines.
    """
    done = {(run.task, run.id, run.arm) for run in read_runs(path)}
    todo = [(p, arm) for p in prompts for arm in arms if (p.task, p.id, arm.name) not in done]
    total = len(prompts) * len(arms)
    if not todo:
        return
    engine = _Engine(settings, arms)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with open_to_append(path) as raw, Progress(*columns) as progress:
        bar = progress.add_task("answers", total=total, completed=total - len(todo))
        for number, run in enumerate(engine.answers(todo), start=1):
            raw.write(json.dumps(asdict(run)) + "\n")
            raw.flush()
            progress.advance(bar)
            if not progress.console.is_terminal and number % _PLAIN_EVERY == 0:
                progress.console.print(f"{total - len(todo) + number} of {total} answers")
    engine.close()


@dataclass
class _UnderWay:
    prompt: Prompt
    arm: Arm
    token_ids: list[int] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    # Of each step behind the first, as `Run.strict`.
    strict: list[int] = field(default_factory=list)


class _Engine:
    """vLLM in this process, with a rule per request."""

    def __init__(self, settings: Settings, arms: Sequence[Arm]) -> None:
        from vllm import LLM

        self.settings = settings
        self._llm: Any = LLM(
            model=str(settings.target),
            dtype=settings.dtype,
            enforce_eager=True,
            max_num_seqs=settings.batch,
            per_request_spec_decode_metrics="detailed",
            disable_log_stats=False,
            speculative_config={**settings.speculation(), "rejection_sample_method": "asd", **SERVER},
        )
        self._engine = self._llm.llm_engine
        self._core = self._engine.engine_core.engine_core
        runner = self._core.model_executor.driver_worker.worker.model_runner
        self._chooser: RulePerRequest = install(runner, {arm.name: arm.rule for arm in arms}, REPLAYED)

    def answers(self, todo: Sequence[tuple[Prompt, Arm]]) -> Iterator[Run]:
        """Feed the engine and give each answer as it ends."""
        waiting = iter(todo)
        under_way: dict[str, _UnderWay] = {}
        while True:
            while len(under_way) < self.settings.batch and (entry := next(waiting, None)) is not None:
                key = f"{entry[1].name} {entry[0].task} {entry[0].id}"
                under_way[key] = _UnderWay(*entry)
                self._add(key, *entry)
            if not under_way:
                return
            for output in self._engine.step():
                request, completion = under_way[output.request_id], output.outputs[0]
                if completion.token_ids:
                    if request.emitted:
                        request.strict.append(self._strict_accepted(output.request_id))
                    request.token_ids += completion.token_ids
                    request.emitted.append(len(completion.token_ids))
                if output.finished:
                    del under_way[output.request_id]
                    yield self._run(output.request_id, request, completion)

    def _add(self, key: str, prompt: Prompt, arm: Arm) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        token_ids = self._llm.get_tokenizer().apply_chat_template(
            [{"role": "user", "content": prompt.text}], add_generation_prompt=True, return_dict=False
        )
        params = SamplingParams(
            temperature=0,
            max_tokens=self.settings.max_tokens,
            ignore_eos=self.settings.ignore_eos,
            repetition_penalty=self.settings.repetition_penalty,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args={**arm.limits, KEY: key},
        )
        self._engine.add_request(key, {"prompt_token_ids": token_ids}, params)

    def _strict_accepted(self, key: str) -> int:
        """What strict would have kept of the block that this step decided; 0 if there was none.

        A step has none where a preempted request is computed anew.
        """
        decided = self._chooser.blocks.get(key, [])
        return decided.pop().strict_accepted if decided else 0

    def _run(self, key: str, request: _UnderWay, completion: Any) -> Run:
        metrics: Mapping[str, Any] = completion.spec_decode_metrics.to_dict()
        report = metrics["asd"]
        self._chooser.blocks.pop(key, None)
        return Run(
            task=request.prompt.task,
            id=request.prompt.id,
            arm=request.arm.name,
            token_ids=request.token_ids,
            emitted=request.emitted,
            accepted=metrics["num_accepted_draft_tokens"],
            rounds=metrics["num_spec_steps"],
            strict=request.strict if report["mode"] == "enforce" else None,
            exceptions=[(e["position"], e["regret"]) for e in report["exception_trace"]],
            finish_reason=completion.finish_reason,
            replay=dict(self._chooser.replay.sums.pop(key, {})),
        )

    def close(self) -> None:
        """Stop the engine."""
        self._core.shutdown()
