"""From what lm-eval scored and what the server answered to the audit's items."""

import hashlib
import json
from collections.abc import Mapping, Sequence

from vllm_asd.tools.audit.arm_model import item_id
from vllm_asd.tools.audit.harness import Sample
from vllm_asd.tools.audit.items import ARMS, Arm, Item
from vllm_asd.tools.audit.likelihood import Likelihoods
from vllm_asd.tools.audit.responses import Record

_NOTHING_FOUND = "[invalid]"  # lm-eval's regex filter
Answers = dict[Arm, dict[tuple[str, str], Record]]
Samples = dict[Arm, dict[str, list[Sample]]]


def collect_items(answers: Answers, samples: Samples, likelihoods: Likelihoods) -> list[Item]:
    """One item per task, document and arm, in the order in which they were asked."""
    items = []
    for arm in ARMS:
        for task, of_task in samples[arm].items():
            # A task may read an answer in several ways; its last filter is its most forgiving one.
            last = {sample["doc_id"]: sample for sample in of_task}
            for sample in last.values():
                name = item_id(sample["doc"], sample["doc_id"])
                items.append(_item(task, name, arm, sample, answers[arm][task, name], likelihoods))
    return items


def _item(task: str, name: str, arm: Arm, sample: Sample, record: Record, likelihoods: Likelihoods) -> Item:
    asd = record["asd"]
    ids = record["token_ids"]
    return Item(
        task=task,
        item_id=name,
        arm=arm,
        prompt_hash=hashlib.sha256(_source(sample).strip().encode()).hexdigest(),
        answer=record["text"],
        answer_hash=hashlib.sha256(json.dumps(ids).encode()).hexdigest(),
        extracted=_extracted(sample),
        score=_score(sample),
        tokens=len(ids),
        finish_reason=record["finish_reason"],
        latency_s=record["latency_s"],
        rounds=record["rounds"],
        accepted=record["accepted"],
        strict_accepted=asd["strict_accepted_tokens"] if asd["verified_blocks"] else None,
        exceptions=asd["exceptions"],
        regret_spent=asd["regret_spent"],
        exception_regrets=tuple(entry["regret"] for entry in asd.get("exception_trace", ())),
        exhausted_at=asd["exhausted_at_token"],
        loglikelihood=likelihoods.get((tuple(record["prompt_ids"]), tuple(ids))),
    )


def _source(sample: Sample) -> str:
    """The text by which calibration would know the prompt: the data set's, else what the model was shown."""
    document = sample["doc"]
    return str(document["prompt"]) if "prompt" in document else str(sample["arguments"][0][0])


def _extracted(sample: Sample) -> str | None:
    found = sample["filtered_resps"][0]
    if isinstance(found, list | tuple):
        found = found[0] if found else None
    return None if found is None or found == _NOTHING_FOUND else str(found)


def _score(sample: Sample) -> float | None:
    """The first of the task's metrics that is a fraction; None where it has none."""
    values = (sample[name] for name in sample["metrics"])
    numbers = (float(value) for value in values if isinstance(value, bool | int | float))
    return next((number for number in numbers if 0 <= number <= 1), None)


def ungraded_tasks(samples: Mapping[str, Sequence[Sample]]) -> list[str]:
    """The tasks whose answers have no score."""
    return [task for task, of_task in samples.items() if all(_score(sample) is None for sample in of_task)]
