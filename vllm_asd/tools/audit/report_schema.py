"""The audit's report as data: `report.json`, schema "vllm-asd/audit/1".

Within version 1 fields are only added. Scores are fractions (0.01 is one point), regret and log-likelihood
are in nats, times in seconds. An interval is a paired bootstrap over items, 95%, where nothing else is said.
"""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from vllm_asd.tools.audit.items import Arm
from vllm_asd.tools.statistics.noninferiority import Verdict
from vllm_asd.tools.statistics.resampling import Interval

Sight = Literal["sees", "ceiling", "floor", "chance", "unscored"]
# How what the model wrote was confined: by ours, or by lm-eval's own tasks in their way.
CodeIsolation = Literal["bubblewrap", "fallback", "lm-eval"]
# Where the score can't show a loss.
BLIND = ("floor", "chance")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Estimate(_Part):
    """A figure with its 95% interval: a paired bootstrap where nothing else is said."""

    value: float = Field(description="The figure")
    low: float | None = Field(description="Lower end; null where it is not finite")
    high: float | None = Field(description="Upper end; null where it is not finite")

    @classmethod
    def of(cls, interval: Interval) -> Self:
        """From the statistics' own type."""
        return cls(value=interval.value, low=interval.low, high=interval.high)


class ScoreChange(_Part):
    """The paired difference in score, and the test of it against the margin."""

    verdict: Verdict = Field(description="non-inferior, inferior or undecided, against the report's margin")
    pairs: int = Field(description="Items that both arms answered and that have a score")
    baseline: float = Field(description="Mean score of the control")
    other: float = Field(description="Mean score of the arm compared with it")
    difference: Estimate = Field(description="other - baseline, with the bootstrap interval")
    low: float = Field(description="Lower end of the interval that the verdict rests on: alpha lies below it")
    high: float = Field(
        description="Upper end of the interval that the verdict rests on: alpha lies above it"
    )
    gains: int = Field(description="Items on which the other arm scores higher")
    losses: int = Field(description="Items on which it scores lower")
    mcnemar_p: float | None = Field(description="Exact McNemar p-value of no difference; null if graded")
    p_noninferior: float = Field(description="p-value of: the loss is the margin or more")
    p_inferior: float = Field(description="p-value of: the loss is the margin or less")
    needed_items: int = Field(
        description="Items for 'non-inferior' at the report's power, if nothing is lost and as many change"
    )


class Comparison(_Part):
    """One arm against the control, over the items that both answered. Ratios are other / control."""

    pairs: int = Field(description="Items that both arms answered")
    score: ScoreChange | None = Field(description="Difference in score; null if no item has one")
    answers_changed: Estimate = Field(
        description="Share of answers whose token ids differ, with Wilson's interval"
    )
    extracted_agree: Estimate | None = Field(
        description="Share of equal extracted answers, where either arm has one, with Wilson's interval; "
        "null if none has"
    )
    loglikelihood: Estimate | None = Field(
        description="Difference of the target's mean log-likelihood per token; null if not measured"
    )
    length: Estimate | None = Field(description="Ratio of tokens per answer")
    cut: Estimate = Field(description="Difference of the share of answers cut off by the length limit")
    tokens_per_round: Estimate | None = Field(description="Ratio of tokens per verification round")
    rounds: Estimate | None = Field(description="Ratio of verification rounds per answer")
    seconds: Estimate | None = Field(
        description="Ratio of wall time per answer; ASD's is against the mean of both controls"
    )
    rounds_per_solved: Estimate | None = Field(description="Ratio of rounds per solved item")
    seconds_per_solved: Estimate | None = Field(
        description="Ratio of wall time per solved item, as for `seconds`"
    )


class ArmFigures(_Part):
    """What one arm did, over all its items."""

    items: int = Field(description="Items answered")
    score: float | None = Field(description="Mean score; null if no item has one")
    tokens: float = Field(description="Tokens per answer, mean")
    cut: float = Field(description="Share of answers cut off by the length limit")
    tokens_per_round: float | None = Field(
        description="Tokens per verification round, its own token included"
    )
    seconds: float = Field(description="Wall time per answer, mean")
    rounds_per_solved: float | None = Field(description="Rounds of scored items over the sum of scores")
    seconds_per_solved: float | None = Field(description="Wall time of scored items over the sum of scores")
    loglikelihood: float | None = Field(description="Mean over answers of the mean log-likelihood per token")


