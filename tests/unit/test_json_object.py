"""A JSON object that a user gave: a wrong one is refused in one line, with what arrived and what to do."""

import pytest

from vllm_asd.tools.json_object import LIMITS_EXAMPLE, NotAnObject, read_object


def test_reads_an_object() -> None:
    assert read_object("--limits", ' {"asd_budget": 0}\n', LIMITS_EXAMPLE) == {"asd_budget": 0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # As it arrives when the shell has taken the quotes.
        (
            "{asd_budget: 2}",
            "but {asd_budget: 2} (Expecting property name enclosed in double quotes at character 2)",
        ),
        ("[2]", "but [2]"),
        ("null", "but null"),
        ("", "but empty (Expecting value at character 1)"),
        ('{"a":\n 1,}', 'but {"a": 1,} ('),
        (f'{{"a": "{"x" * 99}', f'but {{"a": "{"x" * 50}... (Unterminated'),
    ],
)
def test_names_the_option_the_text_and_the_fix(text: str, said: str) -> None:
    with pytest.raises(NotAnObject) as refusal:
        read_object("--limits", text, LIMITS_EXAMPLE)
    message = str(refusal.value)
    assert message.startswith(f"--limits is not a JSON object {said}")
    assert message.endswith(""": give for example '{"asd_budget": 2}'""")
    assert "\n" not in message
