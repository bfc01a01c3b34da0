"""What the audit's tasks read out of answers, and how they run code."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from vllm_asd.tools.tasks import BUILTIN_DATA, choices, mathematics, numbers, programs
from vllm_asd.tools.tasks.documents import NoDocuments, read


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("3 + 4 = 7 apples. The answer is 7.", "7"),
        ("He pays $1,250.00 in all.", "1250"),
        ("La respuesta es 1.200 euros, no 12.", "1200"),
        ("Cuesta 2,5 euros", "2.5"),
        ("答案是 42。", "42"),
        ("<think>maybe 3</think>It is -8", "-8"),
        ("first 5, then \\boxed{6}", "6"),
        ("no idea", None),
    ],
)
def test_the_stated_or_last_number_in_plain_notation(answer: str, number: str | None) -> None:
    assert numbers.extract([[answer]], None) == [[number]]


def test_numbers_are_compared_as_numbers() -> None:
    assert numbers.score({"gold": "2,125"}, ["2125"]) == {"score": 1.0}
    assert numbers.score({"gold": "70"}, ["7"]) == {"score": 0.0}
    assert numbers.score({"gold": "70"}, [None]) == {"score": 0.0}


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("The answer is (B).", "B"),
        ("C. because A. is wrong", "C"),
        ("Water boils there, so D", "D"),
        ("Answer: **a**", "A"),
        ("A stack gives it back first.", None),
    ],
)
def test_the_letter_an_answer_arrives_at(answer: str, letter: str | None) -> None:
    assert choices.final_letter(answer) == letter


def test_mathematics_compares_up_to_notation() -> None:
    found = mathematics.boxed(r"so it is $\boxed{\frac12}$")
    assert mathematics.score({"gold": r"\frac{1}{2}"}, [found]) == {"score": 1.0}
    assert mathematics.boxed(r"cut off: \boxed{1") is None


_PROMPT = 'import math\n\n\ndef root(n):\n    """The root of n."""\n'
_FUNCTION = "def root(n):\n    return math.sqrt(n)\n"


@pytest.mark.parametrize(
    "answer",
    [
        f"Here it is:\n```python\n{_FUNCTION}```\nIt uses math.",
        f"```\nroot(4)\n```\nor\n```python\n{_FUNCTION}```",
        f"```python\n{_FUNCTION}\n\nprint(root(",  # cut off
        f"Sure:\n\n{_FUNCTION}\nprint(root(",  # no fence, cut off
        "    return math.sqrt(n)",  # a base model goes on in the body
        "```python\nreturn math.sqrt(n)\n```",
    ],
)
def test_finds_the_function_in_an_answer(answer: str) -> None:
    document = {"prompt": _PROMPT, "entry_point": "root", "test": "def check(f):\n    assert f(9) == 3"}
    [[code]] = programs.extract_function([[answer]], [document])
    assert programs.score_function(document, [code]) == {"score": 1.0}


def test_a_wrong_program_does_not_pass() -> None:
    document: dict[str, Any] = {"test_setup_code": "", "test_list": ["assert one() == 1"]}
    assert programs.score_program(document, ["def one():\n    return 1"]) == {"score": 1.0}
    assert programs.score_program(document, ["def one():\n    return 2"]) == {"score": 0.0}


def test_a_prompt_without_a_body_gives_the_tests_what_else_it_defines() -> None:
    prompt = "def twice(n):\n    return 2 * n\n\ndef four_times(n):"
    document = {"prompt": prompt, "entry_point": "four_times"}
    document["test"] = "def check(f):\n    assert f(3) == twice(twice(3))"
    assert programs.score_function(document, ["    return 4 * n"]) == {"score": 1.0}
    # Its own `twice` is not the one that the tests use.
    fake = "def twice(n):\n    return 0\n\ndef four_times(n):\n    return 0"
    assert programs.score_function(document, [fake]) == {"score": 0.0}


def test_the_shipped_code_tasks_are_passed_by_their_own_solutions() -> None:
    for line in (BUILTIN_DATA / "coding" / "audit.jsonl").read_text().splitlines():
        row = json.loads(line)
        document = {"prompt": row["prompt"], **row["meta"]}
        assert programs.score_function(document, [row["answer"]]) == {"score": 1.0}, row["id"]


def test_a_folder_without_the_set_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(NoDocuments, match=r"no gsm8k/audit\.jsonl in"):
        read(str(tmp_path), "gsm8k")