class Spread(_Part):
    """The distribution of a quantity."""

    mean: float = Field(description="Mean")
    median: float = Field(description="Median")
    p90: float = Field(description="90th percentile")
    largest: float = Field(description="Largest value")


class Spending(_Part):
    """What ASD relaxed, over all its answers."""

    exceptions_per_answer: float = Field(description="Kept tokens that were not the target's argmax, mean")
    exceptions_per_100_tokens: float | None = Field(description="The same per 100 tokens of the answers")
    answers_with_exceptions: float = Field(description="Share of answers with at least one")
    regret_per_answer: Spread = Field(description="Regret charged per answer")
    regret_per_exception: Spread | None = Field(description="Regret per exception; null if there was none")
    exhausted: float = Field(description="Share of answers that spent their whole budget")
    exhausted_at: float | None = Field(description="Token at which they had, median")
    same_block_gain: float | None = Field(
        description="Tokens per round over what strict would have kept of the same blocks; null if unknown"
    )


class LengthBand(_Part):
    """A quarter of the items, by the length of the control's answer."""

    shortest: int = Field(description="Tokens of the shortest control answer in it")
    longest: int = Field(description="Tokens of the longest")
    pairs: int = Field(description="Items in it")
    difference: Estimate = Field(description="Difference in score, ASD - control")


class Group(_Part):
    """One task, or all of them pooled."""

    name: str = Field(description="Task, or 'pooled'")
    sight: Sight | None = Field(
        description="Whether the score can show a loss: 'sees' and 'ceiling' can; null for the pool"
    )
    arms: dict[Arm, ArmFigures] = Field(description="What each arm did")
    asd: Comparison = Field(description="ASD against the control")
    noise: Comparison | None = Field(
        description="The control run again against itself: noise floor and drift"
    )
    spending: Spending = Field(description="What ASD relaxed")
    bands: list[LengthBand] = Field(description="Scored items by length of the control's answer")

    @property
    def worst_band(self) -> LengthBand | None:
        """The length quarter with the lowest difference; None if no item has a score."""
        return min(self.bands, key=lambda band: band.difference.value, default=None)


class Overall(_Part):
    """The verdict of the audit."""

    verdict: Verdict = Field(
        description="That of `score`; or 'inferior' if a task is, after Holm's correction for their number"
    )
    score: ScoreChange | None = Field(description="Pooled over `tasks_counted`; null if there is none")
    tasks_counted: list[str] = Field(description="Tasks whose score can show a loss")
    tasks_blind: list[str] = Field(description="Tasks at floor or chance: their score shows nothing")
    tasks_unscored: list[str] = Field(description="Tasks without a right answer: they have no score")
    tasks_inferior: list[str] = Field(description="Tasks found inferior after Holm's correction")
    worst_task: str | None = Field(description="The counted task with the lowest difference in score")
    sentences: list[str] = Field(
        description="The verdict and its grounds in plain words, most important first"
    )


class AuditReport(_Part):
    """A whole audit."""

    schema_: Literal["vllm-asd/audit/1"] = Field(
        default="vllm-asd/audit/1", alias="schema", description="Name and version of this schema"
    )
    margin: float = Field(description="Largest tolerated loss of score, as a fraction")
    alpha: float = Field(description="Error of each one-sided test")
    power: float = Field(description="Power for which `needed_items` is computed")
    overall: Overall = Field(description="The verdict")
    pooled: Group = Field(description="All items; resampled within tasks")
    tasks: list[Group] = Field(description="Each task")
    unpaired: int = Field(description="Answers left out of comparisons, their partner being missing")
    code_isolation: CodeIsolation | None = Field(
        default=None, description="How what the model wrote was confined; null if no task runs code"
    )
    provenance: dict[str, Any] = Field(description="Command, versions, model, drafter, limits in force")
