"""What a server counted while one cell ran: two readings of /metrics and their difference."""

from dataclasses import asdict, dataclass
from typing import Any

from vllm_asd.telemetry.counters import Counter
from vllm_asd.tools.server import Metrics

_SPEC = "vllm:spec_decode_num_"


@dataclass(frozen=True)
class Counters:
    """Counts of one cell, or since the server's start.

    Attributes:
        steps: Engine iterations.
        generated: Output tokens.
        preemptions: Of running requests.
        drafts: Verified blocks with at least one draft token.
        draft_tokens: Draft tokens in them.
        accepted: Draft tokens kept.
        accepted_at: The same by position.
        asd: Our own counters by name; empty where ASD is off.
        stops: ASD's blocks by what ended them.
    """

    steps: float
    generated: float
    preemptions: float
    drafts: float
    draft_tokens: float
    accepted: float
    accepted_at: tuple[float, ...]
    asd: dict[str, float]
    stops: dict[str, float]

    @classmethod
    def read(cls, metrics: Metrics) -> "Counters":
        """From one reading; a server without speculation has zeros."""
        names = metrics.names()

        def total(name: str) -> float:
            return metrics.total(name) if name in names else 0.0

        at: dict[int, float] = {}
        for sample in metrics.samples(f"{_SPEC}accepted_tokens_per_pos_total"):
            position = int(sample.labels["position"])
            at[position] = at.get(position, 0.0) + sample.value
        stops: dict[str, float] = {}
        for sample in metrics.samples("vllm_asd:blocks_total"):
            stop = sample.labels["stop"]
            stops[stop] = stops.get(stop, 0.0) + sample.value
        return cls(
            steps=metrics.total("vllm:iteration_tokens_total_count"),
            generated=metrics.total("vllm:generation_tokens_total"),
            preemptions=total("vllm:num_preemptions_total"),
            drafts=total(f"{_SPEC}drafts_total"),
            draft_tokens=total(f"{_SPEC}draft_tokens_total"),
            accepted=total(f"{_SPEC}accepted_tokens_total"),
            accepted_at=tuple(at[position] for position in sorted(at)),
            asd={row.label: total(f"vllm_asd:{row.label}_total") for row in Counter} if stops else {},
            stops=stops,
        )

    def since(self, earlier: "Counters") -> "Counters":
        """The difference to an earlier reading of the same server."""
        before = earlier.accepted_at or (0.0,) * len(self.accepted_at)
        return Counters(
            steps=self.steps - earlier.steps,
            generated=self.generated - earlier.generated,
            preemptions=self.preemptions - earlier.preemptions,
            drafts=self.drafts - earlier.drafts,
            draft_tokens=self.draft_tokens - earlier.draft_tokens,
            accepted=self.accepted - earlier.accepted,
            accepted_at=tuple(now - then for now, then in zip(self.accepted_at, before, strict=True)),
            asd={name: value - earlier.asd.get(name, 0.0) for name, value in self.asd.items()},
            stops={name: value - earlier.stops.get(name, 0.0) for name, value in self.stops.items()},
        )

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)
