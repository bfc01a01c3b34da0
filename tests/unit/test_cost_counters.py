"""What /metrics of a server tells about acceptance, and whose acceptance it is."""

import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.spec_decode_metrics import exposition
from vllm_asd.tools.plan.counters import CountersError, Reading, read_counters


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


def test_vllm_exports_these_names() -> None:
    """VLLM's own collectors, filled by its own statistics, two engines: read as one server."""
    pytest.importorskip("vllm")
    program = (
        "from types import SimpleNamespace\n"
        "from prometheus_client import REGISTRY, generate_latest\n"
        "from vllm.v1.spec_decode.metrics import SpecDecodingProm, SpecDecodingStats\n"
        "config = SimpleNamespace(num_speculative_tokens=4)\n"
        "engines = {0: ['m', '0'], 1: ['m', '1']}\n"
        "collectors = SpecDecodingProm(config, ['model_name', 'engine'], engines)\n"
        "for engine, rounds in enumerate(((4, 2), (2, 0))):\n"
        "    stats = SpecDecodingStats.new(4)\n"
        "    for accepted in rounds:\n"
        "        stats.observe_draft(4, accepted)\n"
        "    collectors.observe(stats, engine)\n"
        "print(generate_latest(REGISTRY).decode())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    reading = read_counters(done.stdout)
    assert reading.k == 4
    assert by_name(reading) == {"strict": JOINT}
