"""A transcript as one HTML file that needs nothing else: no script, no font, no network."""

from __future__ import annotations

import math
from html import escape

from vllm_asd.tools.explain.transcript import (
    NUM_LEVELS,
    Piece,
    Relaxation,
    Transcript,
    split_core,
    visible,
)

_STYLE = """
:root { --ink: #1d2129; --dim: #667085; --paper: #fcfcfa; --line: #e4e4de; --hot: 225, 87, 51; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e1; --dim: #98a2b3; --paper: #16181d; --line: #2c3038; --hot: 255, 122, 84; }
}
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.7 system-ui, sans-serif;
  overflow-x: clip; }
main { max-width: 46rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.15rem; margin: 0 0 1rem; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .75rem 1.5rem;
  margin: 0 0 1.5rem; }
dt { color: var(--dim); font-size: .8rem; } dd { margin: 0; font-variant-numeric: tabular-nums; }
figure { margin: 0 0 1.5rem; } figcaption { color: var(--dim); font-size: .8rem; }
svg { display: block; width: 100%; height: 72px; overflow: visible; }
.spent { fill: none; stroke: rgb(var(--hot)); stroke-width: 2; vector-effect: non-scaling-stroke; }
.limit { stroke: var(--dim); stroke-dasharray: 4 4; vector-effect: non-scaling-stroke; }
.axis { stroke: var(--line); vector-effect: non-scaling-stroke; }
.text { position: relative; white-space: pre-wrap; overflow-wrap: anywhere; border-top: 1px solid var(--line);
  padding-top: 1.25rem; }
mark { color: inherit; border-bottom: calc(1px + 1px * var(--level)) solid rgb(var(--hot));
  border-radius: 2px; cursor: help; background: rgba(var(--hot), calc(.08 + .14 * var(--level))); }
sup { font-size: .65em; line-height: 0; }
mark:focus-visible { outline: 2px solid rgb(var(--hot)); outline-offset: 2px; }
/* Below its line, at the text's left edge: never cut off, whatever the window's width. */
.tip { display: none; position: absolute; left: 0; margin-top: .2rem; z-index: 1; max-width: 100%;
  padding: .5rem .75rem; border-radius: 6px;
  background: var(--ink); color: var(--paper);
  font-size: .85rem; line-height: 1.5; white-space: pre-wrap; }
mark:hover .tip, mark:focus .tip { display: block; }
.tip b { font-family: ui-monospace, monospace; }
.refused { border-left: 3px double rgb(var(--hot)); margin-left: 1px; padding-left: 1px; }
.key { color: var(--dim); font-size: .8rem; margin-top: 2rem; }
.key span { white-space: nowrap; }
.key mark { display: inline-block; width: 1.4rem; height: .9rem; margin: 0 .15rem; cursor: auto; }
table { border-collapse: collapse; font-size: .85rem; margin-top: 1rem; width: 100%;
  font-variant-numeric: tabular-nums; }
th { color: var(--dim); font-weight: normal; text-align: left; }
th, td { border-bottom: 1px solid var(--line); padding: .2rem .5rem .2rem 0; }
td b { font-family: ui-monospace, monospace; }
summary { cursor: pointer; margin-top: 1.5rem; }
"""


def render(transcript: Transcript) -> str:
    """The page."""
    facts = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>"
        for label, value in [*transcript.summary(), ("gate", transcript.gates())]
    )
    exhausted = transcript.report.get("exhausted_at_token")
    body = "".join(
        _piece(piece, transcript, position == exhausted) for position, piece in enumerate(transcript.pieces)
    )
    title = f"What ASD relaxed: {escape(transcript.model)}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head>\n"
        f"<body><main><h1>{title}</h1><dl>{facts}</dl>{_chart(transcript)}"
        f'<div class="text">{body}</div>{_key(transcript)}</main></body></html>\n'
    )


def _piece(piece: Piece, transcript: Transcript, refused: bool) -> str:
    text = escape(piece.text)
    if piece.relaxation is not None:
        before, core, after = split_core(piece.text)
        text = escape(before) + _mark(escape(core), piece.relaxation, transcript) + escape(after)
    return (
        f'<span class="refused" title="first token that the budget refused">{text}</span>'
        if refused
        else text
    )


