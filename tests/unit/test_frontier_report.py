"""The frontier's figures on runs whose answers are known."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from typer import BadParameter
from typer.testing import CliRunner

from eval.frontier.arms import FRONTIER, GUARD, LONG, REPLAYED, STRICT, Arm, select
from eval.frontier.curves import AtEqualCost, Prompts, _read, at_equal_cost, point, resample
from eval.frontier.engine import Settings
from eval.frontier.experiments import KNOWN_ARMS
from eval.frontier.loops import loops, repeated_share
from eval.frontier.report import write_report
from eval.frontier.rules import Walk
from eval.frontier.runs import Run, complete_prompts, read_runs
from eval.frontier.windows import windows

PROMPTS = 12


def answer(prompt: int, arm: str, rounds: int, kept: int, regret: float, exceptions: int) -> Run:
    """An answer of `rounds` rounds, `kept` drafts in each of them; strict would have kept one."""
    emitted = [1, *[kept + 1] * rounds]
    return Run(
        task=f"task{prompt % 2}",
        id=str(prompt),
        arm=arm,
        token_ids=list(range(sum(emitted))) if arm == STRICT else [0, 1, 2, *range(100, 97 + sum(emitted))],
        emitted=emitted,
        accepted=kept * rounds,
        rounds=rounds,
        strict=None if arm == STRICT else [1] * rounds,
        exceptions=[(3 + i, regret / exceptions) for i in range(exceptions)],
        finish_reason="length",
    )


def known_arms() -> list[Arm]:
    """The paper's rule at two settings, another rule at two."""
    named = [(STRICT, 0), ("paper", 1), ("paper", 2), ("better", 1), ("better", 2)]
    return [
        Arm(family, knob, f"{family}-{knob}" if knob else family, Walk("remaining"), {})
        for family, knob in named
    ]


def known_prompts() -> Prompts:
    """Gains over 2 tokens a round, 50% and 100%: for 0.1 and 0.2 nats per token, and for 0.06 and 0.12."""
    found: dict[tuple[str, str], dict[str, Run]] = {}
    for prompt in range(PROMPTS):
        n = 10 + prompt
        runs = [
            answer(prompt, STRICT, 2 * n, 1, 0.0, 0),
            answer(prompt, "paper-1", 2 * n, 2, 0.1 * (6 * n + 1), 2),
            answer(prompt, "paper-2", 2 * n, 3, 0.2 * (8 * n + 1), 4),
            answer(prompt, "better-1", 2 * n, 2, 0.06 * (6 * n + 1), 2),
            answer(prompt, "better-2", 2 * n, 3, 0.12 * (8 * n + 1), 4),
        ]
        found[runs[0].task, runs[0].id] = {run.arm: run for run in runs}
    return found


def test_a_point_says_what_was_gained_and_what_it_cost() -> None:
    """Gain on both baselines, regret per token, exceptions, divergence."""
    prompts, arms = known_prompts(), known_arms()
    got = point(arms[2], prompts, resample(prompts, arms))
    assert (got.gain.value, got.same_blocks.value) == pytest.approx((1.0, 1.0))
    assert got.regret.value == pytest.approx(0.2)
    tokens = sum(found["paper-2"].tokens for found in prompts.values())
    assert got.exceptions.value == pytest.approx(100 * 4 * PROMPTS / tokens)
    assert (got.median_divergence, got.changed) == (3.0, 1.0)
    assert got.gain.low == pytest.approx(1.0)


def test_at_equal_regret_a_rule_that_pays_less_gains_more() -> None:
    """Read between its settings; outside of them nothing is said."""
    prompts, arms = known_prompts(), known_arms()
    rows = {(r.cost, r.measure, r.against): r for r in at_equal_cost(arms, resample(prompts, arms))}
    first, second = (rows["regret", "gain", f"paper-{knob}"] for knob in (1, 2))
    assert first.family == "better"
    assert (first.at, first.paper) == pytest.approx((0.1, 0.5))
    # Two thirds of the way from its first setting to its second.
    assert ratio(first) == pytest.approx((0.5 + 0.5 * 2 / 3) / 0.5)
    assert second.ratio is None
    assert ratio(rows["exceptions", "same_blocks", "paper-1"]) == pytest.approx(1.0)


