"""The audit's verdict over its tasks, and the sentences that give its grounds."""

from collections.abc import Sequence

from statsmodels.stats.multitest import multipletests

from vllm_asd.tools.audit.compare import score_change
from vllm_asd.tools.audit.pairs import ItemArms
from vllm_asd.tools.audit.report_schema import BLIND, Comparison, Group, Overall, ScoreChange
from vllm_asd.tools.audit.report_words import FEWEST, nats, percent, points, ratio, signed
from vllm_asd.tools.statistics.noninferiority import ALPHA, POWER, Verdict

_SEEING = ("sees", "ceiling")


def overall(tasks: Sequence[Group], pooled: Group, rows: Sequence[ItemArms], margin: float) -> Overall:
    """Judge the audit.

    Tasks at floor or at chance are left out of the pooled test: they can't lose anything, and items that
    can't lose make any margin easy to keep.

    Args:
        tasks: The groups of the tasks.
        pooled: The group of all items, for the sentences.
        rows: The answers of all tasks.
        margin: Tolerated loss of score.
    """
    counted = [(task, task.asd.score) for task in tasks if task.sight in _SEEING and task.asd.score]
    names = [task.name for task, _ in counted]
    blind = [task.name for task in tasks if task.sight in BLIND]
    pairs = [(row.control, row.asd) for row in rows if row.control.task in names]
    score = score_change(pairs, margin) if blind else pooled.asd.score
    inferior = _inferior_after_holm(counted)
    verdict: Verdict = "inferior" if inferior else score.verdict if score else "undecided"
    worst = min(counted, key=lambda entry: entry[1].difference.value, default=None)
    sentences = [_verdict_sentence(verdict, score, inferior, margin), _gain_sentence(pooled)]
    alone = [task.name for task, change in counted if change.verdict == "inferior"]
    if len(alone) > len(inferior):
        sentences.insert(1, _alone_sentence(alone))
    sentences += _evidence_sentences(pooled)
    few = [task.name for task in tasks if task.asd.pairs < FEWEST]
    if few:
        sentences.append(f"Fewer than {FEWEST} items, so their intervals are too narrow: {', '.join(few)}.")
    if blind:
        sentences.append(_blind_sentence(blind))
    if worst:
        sentences.append(_worst_sentence(*worst, pooled))
    sentences.append(_noise_sentence(pooled.noise))
    return Overall(
        verdict=verdict,
        score=score,
        tasks_counted=names,
        tasks_blind=blind,
        tasks_unscored=[task.name for task in tasks if task.sight == "unscored"],
        tasks_inferior=inferior,
        worst_task=worst[0].name if worst else None,
        sentences=sentences,
    )


def _inferior_after_holm(counted: Sequence[tuple[Group, ScoreChange]]) -> list[str]:
    if not counted:
        return []
    rejected, *_ = multipletests([score.p_inferior for _, score in counted], alpha=ALPHA, method="holm")
    return [task.name for (task, _), is_rejected in zip(counted, rejected, strict=True) if is_rejected]


def _verdict_sentence(
    verdict: Verdict, score: ScoreChange | None, inferior: Sequence[str], margin: float
) -> str:
    limit = f"{100 * margin:g} point{'' if margin == 0.01 else 's'}"
    if score is None:
        return "Undecided: no task's score can show a loss, so the scores say nothing about quality."
    figures = (
        f"Score {100 * score.baseline:.1f} under strict, {100 * score.other:.1f} under ASD: "
        f"{signed(100 * score.difference.value)} points, {100 - 200 * ALPHA:.0f}% interval "
        f"{signed(100 * score.low)} to {signed(100 * score.high)}, {score.pairs} items, "
        f"{score.losses} lost and {score.gains} gained."
    )
    if score.verdict != "inferior" and verdict == "inferior":
        return f"Quality got worse on {', '.join(inferior)}: a loss of more than {limit} is shown. {figures}"
    words = {
        "non-inferior": f"Quality held: a loss of {limit} or more is ruled out.",
        "inferior": f"Quality got worse: a loss of more than {limit} is shown.",
        "undecided": f"Undecided: a loss of {limit} is neither ruled out nor shown.",
    }
    need = (
        f" If nothing is lost and as many items change, about {score.needed_items} items would rule it out "
        f"(power {POWER:g})."
    )
    return f"{words[verdict]} {figures}{need if verdict == 'undecided' else ''}"


def _alone_sentence(tasks: Sequence[str]) -> str:
    return (
        f"Inferior when each task is tested alone, without correction for their number: {', '.join(tasks)}."
    )


def _gain_sentence(pooled: Group) -> str:
    asd, noise = pooled.asd, pooled.noise
    return (
        f"Gain: tokens per verification round {ratio(asd.tokens_per_round)}, rounds per solved item "
        f"{ratio(asd.rounds_per_solved)}, wall time per answer {ratio(asd.seconds)}"
        f"{_against_itself(ratio(noise.seconds) if noise else None)}."
    )


def _evidence_sentences(pooled: Group) -> list[str]:
    """What changed beside the score, with the control's change against itself behind it."""
    asd, noise = pooled.asd, pooled.noise
    lines = [
        f"Answers that differ from strict: {percent(asd.answers_changed)}"
        f"{_against_itself(percent(noise.answers_changed) if noise else None)}; answers are "
        f"{ratio(asd.length)} as long."
    ]
    if asd.extracted_agree:
        repeated = percent(noise.extracted_agree) if noise and noise.extracted_agree else None
        lines.append(f"Extracted answers agree in {percent(asd.extracted_agree)}{_against_itself(repeated)}.")
    if asd.loglikelihood:
        repeated = nats(noise.loglikelihood) if noise and noise.loglikelihood else None
        lines.append(
            "The target's mean log-likelihood per token of the answers changed by "
            f"{nats(asd.loglikelihood)} nats{_against_itself(repeated)}."
        )
    return lines


def _against_itself(figure: str | None) -> str:
    return f" [strict against itself: {figure}]" if figure else ""


def _blind_sentence(blind: Sequence[str]) -> str:
    return (
        f"At floor or chance: {', '.join(blind)}. Their score can't show a loss and is left out of the "
        "verdict; there the agreement of answers and the log-likelihood carry the evidence."
    )


def _worst_sentence(worst: Group, score: ScoreChange, pooled: Group) -> str:
    noise, band = worst.noise, pooled.worst_band
    repeated = points(noise.score.difference) if noise and noise.score else None
    text = f"Worst task: {worst.name}, {points(score.difference)} points{_against_itself(repeated)}."
    if band is None:
        return text
    return (
        f"{text} Worst length quarter: answers of {band.shortest} to {band.longest} tokens, "
        f"{points(band.difference)} points."
    )


def _noise_sentence(noise: Comparison | None) -> str:
    if noise is None:
        return "The control was not run again: there is no noise floor, and drift is not known."
    score = f"score {points(noise.score.difference)} points, " if noise.score else ""
    return (
        f"Noise floor and drift, strict again after ASD: {score}wall time {ratio(noise.seconds)}, "
        f"rounds {ratio(noise.rounds)}."
    )
