"""What stands beside a result names no folder of the machine it was made on."""

import sys
from typing import Any

import pytest

from vllm_asd.tools.provenance import provenance, without_folders


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("/home/me/models/head", "models/head"),
        ("../models/head", "models/head"),
        ("../../data/models/head/", "models/head"),
        ("~/models/head", "models/head"),
        ("./head", "head"),
        ("../head", "head"),
        ("/head", "head"),
        ("data/gsm8k/audit.jsonl", "gsm8k/audit.jsonl"),
        ("gsm8k=/home/me/data/gsm8k/audit.jsonl", "gsm8k=gsm8k/audit.jsonl"),
        ("--data=gsm8k=../gsm8k/audit.jsonl", "--data=gsm8k=gsm8k/audit.jsonl"),
        ("/home/me/k=5/head", "k=5/head"),
        ('{"method": "eagle3", "model": "/home/me/k=5/head"}', '{"method": "eagle3", "model": "k=5/head"}'),
        ('--hf-overrides={"paths": ["../a/b", 1]}', '--hf-overrides={"paths": ["a/b", 1]}'),
        ({"config": {"model": "../models/head"}, "k": 5}, {"config": {"model": "models/head"}, "k": 5}),
        (("--model", "/home/me/models/target"), ["--model", "models/target"]),
    ],
)
def test_of_a_path_the_last_two_names_are_left(given: Any, kept: Any) -> None:
    assert without_folders(given) == kept
    assert without_folders(kept) == kept


@pytest.mark.parametrize(
    "kept",
    [
        "org/head",
        "http://localhost:8000/v1/",
        "--url=http://localhost:8000/v1/x",
        "eagle3",
        "--k",
        "5",
        "/",
        "",
    ],
)
def test_what_is_no_folder_stays(kept: str) -> None:
    assert without_folders(kept) == kept


def test_the_command_is_kept_without_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--speculative-config", '{"model": "/home/me/models/head"}', "--output", "/home/me/out/a"]
    monkeypatch.setattr(sys, "argv", ["x", *arguments])
    command = provenance(("vllm-asd", "bench"))["command"]
    assert command == """vllm-asd bench --speculative-config '{"model": "models/head"}' --output out/a"""
