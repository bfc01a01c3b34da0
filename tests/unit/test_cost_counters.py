"""What /metrics of a server tells about acceptance, and whose acceptance it is."""

from collections.abc import Sequence

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest

from eval.cost.counters import CountersError, Reading, read_counters
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
        zeros = dict.fromkeys(("exceptions", "regret", "reused_tokens", "exhausted_requests"), 0)
        counts = {**zeros, **asd, "blocks": {"end": blocks} if blocks else {}, "request_regret": []}
        collectors.observe(counts, "m", 0)
    return generate_latest(registry).decode()


def by_name(reading: Reading) -> dict[str, float | Sequence[float]]:
    return {arm.name: arm.acceptance for arm in reading.arms}  # type: ignore[misc]


ROUNDS = (4, 2, 2, 0)
JOINT = (0.75, 0.75, 0.25, 0.25)


def test_without_the_plugin_it_is_strict() -> None:
    reading = read_counters(exposition(ROUNDS))
    assert reading.k == 4
    assert by_name(reading) == {"strict": JOINT}
    assert "not on" in reading.notes[0]


def test_positions_are_asds_where_asd_decides() -> None:
    reading = read_counters(exposition(ROUNDS, {"accepted_tokens": 8, "strict_accepted_tokens": 4}, 4))
    arms = by_name(reading)
    assert arms["ASD"] == JOINT
    # a + a^2 + a^3 + a^4 = 1 at strict's mean of one token a block.
    assert arms["strict"] == pytest.approx(0.5187901)


def test_positions_are_stricts_under_shadow() -> None:
    reading = read_counters(exposition(ROUNDS, {"accepted_tokens": 12, "strict_accepted_tokens": 8}, 4))
    arms = by_name(reading)
    assert arms["strict"] == JOINT
    assert isinstance(arms["ASD"], float)
    assert "shadow" in reading.notes[-1]


def test_mixed_traffic_is_nobodys_positions() -> None:
    reading = read_counters(exposition(ROUNDS, {"accepted_tokens": 6, "strict_accepted_tokens": 2}, 2))
    assert all(isinstance(value, float) for value in by_name(reading).values())
    assert "mix" in reading.notes[-1]


def test_nothing_decided_by_asd_yet() -> None:
    reading = read_counters(exposition(ROUNDS, {"accepted_tokens": 0, "strict_accepted_tokens": 0}))
    assert by_name(reading) == {"strict": JOINT}
    assert "no block" in reading.notes[0]


def test_says_how_many_tokens_never_had_a_draft() -> None:
    reading = read_counters(exposition(ROUNDS, generated=48))
    assert reading.notes[0].startswith("25% of the generated tokens")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vllm:num_requests_running 0\n", "no speculative counters: it runs without --speculative-config"),
        (exposition(()), "not drafted anything yet"),
        ("<html>not found</html>", "no Prometheus text|no speculative counters"),
    ],
)
def test_one_line_says_what_is_missing(text: str, message: str) -> None:
    with pytest.raises(CountersError, match=message) as caught:
        read_counters(text)
    assert "\n" not in str(caught.value)
