"""Acceptance out of a running server's /metrics: vLLM's counters by position, and ours for both rules."""

import urllib.error
import urllib.request
from dataclasses import dataclass

from vllm_asd.tools.plan.acceptance import acceptance_of_mean, joint_from_counters
from vllm_asd.tools.plan.plan import Arm
from vllm_asd.tools.server.keyed_request import keyed_request
from vllm_asd.tools.server.metrics import Metrics

_TIMEOUT_S = 10.0
_VLLM = "vllm:spec_decode_num_"
# Blocks that a stop token cuts are shorter in our counters than in vLLM's.
_SAME_MEAN = 0.05


class CountersError(Exception):
    """The server can't be asked, or has nothing to say; the message is one line."""


@dataclass(frozen=True)
class Reading:
    """What the counters came to since the server started.

    Attributes:
        k: Draft tokens per round that the server was started with.
        arms: Strict and ASD, as far as the counters tell them.
        notes: What a reader has to know about them.
    """

    k: int
    arms: tuple[Arm, ...]
    notes: tuple[str, ...]


def fetch_metrics(url: str) -> str:
    """Read `url`/metrics; a trailing `/`, `/v1` or `/metrics` does no harm.

    Raises:
        CountersError: Nobody answers, or not with 200.
    """
    address = url if "://" in url else f"http://{url}"
    for ending in ("/", "/metrics", "/v1"):
        address = address.removesuffix(ending)
    address += "/metrics"
    try:
        with urllib.request.urlopen(keyed_request(address), timeout=_TIMEOUT_S) as response:
            text: str = response.read().decode()
    except urllib.error.HTTPError as error:
        error.close()
        raise CountersError(f"{address} answered {error.code}: is that a vLLM server?") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise CountersError(
            f"no server answers at {address} ({reason}); start it, or correct --url"
        ) from None
    return text


def read_counters(text: str) -> Reading:
    """Turn /metrics into acceptance.

    Raises:
        CountersError: No speculative counters, or nothing drafted yet.
    """
    try:
        metrics = Metrics.parse(text)
    except ValueError as error:
        raise CountersError(f"what the server answers is no Prometheus text ({error})") from None
    if f"{_VLLM}drafts_total" not in metrics.names():
        raise CountersError("the server has no speculative counters: it runs without --speculative-config")
    drafts = metrics.total(f"{_VLLM}drafts_total")
    if not drafts:
        raise CountersError("the server has not drafted anything yet: send it some requests first")
    by_position: dict[int, float] = {}
    for sample in metrics.samples(f"{_VLLM}accepted_tokens_per_pos_total"):
        position = int(sample.labels["position"])
        by_position[position] = by_position.get(position, 0) + sample.value
    joint = joint_from_counters([by_position[position] for position in sorted(by_position)], drafts)
    arms, notes = _arms(metrics, joint)
    return Reading(len(joint), arms, (*_coverage(metrics, drafts), *notes))


def _arms(metrics: Metrics, joint: tuple[float, ...]) -> tuple[tuple[Arm, ...], tuple[str, ...]]:
    """Tell whose acceptance vLLM's counters by position are; the other rule has only its mean."""
    measured = Arm("strict", joint, source="counters by position")
    if "vllm_asd:blocks_total" not in metrics.names():
        return (measured,), ("ASD is not on at this server: strict only.",)
    blocks = metrics.total("vllm_asd:blocks_total")
    if not blocks:
        return (measured,), ("ASD has decided no block yet: strict only.",)
    means = {
        "strict": metrics.total("vllm_asd:strict_accepted_tokens_total") / blocks,
        "ASD": metrics.total("vllm_asd:accepted_tokens_total") / blocks,
    }
    nearest = min(("ASD", "strict"), key=lambda name: abs(means[name] - sum(joint)))
    known = abs(means[nearest] - sum(joint)) <= _SAME_MEAN * sum(joint)
    arms = tuple(
        Arm(name, joint, source="counters by position")
        if known and name == nearest
        else Arm(
            name, acceptance_of_mean(mean, len(joint)), source="mean of the counters, independence assumed"
        )
        for name, mean in means.items()
    )
    notes = ["Strict is what it would have kept of the very blocks that ASD decided."]
    if not known:
        notes.append(
            f"vLLM's counters by position ({sum(joint):.2f} accepted a round) mix ASD ({means['ASD']:.2f}) "
            f"with other requests (strict {means['strict']:.2f}): they are not used."
        )
    elif nearest == "strict" and means["strict"] < means["ASD"]:
        notes.append("The server emits what strict keeps (shadow): ASD is what would have been kept.")
    return arms, tuple(notes)


def _coverage(metrics: Metrics, drafts: float) -> tuple[str, ...]:
    """Say so when many tokens came from rounds without a draft, which no acceptance counter sees."""
    if "vllm:generation_tokens_total" not in metrics.names():
        return ()
    generated = metrics.total("vllm:generation_tokens_total")
    drafted = drafts + metrics.total(f"{_VLLM}accepted_tokens_total")
    if not generated or drafted >= generated:
        return ()
    share = f"{drafted / generated:.0%} of the generated tokens came from rounds with a draft"
    return (f"{share}: only those speed up.",)
