"""The audit's report on answers whose quality is known: what it concludes, and what it writes."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("statsmodels")
pytest.importorskip("matplotlib")

from tests.audit_items import GOOD, RIGGED, STRICT, Rule, task_items
from vllm_asd.tools.audit.items import Item
from vllm_asd.tools.audit.report import build_report, json_schema, write_report
from vllm_asd.tools.audit.report_markdown import markdown
from vllm_asd.tools.audit.report_schema import AuditReport, CodeIsolation
from vllm_asd.tools.audit.report_words import MEASURES

MARGIN = 0.02
META = {"model": "tiny", "drafter": "ngram", "notes": ["Limits of unknown origin."]}


def report_of(
    items: list[Item], margin: float = MARGIN, chance: dict[str, float] | None = None
) -> AuditReport:
    return build_report(items, META, margin, chance)


class TestVerdict:
    def test_a_verifier_that_destroys_answers_is_caught(self) -> None:
        report = report_of(task_items("gsm8k", 40, RIGGED) + task_items("mbpp", 40, RIGGED, solved=0.3))
        assert report.overall.verdict == "inferior"
        assert report.overall.sentences[0].startswith(
            "Quality got worse: a loss of more than 2 points is shown."
        )
        assert all(task.asd.score and task.asd.score.difference.value < -0.2 for task in report.tasks)

    def test_the_same_verifier_run_twice_passes(self) -> None:
        report = report_of(task_items("gsm8k", 200, STRICT))
        assert report.overall.verdict == "non-inferior"
        assert report.pooled.asd.answers_changed.value == 0
        assert report.pooled.noise
        assert report.pooled.noise.score
        assert report.pooled.noise.score.verdict == "non-inferior"

    def test_few_items_leave_it_open_and_say_how_many_are_needed(self) -> None:
        report = report_of(task_items("gsm8k", 30, GOOD))
        assert report.overall.verdict == "undecided"
        assert re.search(r"about \d+ items would rule it out", report.overall.sentences[0])

    def test_one_destroyed_task_is_not_hidden_by_the_others(self) -> None:
        lossless = [item for task in ("a", "b", "c") for item in task_items(task, 200, STRICT)]
        report = report_of(lossless + task_items("d", 40, RIGGED), margin=0.05)
        assert report.overall.score
        assert report.overall.score.verdict != "inferior"
        assert (report.overall.verdict, report.overall.tasks_inferior) == ("inferior", ["d"])
        assert report.overall.sentences[0].startswith("Quality got worse on d:")
        assert report.overall.worst_task == "d"

    def test_tasks_that_cannot_lose_do_not_help_to_pass(self) -> None:
        """A task at its floor and one at chance agree perfectly; the audit still rests on 30 items."""
        seeing = task_items("gsm8k", 30, GOOD)
        floor, guessed = task_items("math500", 400, STRICT, 0.01), task_items("mmlu", 400, STRICT, 0.25)
        report = report_of(seeing + floor + guessed, chance={"mmlu": 0.25})
        assert {task.name: task.sight for task in report.tasks} == {
            "gsm8k": "sees",
            "math500": "floor",
            "mmlu": "chance",
        }
        assert report.overall.verdict == "undecided"
        assert report.overall.tasks_blind == ["math500", "mmlu"]
        assert report.overall.score
        assert report.overall.score.pairs == 30

    def test_without_any_score_there_is_no_verdict_but_evidence(self) -> None:
        answers = task_items("alpaca", 40, replace(GOOD, changes=1.0, likelihood=-0.5))
        report = report_of([item.model_copy(update={"score": None, "extracted": None}) for item in answers])
        assert report.overall.verdict == "undecided"
        assert report.overall.tasks_unscored == ["alpaca"]
        assert report.pooled.asd.score is None
        assert report.pooled.asd.loglikelihood
        assert report.pooled.asd.loglikelihood.value == pytest.approx(-0.5, abs=0.01)
        assert "the scores say nothing" in report.overall.sentences[0]


def with_(item: Item, **values: object) -> Item:
    return Item.model_validate(item.model_dump() | values)


class TestFigures:
    def items(self) -> list[Item]:
        """Two items, figures by hand."""
        rows = task_items("t", 2, STRICT, solved=1.0)
        figures = {
            "control": {"tokens": 40, "rounds": 10, "accepted": 30, "latency_s": 3.0},
            "asd": {"tokens": 60, "rounds": 10, "accepted": 50, "latency_s": 2.0, "strict_accepted": 20},
            "control-again": {"tokens": 40, "rounds": 10, "accepted": 30, "latency_s": 5.0},
        }
        return [with_(item, **figures[item.arm]) for item in rows]

    def test_ratios_are_asd_over_control_and_wall_time_over_both_controls(self) -> None:
        comparison = report_of(self.items()).pooled.asd
        estimates = {
            "length": 1.5,
            "tokens_per_round": 6 / 4,
            "rounds": 1.0,
            "seconds": 2 / 4,
            "seconds_per_solved": 2 / 4,
        }
        for name, value in estimates.items():
            assert getattr(comparison, name).value == pytest.approx(value), name

    def test_drift_is_the_second_control_over_the_first(self) -> None:
        noise = report_of(self.items()).pooled.noise
        assert noise
        assert noise.seconds
        assert noise.seconds.value == pytest.approx(5 / 3)

    @pytest.mark.parametrize(("drift", "read"), [(1.0, "better"), (0.5, "strict drifted")])
    def test_reads_no_speed_off_a_machine_that_changed_its_own(self, drift: float, read: str) -> None:
        """ASD takes 1/1.3 of the rounds' time; a second control that took half of it says why."""
        items = task_items("gsm8k", 40, GOOD)
        items = [with_(i, latency_s=i.latency_s * drift) if i.arm == "control-again" else i for i in items]
        items = [with_(i, latency_s=i.latency_s * 0.7) if i.arm == "asd" else i for i in items]
        pooled = report_of(items).pooled
        readings = {measure.name: measure.reading(pooled.asd, pooled.noise) for measure in MEASURES}
        assert readings["wall time per answer"] == read

    def test_gain_over_the_same_blocks(self) -> None:
        assert report_of(self.items()).pooled.spending.same_block_gain == pytest.approx((10 + 50) / (10 + 20))

    def test_a_solved_item_costs_more_where_fewer_are_solved(self) -> None:
        items = self.items()
        items = [with_(i, score=0.0) if (i.arm, i.item_id) == ("asd", "0") else i for i in items]
        comparison = report_of(items).pooled.asd
        assert comparison.rounds_per_solved
        assert comparison.rounds_per_solved.value == pytest.approx(2.0)

    def test_extracted_answers_count_only_where_one_was_found(self) -> None:
        found = {("control", "0"): "7", ("asd", "0"): None, ("control", "1"): None, ("asd", "1"): None}
        items = [with_(i, extracted=found.get((i.arm, i.item_id), "7")) for i in self.items()]
        comparison = report_of(items).pooled.asd
        assert comparison.extracted_agree
        assert comparison.extracted_agree.value == 0.0

    def test_length_quarters_show_where_the_loss_lies(self) -> None:
        """Only long answers are lost: the last quarter shows it, the others show nothing."""
        items = task_items("t", 80, STRICT, solved=1.0)
        lengths = sorted(item.tokens for item in items if item.arm == "control")
        long = {item.item_id for item in items if item.arm == "control" and item.tokens > lengths[70]}
        items = [with_(i, score=0.0) if i.arm == "asd" and i.item_id in long else i for i in items]
        differences = [band.difference.value for band in report_of(items).tasks[0].bands]
        assert differences[:3] == [0, 0, 0]
        assert differences[3] < -0.3


