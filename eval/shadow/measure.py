"""Decode prompts in shadow and enforced, and keep what every block did."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from vllm_asd.telemetry.counters import Counter
from vllm_asd.telemetry.open_reports import OpenReports
from vllm_asd.telemetry.request_totals import add_blocks
from vllm_asd.tools.answers import Prompt
from vllm_asd.tools.json_lines import open_to_append, read_lines

MODES = ("shadow", "enforce")
# The blocks are read where the scheduler sees them, which must be this process.
IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


@dataclass(frozen=True)
class Block:
    """One verification block.

    Attributes:
        position: Output tokens before it.
        accepted: Draft tokens kept; in shadow, that would have been.
        strict_accepted: What strict keeps of it.
        exceptions: [position in the output, target's token, regret in nats] of each.
    """

    position: int
    accepted: int
    strict_accepted: int
    exceptions: list[tuple[int, int, float]]


@dataclass(frozen=True)
class Run:
    """One prompt in one mode: its blocks and its answer's tokens."""

    task: str
    id: str
    mode: str
    blocks: list[Block]
    token_ids: list[int]


def read_runs(path: Path) -> list[Run]:
    """What an earlier call finished; a last line that was cut off is dropped."""
    runs = []
    for row in read_lines(path):
        blocks = [
            Block(**{**block, "exceptions": [tuple(e) for e in block["exceptions"]]})
            for block in row["blocks"]
        ]
        runs.append(Run(**{**row, "blocks": blocks}))
    return runs


def measure(
    engine: Callable[[], Any], prompts: Sequence[Prompt], path: Path, max_tokens: int, batch: int
) -> list[Run]:
    """Run what is not in `path` yet, a batch of prompts at a time in both modes.

    Args:
        engine: Makes the `LLM`; called only if there is anything to run.
        prompts: All prompts.
        path: The raw results, JSON lines.
        max_tokens: Longest answer.
        batch: Prompts at a time.

    Returns:
        All runs, earlier ones included.
    """
    runs = read_runs(path)
    done = {(run.task, run.id) for run in runs}
    todo = [prompt for prompt in prompts if (prompt.task, prompt.id) not in done]
    llm = engine() if todo else None
    for start in range(0, len(todo), batch):
        part = todo[start : start + batch]
        fresh = [run for mode in MODES for run in _decode(llm, part, mode, max_tokens)]
        with open_to_append(path) as raw:
            raw.writelines(json.dumps(asdict(run)) + "\n" for run in fresh)
        runs += fresh
        print(f"{min(start + batch, len(todo))} of {len(todo)} prompts", flush=True)
    return runs


def _decode(llm: Any, prompts: Sequence[Prompt], mode: str, max_tokens: int) -> Iterator[Run]:
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=max_tokens, extra_args={"asd_mode": mode})
    chats: Any = [[{"role": "user", "content": prompt.text}] for prompt in prompts]
    with _recorded() as blocks:
        outputs = llm.chat(chats, params, use_tqdm=False)
    for prompt, output in zip(prompts, outputs, strict=True):
        completion = output.outputs[0]
        yield Run(
            prompt.task,
            prompt.id,
            mode,
            blocks(completion.spec_decode_metrics.asd),
            list(completion.token_ids),
        )


@contextmanager
def _recorded() -> Iterator[Callable[[dict[str, Any]], list[Block]]]:
    """Gives, for a request's report, the blocks that it adds up."""
    blocks: dict[str, list[Block]] = defaultdict(list)
    # By the identity of the report, which is the very object that the response has.
    request_ids: dict[int, str] = {}
    report = OpenReports.report

    def add_and_keep(totals: Any, step: Any, tally: Any, positions: Any, num_kept: Any) -> Any:
        exceptions: dict[int, list[tuple[int, int, float]]] = defaultdict(list)
        for row, at, regret in zip(*(values.tolist() for values in tally.exceptions), strict=True):
            target = int(step.target_ids[row, at])
            exceptions[row].append((int(positions[row]) + at, target, regret))
        for row, request_id in enumerate(step.request_ids):
            accepted, strict = (
                int(tally.sums[row, counter])
                for counter in (Counter.ACCEPTED_TOKENS, Counter.STRICT_ACCEPTED_TOKENS)
            )
            blocks[request_id].append(Block(int(positions[row]), accepted, strict, exceptions[row]))
        return add_blocks(totals, step, tally, positions, num_kept)

    def report_and_note(self: Any, request_id: str, *arguments: Any) -> Any:
        made = report(self, request_id, *arguments)
        request_ids[id(made)] = request_id
        return made

    with (
        mock.patch("vllm_asd.telemetry.open_reports.add_blocks", add_and_keep),
        mock.patch.object(OpenReports, "report", report_and_note),
        # The position of every block, not only of those with exceptions.
        mock.patch.object(OpenReports, "located", lambda _, step: list(range(len(step.request_ids)))),
    ):
        yield lambda made: blocks[request_ids[id(made)]]