def _mark(text: str, relaxation: Relaxation, transcript: Transcript) -> str:
    who = "the target would have said" if transcript.other == "target" else "the draft, not kept, was"
    tip = f"{who}: <b>{escape(visible(relaxation.other_text))}</b>"
    if relaxation.other_logprob is not None and relaxation.said_logprob is not None:
        other, said = math.exp(relaxation.other_logprob), math.exp(relaxation.said_logprob)
        tip += f"\nprobability {other:.1%}, of the token in the text {said:.1%}"
    tip += f"\nregret {relaxation.regret:.3f} nats"
    if relaxation.at_stake is not None:
        tip += f", {relaxation.at_stake} draft tokens at stake"
    return (
        f'<mark tabindex="0" style="--level:{transcript.level(relaxation)}">{text}'
        f'<span class="tip">{tip}</span></mark><sup>{relaxation.number}</sup>'
    )


def _chart(transcript: Transcript) -> str:
    """The budget over the response: a step up at each exception."""
    budget, length = transcript.budget, len(transcript.pieces)
    if not transcript.relaxations or budget <= 0:
        return ""
    top, spent, path = max(budget, transcript.report["regret"]), 0.0, "M0 100"
    for relaxation in transcript.relaxations:
        path += f"H{1000 * relaxation.position / length:.1f}"
        spent += relaxation.regret
        path += f"V{100 - 100 * spent / top:.1f}"
    limit = 100 - 100 * budget / top
    return (
        '<figure><svg viewBox="0 0 1000 100" preserveAspectRatio="none" role="img" aria-label="Regret spent">'
        '<path class="axis" d="M0 100H1000"/>'
        f'<path class="limit" d="M0 {limit:.1f}H1000"/><path class="spent" d="{path}H1000"/></svg>'
        f"<figcaption>Regret spent over {length} tokens; dashed: the budget, {budget:g} nats</figcaption>"
        "</figure>"
    )


def _key(transcript: Transcript) -> str:
    if not transcript.relaxations:
        return '<p class="key">No exception: every token is what the target would have said.</p>'
    steps = "".join(f'<mark style="--level:{level}"></mark>' for level in range(NUM_LEVELS))
    meaning = (
        "kept though the target would have said something else"
        if transcript.other == "target"
        else "where the draft's token would have been kept"
    )
    refused = (
        ""
        if transcript.report.get("exhausted_at_token") is None
        else " Double line: the budget's first refusal."
    )
    return (
        f'<p class="key">Marked: {meaning}; the thicker its line, the dearer. <span>Regret 0 {steps} '
        f"{transcript.max_regret:.2f} nats.</span> Hover, or move with Tab.{refused}</p>{_table(transcript)}"
    )


def _table(transcript: Transcript) -> str:
    """All of it without hovering: for paper, and for who reads with ears."""
    said = "p of the kept token" if transcript.other == "target" else "p of the token in the text"
    names = (
        "",
        "token",
        "in the text",
        f"the {transcript.other}'s",
        "regret",
        f"p of the {transcript.other}'s",
        said,
    )
    rows = "".join(_row(piece.text, piece.relaxation) for piece in transcript.pieces if piece.relaxation)
    head = "".join(f"<th>{name}</th>" for name in names)
    return (
        f"<details><summary>All {len(transcript.relaxations)} as a table</summary>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></details>"
    )


def _row(text: str, relaxation: Relaxation) -> str:
    chances = "".join(
        f"<td>{'' if logprob is None else f'{math.exp(logprob):.1%}'}</td>"
        for logprob in (relaxation.other_logprob, relaxation.said_logprob)
    )
    return (
        f"<tr><td>{relaxation.number}</td><td>{relaxation.position}</td><td><b>{escape(visible(text))}</b></td>"
        f"<td><b>{escape(visible(relaxation.other_text))}</b></td><td>{relaxation.regret:.3f}</td>{chances}</tr>"
    )
