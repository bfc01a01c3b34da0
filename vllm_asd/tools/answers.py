"""Send prompts under several arms, and keep one line per answer, so that nothing finished is lost."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import openai
from rich.progress import Progress

from vllm_asd.tools.concurrency import run_all
from vllm_asd.tools.json_lines import open_to_append, read_lines
from vllm_asd.tools.server.keyed_request import api_key

_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Prompt:
    """One prompt of a data set."""

    task: str
    id: str
    text: str

    @property
    def digest(self) -> str:
        """Of the text alone, to tell whether two sets share a prompt."""
        return prompt_digest(self.text)


@dataclass(frozen=True)
class Answer:
    """What one request came to.

    Attributes:
        task: Data set.
        id: Prompt.
        arm: Name of the limits it ran under.
        tokens: Length of the answer.
        rounds: Verification rounds.
        accepted: Draft tokens kept in them.
        strict_accepted: What strict would have kept of the same blocks; None in a strict arm.
        exceptions: Kept tokens that are not the target's argmax (in shadow: that would have been kept).
        regret_spent: Nats charged.
        exhausted_at: Output token at which the budget was gone, or None.
        digest: Of the token ids, to compare answers without keeping them.
        token_ids: The answer.
        finish_reason: Why it ended.
        trace: Per exception its position, its regret in nats, and the draft tokens at stake; empty unless the
            server reports at "detailed".
    """

    task: str
    id: str
    arm: str
    tokens: int
    rounds: int
    accepted: int
    strict_accepted: int | None
    exceptions: int
    regret_spent: float
    exhausted_at: int | None
    digest: str
    token_ids: list[int]
    finish_reason: str
    trace: list[tuple[int, float, int]] = field(default_factory=list)


def prompt_digest(text: str) -> str:
    """The hash under which calibration and audit know a prompt; blanks at its ends don't count."""
    return hashlib.sha256(text.strip().encode()).hexdigest()[:16]


def read_prompts(task: str, path: Path, limit: int) -> Iterator[Prompt]:
    """The first prompts of a JSONL file with the fields `id` and `prompt`."""
    with path.open() as lines:
        for _, line in zip(range(limit), lines, strict=False):
            row = json.loads(line)
            yield Prompt(task, row["id"], row["prompt"])


def read_answers(path: Path) -> list[Answer]:
    """What an earlier run left; a last line that was cut off is dropped."""
    return [Answer(**row) for row in read_lines(path)]


async def collect(
    base_url: str,
    model: str,
    prompts: Sequence[Prompt],
    arms: Mapping[str, Mapping[str, Any]],
    path: Path,
    max_tokens: int,
    concurrency: int,
) -> list[Answer]:
    """Send what is not in `path` yet, and append each answer to it as it comes.

    All arms of a prompt go out one after the other, so that they meet the same load.

    Args:
        base_url: Of the server, without `/v1`.
        model: Its served name.
        prompts: All prompts.
        arms: Name to `vllm_xargs`.
        path: The raw results, JSON lines.
        max_tokens: Longest answer.
        concurrency: Requests at a time.

    Returns:
        All answers in `path`, earlier ones included.

    Raises:
        openai.OpenAIError: A request failed. What was finished, or under way then, is in `path`.
    """
    answers = read_answers(path)
    done = {(answer.task, answer.id, answer.arm) for answer in answers}
    todo = [(p, arm) for p in prompts for arm in arms if (p.task, p.id, arm) not in done]
    client = openai.AsyncOpenAI(
        base_url=f"{base_url}/v1", api_key=api_key(), timeout=_TIMEOUT_S, max_retries=0
    )
    with open_to_append(path) as raw, Progress() as progress:
        bar = progress.add_task("answers", total=len(todo) + len(done), completed=len(done))

        async def send(prompt: Prompt, arm: str) -> None:
            response = await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": prompt.text}],
                temperature=0,
                max_tokens=max_tokens,
                extra_body={"return_token_ids": True, "vllm_xargs": dict(arms[arm])},
            )
            answer = _read(prompt, arm, response.model_dump())
            answers.append(answer)
            raw.write(json.dumps(asdict(answer)) + "\n")
            raw.flush()
            progress.advance(bar)
            if not progress.console.is_terminal and len(answers) % 20 == 0:
                progress.console.print(f"{len(answers)} of {len(todo) + len(done)} answers")

        async with client:
            await run_all((partial(send, prompt, arm) for prompt, arm in todo), concurrency)
    return answers


def _read(prompt: Prompt, arm: str, response: dict[str, Any]) -> Answer:
    choice = response["choices"][0]
    speculation = response["metrics"]["speculative_decoding"]
    asd = speculation["asd"]
    token_ids = choice["token_ids"]
    return Answer(
        task=prompt.task,
        id=prompt.id,
        arm=arm,
        tokens=len(token_ids),
        rounds=speculation["num_spec_steps"],
        accepted=speculation["num_accepted_draft_tokens"],
        strict_accepted=asd["strict_accepted_tokens"] if asd["verified_blocks"] else None,
        exceptions=asd["exceptions"],
        regret_spent=asd["regret_spent"],
        exhausted_at=asd["exhausted_at_token"],
        digest=hashlib.sha256(json.dumps(token_ids).encode()).hexdigest()[:16],
        token_ids=token_ids,
        finish_reason=choice["finish_reason"],
        trace=[(e["position"], e["regret"], e["at_stake"]) for e in asd.get("exception_trace", ())],
    )
