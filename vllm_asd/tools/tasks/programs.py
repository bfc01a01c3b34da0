"""Code tasks: the program in an answer, run against the document's tests in processes of their own."""

import ast
import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from textwrap import indent
from typing import Any

from vllm_asd.tools.tasks.final_answer import behind_thinking, extract_each
from vllm_asd.tools.tasks.isolation import Trial, passes

# A block that was cut off at the longest answer has no closing fence.
_BLOCK = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
_CODE_LINE = re.compile(r"^(?:def |import |from |class |@)", re.MULTILINE)
_passes = cache(passes)


def extract_function(responses: Iterable[Sequence[str]], documents: Iterable[Any]) -> list[list[str]]:
    """lm-eval's filter for tasks whose prompt is the beginning of a function: the code of each response."""
    return [
        [code_of(behind_thinking(text), f"def {document['entry_point']}(") for text in texts]
        for texts, document in zip(responses, documents, strict=True)
    ]


def extract_program(responses: Iterable[Sequence[str]], _documents: object) -> list[list[str]]:
    """lm-eval's filter for tasks that describe a function: the code of each response."""
    return extract_each(responses, code_of)


def score_function(document: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """1 if the function passes HumanEval's `check`."""
    program = complete(document["prompt"], results[0], document["entry_point"])
    tests = f"{document['test']}\ncheck({document['entry_point']})"
    trial = Trial(program, tests, _complete_code(document["prompt"]), document["entry_point"])
    return {"score": float(_passes(trial))}


def score_program(document: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """1 if the code passes every assertion of MBPP."""
    tests = "\n".join([document["test_setup_code"], *document["test_list"]])
    return {"score": float(_passes(Trial(results[0], tests)))}


def complete(prompt: str, code: str, entry_point: str) -> str:
    """The prompt with the code behind it: that may repeat the function or go on in its body."""
    if f"def {entry_point}(" in code:
        # The prompt first: its imports and its other functions are not always repeated.
        return f"{prompt.rstrip()}\n\n{code}"
    is_body = code[:1].isspace() or not code
    return f"{prompt.rstrip()}\n{code if is_body else indent(code, '    ')}"


def _complete_code(prompt: str) -> str:
    """A prompt as code that runs, for what else it defines: its last function may lack a body."""
    for code in (prompt, f"{prompt.rstrip()}\n    pass\n"):
        with contextlib.suppress(SyntaxError, ValueError):
            ast.parse(code)
            return code
    return ""


def code_of(answer: str, wanted: str = "def ") -> str:
    """The first fenced block with `wanted` in it, else the first; without fences, the code in the answer.

    What was cut off at the longest answer loses its last lines until it parses.
    """
    blocks = list(_BLOCK.finditer(answer))
    if not blocks:
        return _unfenced(answer.rstrip(), wanted)
    chosen = next((block for block in blocks if wanted in block.group(1)), blocks[0])
    code = chosen.group(1).rstrip()
    return code if chosen.group(0).endswith("```") else _parsing_part(code)


def _unfenced(answer: str, wanted: str) -> str:
    begin = _CODE_LINE.search(answer)
    # Without the function, it may be a body that goes on behind the prompt.
    return _parsing_part(answer[begin.start() :]) if begin and wanted in answer else answer


def _parsing_part(code: str) -> str:
    lines = code.split("\n")
    for kept in range(len(lines), 0, -1):
        part = "\n".join(lines[:kept])
        try:
            ast.parse(part)
        except (SyntaxError, ValueError):
            continue
        return part
    return code
