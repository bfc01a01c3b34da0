"""A response cut into tokens, each exception with what the target would have said instead."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

SCHEMA = "vllm-asd/explanation/1"
# Steps of regret that a reader can tell apart, by colour or without.
NUM_LEVELS = 5
_SAME_LOGPROB = 1e-4


class TranscriptError(ValueError):
    """The response does not hold what an explanation needs; the message is one line and names the fix."""


@dataclass(frozen=True)
class Relaxation:
    """One kept token that is not the target's.

    Attributes:
        number: From 1, in order.
        position: Output token index.
        regret: Nats.
        other_text: What the target would have said; under shadow what the draft would have. The token's id,
            if the text is not known.
        other_logprob: The target's log-probability of that token, or None.
        said_logprob: The target's log-probability of the token in the text, or None.
        at_stake: Draft tokens of the block from this one on, or None.
    """

    number: int
    position: int
    regret: float
    other_text: str
    other_logprob: float | None
    said_logprob: float | None
    at_stake: int | None


@dataclass(frozen=True)
class Piece:
    """One output token's text."""

    text: str
    relaxation: Relaxation | None = None


@dataclass(frozen=True)
class Transcript:
    """The response's tokens and its ``asd`` object. Under shadow the exceptions were not emitted."""

    pieces: Sequence[Piece]
    report: Mapping[str, Any]
    model: str

    @property
    def relaxations(self) -> list[Relaxation]:
        """The exceptions, in order."""
        return [piece.relaxation for piece in self.pieces if piece.relaxation is not None]

    @property
    def other(self) -> str:
        """Who would have said :attr:`Relaxation.other_text`."""
        return "draft" if self.report["mode"] == "shadow" else "target"

    @property
    def max_regret(self) -> float:
        """The largest regret of an exception, 0 without any."""
        return max((relaxation.regret for relaxation in self.relaxations), default=0.0)

    def level(self, relaxation: Relaxation) -> int:
        """How dear an exception is beside the dearest: 0 to ``NUM_LEVELS - 1``."""
        share = relaxation.regret / self.max_regret if self.max_regret else 0.0
        return min(int(share * NUM_LEVELS), NUM_LEVELS - 1)

    @property
    def budget(self) -> float:
        """Nats that the response might spend at once: its budget, or the phases' together."""
        phases = self.report.get("phases")
        return sum(p["budget"] for p in phases.values()) if phases else float(self.report["budget"])

    def gates(self) -> str:
        """Gate and block cap, of each phase."""
        phases = self.report.get("phases") or {"": self.report}
        return "; ".join(
            f"{name} {limits['gate']:g}, at most {limits['block_cap']} per block".lstrip()
            for name, limits in phases.items()
        )

    def as_json(self) -> dict[str, Any]:
        """All figures: the response's report, and each exception."""
        exceptions = [asdict(relaxation) for relaxation in self.relaxations]
        return {
            "schema": SCHEMA,
            "model": self.model,
            "tokens": len(self.pieces),
            "asd": dict(self.report),
            "exceptions": exceptions,
        }

    def summary(self) -> list[tuple[str, str]]:
        """Label and value of what the report says as a whole."""
        report = self.report
        kept, strict = report["accepted_tokens"], report["strict_accepted_tokens"]
        blocks = report["verified_blocks"]
        gain = (kept + blocks) / (strict + blocks) - 1 if blocks else 0.0
        exhausted = report.get("exhausted_at_token")
        return [
            ("mode", report["mode"]),
            ("exceptions", f"{report['exceptions']} of {len(self.pieces)} tokens"),
            ("regret", f"{report['regret']:.2f} of {self.budget:g} nats"),
            *self._phases(),
            ("reused", f"{report['reused_tokens']} tokens"),
            ("per block", f"{1 + kept / blocks:.2f} tokens (strict {1 + strict / blocks:.2f}, {gain:+.0%})")
            if blocks
            else ("per block", "no block was verified"),
            ("budget refused", "never" if exhausted is None else f"first at token {exhausted}"),
            ("guard", self._guard()),
        ]

    def _guard(self) -> str:
        """Off, or whether it tripped; a response of before there was one has it off."""
        guarded = self.report.get("guarded_at_token")
        if guarded is not None:
            return f"nothing relaxed from token {guarded}"
        return "on, never tripped" if self.report.get("guard") == "on" else "off"

    def _phases(self) -> list[tuple[str, str]]:
        """What each phase paid, in scope "phases"."""
        return [
            (
                f"in the {name}",
                f"{p['exceptions']} exceptions, {p['regret_spent']:.2f} of {p['budget']:g} nats",
            )
            for name, p in self.report.get("phases", {}).items()
        ]


def visible(text: str) -> str:
    """A token's text with its spaces and line ends to be seen."""
    return text.replace("\n", "↵").replace("\t", "⇥").replace(" ", "␣") or "∅"


