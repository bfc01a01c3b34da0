"""The text of /metrics as a server with speculation exports it, for tests that start none."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, generate_latest

from vllm_asd.telemetry.counters import Counter as AsdCounter
from vllm_asd.telemetry.prometheus import Collectors


def exposition(
    accepted: Sequence[int], asd: dict[str, int] | None = None, blocks: int = 0, generated: int | None = None
) -> str:
    """The text that a server exports: vLLM's counters with its names, and ours from our collectors.

    Args:
        accepted: Accepted draft tokens of each round, of at most 4.
        asd: Totals of our counters; None where the plugin is off.
        blocks: Blocks that ASD decided.
        generated: All generated tokens.
    """
    registry = CollectorRegistry()
    labels = ("model_name", "engine")

    def counter(name: str, value: float, **more: str) -> None:
        if name not in made:
            made[name] = Counter(name, "-", (*labels, *more), registry=registry)
        made[name].labels("m", "0", *more.values()).inc(value)

    made: dict[str, Counter] = {}
    counter("vllm:spec_decode_num_drafts", len(accepted))
    counter("vllm:spec_decode_num_accepted_tokens", sum(accepted))
    for position in range(4):
        reached = sum(length > position for length in accepted)
        counter("vllm:spec_decode_num_accepted_tokens_per_pos", reached, position=str(position))
    if generated is not None:
        counter("vllm:generation_tokens", generated)
    if asd is not None:
        collectors = Collectors(registry)
        collectors.enable("m", 0)
        zeros = {counter.label: 0 for counter in AsdCounter}
        counts = {**zeros, **asd, "blocks": {"end": blocks} if blocks else {}, "request_regret": []}
        collectors.observe(counts, "m", 0)
    return generate_latest(registry).decode()
