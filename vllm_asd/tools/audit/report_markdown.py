"""The report as Markdown: verdict first, what got worse beside what got better, then the figures per task."""

import json
from collections.abc import Iterable, Sequence

from vllm_asd.tools.audit import plots
from vllm_asd.tools.audit.report_schema import (
    BLIND,
    AuditReport,
    CodeIsolation,
    Comparison,
    Group,
    ScoreChange,
    Sight,
    Spread,
)
from vllm_asd.tools.audit.report_words import (
    MEASURES,
    Reading,
    measures_read_as,
    nats,
    number,
    p_value,
    percent,
    points,
    ratio,
    signed,
)

_SIGHT = {
    "sees": "",
    "ceiling": "near its ceiling: shows a loss, hardly a gain",
    "floor": "at its floor: can't show a loss",
    "unscored": "has no right answer, so no score",
    "chance": "no better than guessing: can't show a loss",
}

_CODE: dict[CodeIsolation, str] = {
    "bubblewrap": "Code that the model wrote ran under bubblewrap.",
    "fallback": "Code that the model wrote ran under the fallback, without bubblewrap: for models you trust.",
    "lm-eval": "Code that the model wrote ran lm-eval's way, confined by nothing of ours.",
}


def markdown(report: AuditReport) -> str:
    """The whole page."""
    title = " with ".join(
        str(report.provenance[key]) for key in ("model", "drafter") if key in report.provenance
    )
    parts = [
        f"# Audit of approximate speculative decoding{f': {title}' if title else ''}",
        f"**{report.overall.sentences[0]}**",
        "\n".join(f"- {sentence}" for sentence in _below_the_verdict(report)),
        "## What got better, what got worse",
        _better_and_worse(report.pooled),
        _measures(report.pooled),
        "## Score per task",
        _scores(report),
        f"![Difference in score per task, with its interval and the margin]({plots.QUALITY})",
        "## Beside the score, per task",
        _evidence(report),
        "## Gain per task",
        _gains(report),
        f"![Gain in tokens per round against difference in score]({plots.GAIN})",
        "## Exceptions and regret",
        _spending(report),
        f"![Regret per exception and per answer]({plots.REGRET})",
        "## By length of the control's answer",
        _bands(report),
        "## How to read this",
        _method(report),
        "## Provenance",
        f"```json\n{json.dumps(report.provenance, indent=2, default=str)}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _below_the_verdict(report: AuditReport) -> list[str]:
    """The grounds, how code ran, and what whoever ran the audit noted."""
    code = [_CODE[report.code_isolation]] if report.code_isolation else []
    notes = report.provenance.get("notes", [])
    return [*report.overall.sentences[1:], *code, *(f"Note: {note}" for note in notes)]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are figures."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _better_and_worse(pooled: Group) -> str:
    def entries(reading: Reading) -> list[str]:
        found = measures_read_as(pooled, reading)
        return [measure.sentence(pooled.asd) for measure in found] or ["nothing"]

    better, worse = entries("better"), entries("worse")
    longest = max(len(better), len(worse))
    rows = zip(*(column + [""] * (longest - len(column)) for column in (better, worse)), strict=True)
    lines = ["| better | worse |", "|---|---|", *(f"| {left} | {right} |" for left, right in rows)]
    unclear = ", ".join(measure.name for measure in measures_read_as(pooled, "no clear change"))
    drifted = ", ".join(measure.name for measure in measures_read_as(pooled, "strict drifted"))
    return (
        "\n".join(lines)
        + (f"\n\nNo clear change: {unclear}." if unclear else "")
        + (f"\n\nNot judged, strict itself changed as much meanwhile: {drifted}." if drifted else "")
    )


def _measures(pooled: Group) -> str:
    control, asd = pooled.arms["control"], pooled.arms["asd"]
    return _table(
        ["all items pooled", "strict", "ASD", "change", "strict against itself", "reading"],
        (
            [
                measure.label,
                measure.of_arm(control),
                measure.of_arm(asd),
                measure.write(measure.change(pooled.asd)),
                measure.write(measure.change(pooled.noise)) if pooled.noise else "-",
                measure.reading(pooled.asd, pooled.noise),
            ]
            for measure in MEASURES
        ),
    )


def _scores(report: AuditReport) -> str:
    level = f"{100 - 200 * report.alpha:.0f}%"
    header = [
        "task",
        "items",
        "strict",
        "ASD",
        "difference",
        f"{level} interval",
        "lost / gained",
        "McNemar p",
    ]
    header += ["verdict", "items needed", "strict against itself", "note"]
    rows = [_score_row(group.name, group.asd.score, group.noise, group.sight) for group in _groups(report)]
    if report.overall.tasks_blind:
        rows.append(_score_row("pooled, tasks that can show a loss", report.overall.score, None, None))
    return _table(header, rows)


def _score_row(
    name: str, score: ScoreChange | None, repeated: Comparison | None, sight: Sight | None
) -> list[str]:
    note = _SIGHT[sight] if sight else ""
    if score is None:
        return [name, "0", *["-"] * 9, note]
    noise = repeated.score if repeated else None
    return [
        name,
        str(score.pairs),
        f"{100 * score.baseline:.1f}",
        f"{100 * score.other:.1f}",
        signed(100 * score.difference.value),
        f"{signed(100 * score.low)} to {signed(100 * score.high)}",
        f"{score.losses} / {score.gains}",
        p_value(score.mcnemar_p),
        "-" if sight in BLIND else score.verdict,
        "-" if sight in BLIND or score.verdict == "inferior" else str(score.needed_items),
        f"{signed(100 * noise.difference.value)}, {noise.verdict}" if noise else "-",
        note,
    ]


def _evidence(report: AuditReport) -> str:
    def cells(comparison: Comparison | None) -> list[str]:
        if comparison is None:
            return ["-"] * 3
        return [
            percent(comparison.answers_changed),
            percent(comparison.extracted_agree),
            nats(comparison.loglikelihood),
        ]

    header = ["task", "answers that differ", "extracted answers that agree", "log-likelihood per token, nats"]
    rows = []
    for group in _groups(report):
        rows.append([group.name, *cells(group.asd)])
        rows.append([f"{group.name}, strict against itself", *cells(group.noise)])
    return _table(header, rows)


def _gains(report: AuditReport) -> str:
    header = ["task", "tokens per round, strict", "ASD", "ratio", "same blocks", "wall time", "answer length"]
    header += ["rounds per solved", "wall time per solved"]
    return _table(header, (_gain_row(group) for group in _groups(report)))


def _gain_row(group: Group) -> list[str]:
    same_blocks = group.spending.same_block_gain
    return [
        group.name,
        number(group.arms["control"].tokens_per_round),
        number(group.arms["asd"].tokens_per_round),
        ratio(group.asd.tokens_per_round),
        f"x{same_blocks:.3f}" if same_blocks else "-",
        ratio(group.asd.seconds),
        ratio(group.asd.length),
        ratio(group.asd.rounds_per_solved),
        ratio(group.asd.seconds_per_solved),
    ]


def _spending(report: AuditReport) -> str:
    header = ["task", "exceptions per answer", "per 100 tokens", "answers with any", "regret per answer"]
    header += ["regret per exception", "answers that spent the budget", "at token, median"]
    return _table(
        header,
        (
            [
                group.name,
                number(group.spending.exceptions_per_answer),
                number(group.spending.exceptions_per_100_tokens),
                f"{100 * group.spending.answers_with_exceptions:.1f}%",
                _spread(group.spending.regret_per_answer),
                _spread(group.spending.regret_per_exception),
                f"{100 * group.spending.exhausted:.1f}%",
                number(group.spending.exhausted_at, 0),
            ]
            for group in _groups(report)
        ),
    )


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    return f"{spread.mean:.3f} (median {spread.median:.3f}, p90 {spread.p90:.3f}, most {spread.largest:.3f})"


def _bands(report: AuditReport) -> str:
    rows = [
        [
            group.name,
            f"{band.shortest} to {band.longest}",
            str(band.pairs),
            points(band.difference),
            "worst" if band == group.worst_band and band.difference.value < 0 else "",
        ]
        for group in _groups(report)
        for band in group.bands
    ]
    return _table(["task", "tokens", "items", "difference in score, points", ""], rows)


def _method(report: AuditReport) -> str:
    margin = f"{100 * report.margin:g} point{'' if report.margin == 0.01 else 's'}"
    return f"""\
- Strict is budget 0 on the same server. Every item was answered strictly, then with ASD, then strictly again;
  "strict against itself" sets the second strict run against the first: what changes without ASD.
- The verdict tests the paired difference in score against a margin of {margin}, with an error of at most
  {100 * report.alpha:g}% on either side: exactly for 0/1 scores (unconditional test ordered by Tango's score
  statistic), by Agresti and Min's adjusted interval for graded ones. Pooled, items count, not tasks; tasks
  at floor or chance don't count. If a task is inferior after Holm's correction for their number, so is the
  audit.
- Other intervals are 95%: Wilson's for shares, paired bootstraps over items, within tasks, for the rest.
  Ratios are ASD over strict. Wall time is a request's, from sent to answered, at the audit's concurrency;
  ASD's is set against the mean of both strict runs, so that a steady drift cancels.
- "Items needed" rule a loss of the margin out with a probability of {report.power:g}, if nothing is lost and
  as many items change as here.
- "Same blocks" compares ASD with what strict would have kept of the very blocks that ASD verified.
- The worst of several tasks or quarters looks bad by chance alone; read it with its interval.
- Answers left out because their partner is missing: {report.unpaired}."""


def _groups(report: AuditReport) -> list[Group]:
    """Tasks, then the pool, unless there is only one task."""
    return [*report.tasks, report.pooled] if len(report.tasks) > 1 else report.tasks