def split_core(text: str) -> tuple[str, str, str]:
    """Part a token from the space around it, which is not to be marked; one of nothing else gets a sign."""
    core = text.strip()
    if not core:
        return "", visible(text), "\n" * text.count("\n")
    start = text.index(core)
    return text[:start], core, text[start + len(core) :]


def read_transcript(response: Mapping[str, Any]) -> Transcript:
    """Read a completion or chat completion.

    Raises:
        TranscriptError: It has no exception trace, no log-probabilities, which hold the tokens' texts, or
            something in it is not what vLLM and ASD write there.
    """
    try:
        transcript = _read(response)
        transcript.summary(), transcript.gates()
        for relaxation in transcript.relaxations:
            _refuse_bad_numbers(relaxation)
    except TranscriptError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        what = f"it lacks {error}" if isinstance(error, LookupError) else str(error)
        raise TranscriptError(f"this is no response of vLLM with ASD, or a damaged one: {what}") from None
    return transcript


def _refuse_bad_numbers(relaxation: Relaxation) -> None:
    if not 0 <= relaxation.regret < math.inf:
        raise ValueError(f"the regret {relaxation.regret} is no number of nats")
    for logprob in (relaxation.other_logprob, relaxation.said_logprob):
        if logprob is not None and not logprob <= _SAME_LOGPROB:
            raise ValueError(f"{logprob} is no log-probability")


def _read(response: Mapping[str, Any]) -> Transcript:
    metrics = response.get("metrics") or {}
    report = (metrics.get("speculative_decoding") or {}).get("asd")
    if report is None:
        raise TranscriptError(
            "the response has no metrics.speculative_decoding.asd: start the server with ASD on and "
            "--per-request-spec-decode-metrics detailed, and ask at temperature 0"
        )
    if "exception_trace" not in report:
        raise TranscriptError(
            "the response lists no exceptions: start the server with "
            "--per-request-spec-decode-metrics detailed, not summary"
        )
    texts, alternatives = _tokens(response)
    by_position = {entry["position"]: entry for entry in report["exception_trace"]}
    pieces, number = [], 0
    for position, text in enumerate(texts):
        entry = by_position.get(position)
        relaxation = None
        if entry is not None:
            number += 1
            relaxation = _relaxation(number, entry, text, alternatives[position], report["mode"])
        pieces.append(Piece(text, relaxation))
    return Transcript(pieces, report, str(response.get("model", "")))


def _relaxation(
    number: int, entry: Mapping[str, Any], said: str, alternatives: list[tuple[str, float]], mode: str
) -> Relaxation:
    logprobs = entry.get("target_logprob"), entry.get("logprob")
    # Under shadow the target's token is the one in the text.
    other, in_text = reversed(logprobs) if mode == "shadow" else logprobs
    return Relaxation(
        number=number,
        position=entry["position"],
        regret=entry["regret"],
        other_text=_other_text(entry, said, alternatives, mode),
        other_logprob=other,
        said_logprob=in_text,
        at_stake=entry.get("at_stake"),
    )


def _tokens(response: Mapping[str, Any]) -> tuple[list[str], list[list[tuple[str, float]]]]:
    """The tokens' texts, and per token the likeliest ones with their log-probability."""
    if not response.get("choices"):
        raise TranscriptError("this is neither a completion nor a chat completion: it has no choices")
    logprobs = response["choices"][0].get("logprobs") or {}
    if logprobs.get("tokens"):
        tops = logprobs.get("top_logprobs") or [None] * len(logprobs["tokens"])
        return list(logprobs["tokens"]), [list((top or {}).items()) for top in tops]
    if logprobs.get("content"):
        content = logprobs["content"]
        tops = [[(top["token"], top["logprob"]) for top in entry["top_logprobs"]] for entry in content]
        return [entry["token"] for entry in content], tops
    raise TranscriptError(
        "the response does not say where its tokens begin: ask with log-probabilities "
        '("logprobs": 1, in a chat "logprobs": true, "top_logprobs": 2)'
    )


def _other_text(entry: Mapping[str, Any], said: str, alternatives: list[tuple[str, float]], mode: str) -> str:
    others = [top for top in alternatives if top[0] != said]
    if mode == "shadow":
        # The report has the draft's id alone; its text, if among the likeliest, is known by its probability.
        logprob, token_id = entry.get("logprob"), entry.get("token_id")
        same = [
            text for text, other in others if logprob is not None and abs(other - logprob) < _SAME_LOGPROB
        ]
        return same[0] if len(same) == 1 else "?" if token_id is None else f"#{token_id}"
    # The target's own token is its likeliest; what else is listed is the kept one.
    likeliest = max(others, key=lambda top: top[1], default=None)
    return f"#{entry['target_token_id']}" if likeliest is None else likeliest[0]
