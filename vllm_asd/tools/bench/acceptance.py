"""Acceptance by position and tokens per round, out of a cell's counters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm_asd.tools.bench.results import Record, summed


@dataclass(frozen=True)
class Acceptance:
    """What an arm's rounds came to at one concurrency, all repeats together.

    Attributes:
        drafts: Rounds with at least one draft token.
        rounds: Rounds of one request each, those without a draft included.
        by_position: Share of all rounds whose drafts were kept at least that far.
        exceptions: Kept tokens that are not the target's argmax.
        regret: Nats charged for them.
        generated: Output tokens.
    """

    drafts: float
    rounds: float
    by_position: tuple[float, ...]
    exceptions: float
    regret: float
    generated: float

    @property
    def tokens_per_round(self) -> float:
        """The round's own token included."""
        return 1 + sum(self.by_position)

    @property
    def drafted(self) -> float:
        """Share of rounds with a draft."""
        return self.drafts / self.rounds

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**vars(self), "tokens_per_round": self.tokens_per_round, "drafted": self.drafted}


def acceptance(records: Sequence[Record]) -> Acceptance | None:
    """Read it; None where nothing was drafted.

    vLLM does not count rounds without a draft: they are what is left of the output tokens when the prefills'
    own tokens, the drafted rounds' own and the accepted ones are taken away. (A last block that the length
    limit cuts counts in full, so that remainder is a little too small.)
    """
    drafts = summed(records, "counters", "drafts")
    if not drafts:
        return None
    accepted = summed(records, "counters", "accepted")
    generated = summed(records, "counters", "generated")
    without = max(0.0, generated - summed(records, "completed") - drafts - accepted)
    rounds = drafts + without
    positions = max(len(record["counters"]["accepted_at"]) for record in records)
    at = [
        sum(record["counters"]["accepted_at"][i] for record in records if record["counters"]["accepted_at"])
        for i in range(positions)
    ]
    return Acceptance(
        drafts=drafts,
        rounds=rounds,
        by_position=tuple(count / rounds for count in at),
        exceptions=sum(record["counters"]["asd"].get("exceptions", 0.0) for record in records),
        regret=sum(record["counters"]["asd"].get("regret", 0.0) for record in records),
        generated=generated,
    )