class TestInput:
    def test_answers_without_a_partner_are_counted_not_guessed(self) -> None:
        items = task_items("gsm8k", 10, GOOD)
        report = report_of(
            [i for i in items if (i.arm, i.item_id) not in {("asd", "3"), ("control-again", "4")}]
        )
        assert report.pooled.asd.score
        assert (report.pooled.asd.score.pairs, report.unpaired) == (9, 2)

    def test_reads_nothing_into_a_handful_of_items(self) -> None:
        report = report_of(task_items("gsm8k", 5, RIGGED))
        assert {measure.reading(report.pooled.asd, report.pooled.noise) for measure in MEASURES} <= {
            "too few items",
            "not measured",
        }
        assert any("Fewer than 20 items" in sentence for sentence in report.overall.sentences)

    def test_a_share_of_none_has_a_width(self) -> None:
        changed = report_of(task_items("gsm8k", 40, STRICT)).pooled.asd.answers_changed
        assert (changed.value, changed.low) == (0, 0)
        assert changed.high == pytest.approx(0.0876, abs=1e-3)

    def test_a_missing_second_control_is_said(self) -> None:
        report = report_of([i for i in task_items("gsm8k", 10, GOOD) if i.arm != "control-again"])
        assert report.pooled.noise is None
        assert "no noise floor" in report.overall.sentences[-1]

    def test_refuses_arms_that_answered_different_prompts(self) -> None:
        items = task_items("gsm8k", 2, GOOD)
        items[1] = with_(items[1], prompt_hash="0" * 64)
        with pytest.raises(ValueError, match="gsm8k/0: the arms answered different prompts"):
            report_of(items)

    def test_refuses_an_audit_with_one_arm_only(self) -> None:
        with pytest.raises(ValueError, match="no item has answers of both arms"):
            report_of([i for i in task_items("gsm8k", 2, GOOD) if i.arm == "control"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a task that wins, one that loses under a hostile name, a graded one, and one without score."""
    noise = Rule(loses=0.01, gains=0.01, changes=0.05)
    unscored = [
        item.model_copy(update={"score": None, "extracted": None}) for item in task_items("alpaca", 20, GOOD)
    ]
    items = (
        task_items("gsm8k", 60, GOOD, again=noise)
        + task_items("a|b<script>alert(1)</script>", 60, RIGGED)
        + task_items("ifeval", 20, GOOD, graded=True)
        + unscored
    )
    folder = tmp_path_factory.mktemp("audit") / "new"
    write_report(items, META, folder, MARGIN)
    write_report(items, META, folder / "again", MARGIN)
    return folder


class TestFiles:
    def test_json_follows_its_schema_and_reads_back(self, folder: Path) -> None:
        text = (folder / "report.json").read_text()
        jsonschema = pytest.importorskip("jsonschema")
        jsonschema.validate(json.loads(text), json_schema())
        assert json.loads(text)["schema"] == "vllm-asd/audit/1"
        assert AuditReport.model_validate_json(text).model_dump_json(by_alias=True, indent=2) + "\n" == text

    def test_every_field_of_the_schema_is_described(self) -> None:
        schema = json_schema()
        parts = [schema, *schema["$defs"].values()]
        bare = [
            name for part in parts for name, field in part["properties"].items() if "description" not in field
        ]
        assert bare == []

    def test_same_answers_same_bytes(self, folder: Path) -> None:
        files = [path for path in folder.iterdir() if path.is_file()]
        assert {path.name for path in files} == {
            "report.json",
            "report.md",
            "report.html",
            "quality.svg",
            "gain.svg",
            "regret.svg",
        }
        for path in files:
            assert path.read_bytes() == (folder / "again" / path.name).read_bytes(), path.name

    def test_page_stands_alone_and_runs_nothing(self, folder: Path) -> None:
        page = (folder / "report.html").read_text()
        assert page.count("data:image/svg+xml;base64,") == 3
        assert not re.search(r'(src|href)="(?!data:image/svg)', page)
        assert "<script" not in page
        assert "a|b&lt;script&gt;" in page

    def test_first_line_is_the_verdict_and_worse_stands_beside_better(self, folder: Path) -> None:
        lines = [line for line in (folder / "report.md").read_text().splitlines() if line]
        assert lines[0].startswith("# Audit of approximate speculative decoding: tiny with ngram")
        assert lines[1].startswith("**Quality got worse: a loss of more than 2 points is shown.")
        table = lines.index("| better | worse |")
        assert "tokens per verification round" in lines[table + 2].split(" | ")[0]
        assert "score:" in lines[table + 2].split(" | ")[1]
        assert "- Note: Limits of unknown origin." in lines[:table]

    def test_tables_are_whole(self, folder: Path) -> None:
        """Each row of a table has as many cells as its header, whatever a task is called."""
        width = 0
        for line in (folder / "report.md").read_text().splitlines():
            cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
            assert width in (0, cells) or cells == 0, line
            width = cells


@pytest.mark.parametrize(
    ("isolation", "line"),
    [
        (None, None),
        ("bubblewrap", "ran under bubblewrap"),
        ("fallback", "ran under the fallback, without bubblewrap"),
        ("lm-eval", "confined by nothing of ours"),
    ],
)
def test_it_says_how_code_was_confined(isolation: CodeIsolation | None, line: str | None) -> None:
    report = build_report(task_items("mbpp", 30, GOOD), META, MARGIN, code_isolation=isolation)
    assert report.code_isolation == isolation
    page = markdown(report)
    assert ("Code that the model wrote" in page) == (line is not None)
    assert line is None or line in page
    # Reports from before the field are read as before.
    older = report.model_dump(by_alias=True, exclude={"code_isolation"})
    assert AuditReport.model_validate(older).code_isolation is None