def test_a_curve_is_read_where_it_has_settings_on_both_sides() -> None:
    """A power of the cost is read exactly; a chord would be a fifth too low at 0.04."""
    cost = np.array([[0.01], [0.16]])
    got = [_read(cost, cost**0.5, np.array([at]))[0] for at in (0.0025, 0.01, 0.04, 0.16, 0.17)]
    assert got == pytest.approx([np.nan, 0.1, 0.2, 0.4, np.nan], nan_ok=True)
    assert np.isnan(_read(cost[:1], cost[:1], np.array([0.01]))[0])


def ratio(row: AtEqualCost) -> float:
    """There is one."""
    assert row.ratio is not None
    return row.ratio.value


def test_a_budget_that_runs_out_shows_in_the_windows() -> None:
    """Two tokens a round strict; the arm three, until token 257, where its exceptions end."""
    strict = [2] * 256
    relaxed = [3] * 86 + [2] * 127
    runs = {
        STRICT: run_of(STRICT, strict, None, []),
        "fixed": run_of("fixed", relaxed, [1] * 213, [(10, 0.5), (20, 1.5)]),
    }
    first, second = (row for row in windows({("t", "0"): runs}, [STRICT, "fixed"]) if row.arm == "fixed")
    assert (first.first_token, second.first_token) == (0, 256)
    assert first.gain is not None
    assert second.gain is not None
    assert (first.gain.value, second.gain.value) == pytest.approx((0.5, 0.0), abs=0.01)
    assert first.same_blocks == first.gain
    assert (first.regret, second.regret) == (2.0 / 256, 0.0)
    assert (first.fresh, first.fresh_blocks) == (1, first.same_blocks)
    looping = {arm: replace(run, token_ids=[7] * run.tokens) for arm, run in runs.items()}
    looped = [row for row in windows({("t", "0"): looping}, [STRICT, "fixed"]) if row.arm == "fixed"]
    assert [(row.fresh, row.fresh_blocks) for row in looped] == [(0, None)] * 2


def run_of(
    arm: str, emitted: list[int], strict: list[int] | None, exceptions: list[tuple[int, float]]
) -> Run:
    """An answer with these rounds."""
    tokens = list(range(1 + sum(emitted)))
    accepted = sum(emitted) - len(emitted)
    return Run("t", "0", arm, tokens, [1, *emitted], accepted, len(emitted), strict, exceptions, "length")


def test_loops_are_found_and_prose_is_not() -> None:
    """A passage three times over at the end; shorter ones for at least 24 tokens."""
    prose = list(range(100))
    assert loops([*prose, *[1, 2, 3] * 8])
    assert not loops([*prose, *[1, 2, 3] * 7])
    assert loops([*prose, *list(range(30)) * 3])
    assert not loops([*prose, *list(range(30)) * 2])
    assert not loops([*[7] * 50, *prose])
    assert repeated_share(prose) == 0.0
    assert repeated_share([1, 2, 3, 4] * 2) == pytest.approx(1 / 5)
    assert repeated_share([1]) == 0.0


def test_a_report_is_written_from_what_is_complete(tmp_path: Path) -> None:
    """A prompt that lacks an arm and a line that was cut off are left out."""
    pytest.importorskip("matplotlib")
    lines = []
    for prompt in range(5):
        for index, arm in enumerate(FRONTIER):
            run = answer(prompt, arm.name, 10, 1 + (index > 0), 0.1 * index, index)
            if arm.name == STRICT:
                replay = {again.name: [10, 10 + i, 10, 1 + i, 0.1 * i] for i, again in enumerate(REPLAYED)}
                run = replace(run, replay=replay)
            lines.append(json.dumps(asdict(run)))
    (tmp_path / "runs.jsonl").write_text("\n".join(lines)[:-20])
    settings = {"target": "t", "drafter": "d", "draft_tokens": 5, "max_tokens": 96}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    from eval.frontier.__main__ import app

    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 0, result.output
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["prompts"] == {"task0": 2, "task1": 2, "all": 4}
    assert len(summary["points"]["all"]) == len(FRONTIER) - 1
    gains = [row["replayed"]["value"] for row in summary["replayed"]["task0"]]
    assert gains == pytest.approx([i / 20 for i in range(len(REPLAYED))])
    assert (tmp_path / "frontier.png").stat().st_size > 10_000
    assert len(complete_prompts(read_runs(tmp_path / "runs.jsonl"), [STRICT])) == 5


def test_the_control_alone_is_enough_to_compare_rules_on_its_blocks(tmp_path: Path) -> None:
    """No arm of its own trajectory: the replayed rules are all there is."""
    pytest.importorskip("matplotlib")
    replay = {again.name: [10.0, 10.0 + i, 10.0, 1.0 + i, 0.1 * i] for i, again in enumerate(REPLAYED)}
    runs = [replace(answer(n, STRICT, 10, 1, 0.0, 0), replay=replay) for n in range(4)]
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(asdict(run)) + "\n" for run in runs))
    settings = {"target": "t", "drafter": None, "method": "ngram", "draft_tokens": 5, "max_tokens": 96}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    write_report(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["points"]["all"] == []
    assert {row["measure"] for row in summary["at_equal_cost"]["all"]} == {"replayed"}
    assert (tmp_path / "overview.png").stat().st_size > 10_000


def test_ngrams_need_no_folder_and_the_others_do() -> None:
    """Either way round it is said before an engine starts."""
    from eval.frontier.__main__ import _measure

    settings = Settings(Path("t"), None, "ngram", 5, "auto", 96, False, 1.0, 8)
    assert settings.speculation()["prompt_lookup_max"] == 4
    assert "model" not in settings.speculation()
    assert settings.described()["drafter"] is None
    assert replace(settings, method="eagle3", drafter=Path("a/head")).described()["drafter"] == "head"
    for wrong in (replace(settings, method="eagle3"), replace(settings, drafter=Path("head"))):
        with pytest.raises(BadParameter, match="--drafter FOLDER"):
            _measure(wrong, FRONTIER, "*", [], Path("nowhere"))


def test_a_folder_keeps_to_its_settings(tmp_path: Path) -> None:
    """Runs of two lengths in one table would be nonsense; the batch decides nothing."""
    from eval.frontier.__main__ import _measure
    from eval.frontier.engine import Settings

    def measure(max_tokens: int, batch: int) -> None:
        settings = Settings(Path("a/t"), Path("a/d"), "eagle3", 5, "auto", max_tokens, False, 1.0, batch)
        _measure(settings, FRONTIER, "*", [], tmp_path)

    measure(96, 32)
    measure(96, 16)
    with pytest.raises(BadParameter, match="was begun with max_tokens=96, not 128: give the same"):
        measure(128, 32)


def test_arms_have_names_of_their_own_and_can_be_picked() -> None:
    """A blank would end the name where the seam reads it; the control always runs."""
    for arms in (FRONTIER, LONG, GUARD, KNOWN_ARMS):
        names = [arm.name for arm in arms]
        assert len(set(names)) == len(names)
        assert not any(" " in name for name in names)
    picked = select(FRONTIER, "fly-*, paper-g0.1")
    assert [arm.name for arm in picked] == ["strict", "paper-g0.1", "fly-w2", "fly-w1"]
    with pytest.raises(ValueError, match="--arms flie: no such arm"):
        select(FRONTIER, "flie")
