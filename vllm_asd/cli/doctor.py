"""`vllm-asd doctor`: would ASD be active here, and if not, what mends it?"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape

from vllm_asd.cli import options
from vllm_asd.cli.ending import checking
from vllm_asd.config import METHOD, AsdConfigError, split_speculative_config
from vllm_asd.diagnosis import Finding, check_environment
from vllm_asd.tools.json_object import SPECULATION_EXAMPLE, read_object
from vllm_asd.tools.server_config import SPECULATION, read_server_config
from vllm_asd.tools.usage import BadUsage

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")

_MARKS = {
    "ok": "[green]ok[/green]      ",
    "note": "[cyan]note[/cyan]    ",
    "problem": "[bold red]PROBLEM[/bold red] ",
    "skipped": "[dim]skipped[/dim] ",
}
# Without these there is no vLLM to ask.
_VLLM_NEEDS = ("python", "vllm", "torch", "torchvision", "transformers", "metadata")


@options.register(app, "doctor")
def main(
    model: options.Model = None,
    speculative_config: options.SpeculativeConfig = None,
    server_config: options.ServerConfig = None,
    as_json: options.AsJson = False,
) -> None:
    """Say whether ASD would be active here: exit status 0 if so, 1 with the command that mends it if not.

    Reads everything, changes nothing, starts no engine. vLLM itself is asked which model runner it would
    choose; with --model and --speculative-config that is the choice for those.

    Example: vllm-asd doctor --model Qwen/Qwen3-8B --speculative-config '{"method": "ngram",
    "num_speculative_tokens": 5, "rejection_sample_method": "asd"}'
    """
    with checking():
        model, given = _asked_about(model, speculative_config, server_config)
    # vLLM says the same in its log, which goes to stdout; the report is the command's whole output.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    logging.getLogger("vllm").addHandler(logging.NullHandler())
    with contextlib.redirect_stdout(sys.stderr):
        findings = examine(model, given)
    active = all(finding.state != "problem" for finding in findings)
    if as_json:
        options.print_json({"active": active, "findings": [asdict(f) for f in findings]})
    else:
        _print(findings, active)
    raise typer.Exit(0 if active else 1)


def _asked_about(
    model: str | None, speculative_config: str | None, server_config: Path | None
) -> tuple[str | None, dict[str, Any] | None]:
    """The model and the speculative configuration to ask vLLM about; the options win over the file.

    Raises:
        BadUsage: No JSON object, no YAML, or a configuration without a model.
    """
    given = None
    if server_config is not None:
        arguments = read_server_config(server_config)
        given = arguments.get(SPECULATION)
        found = arguments.get("model") or arguments.get("model-tag")
        model = model or (None if found is None else str(found))
    if speculative_config is not None:
        given = read_object("--speculative-config", speculative_config, SPECULATION_EXAMPLE)
    if given is not None and model is None:
        raise BadUsage("--speculative-config needs --model: give the model that you mean to serve")
    return model, given


def examine(model: str | None, given: dict[str, Any] | None) -> list[Finding]:
    """Run every check that can be run.

    Args:
        model: Folder or name, or None for vLLM's defaults.
        given: The speculative configuration, or None.
    """
    findings = check_environment()
    if any(finding.state == "problem" and finding.check in _VLLM_NEEDS for finding in findings):
        skipped = "not looked at: vLLM can't be asked before the above is mended"
        return [*findings, Finding("runner", "skipped", skipped), Finding("seams", "skipped", skipped)]
    if given is not None:
        try:
            findings += _check_requested(given)
        except AsdConfigError as error:
            return [*findings, Finding("settings", "problem", str(error), "correct --speculative-config")]
    return [*findings, *_ask_vllm(model, given)]


def _check_requested(given: dict[str, Any]) -> list[Finding]:
    _, config = split_speculative_config(given)
    if config is None:
        missing = "--speculative-config does not ask for ASD"
        return [Finding("settings", "problem", missing, f'add "rejection_sample_method": "{METHOD}"')]
    settings = " ".join(f"{key}={value}" for key, value in config.in_force().items())
    findings = [Finding("settings", "ok", settings)]
    if config.asd_scope != "all":
        needs = (
            f"asd_scope={config.asd_scope!r} needs the model's think tokens, which are not looked at here: "
            "vLLM must be started with --reasoning-parser, else it refuses the start"
        )
        findings.append(Finding("scope", "note", needs))
    return findings


def _ask_vllm(model: str | None, given: dict[str, Any] | None) -> list[Finding]:
    from vllm_asd.upstream import probe

    try:
        vllm_config = probe.build_config(model, given)
        runner = probe.chosen_runner(vllm_config)
    # Whatever vLLM raises on a model that isn't there or a combination it refuses.
    except (ValueError, OSError, RuntimeError, ImportError, AttributeError, TypeError) as error:
        return [Finding("runner", "problem", *_refusal(error))]
    scope = "" if model is not None else "; a model or drafter may change that (--model asks vLLM)"
    text = f"vLLM would choose Model Runner {runner.name} on {runner.platform}: {runner.reason}{scope}"
    return [
        Finding("runner", "ok", text),
        probe.check_combination(vllm_config),
        *probe.check_seams(runner),
    ]


def _refusal(error: Exception) -> tuple[str, str]:
    """What vLLM said, without pydantic's wrapping, and what to do about it."""
    reason = str(error).strip() or type(error).__name__
    if isinstance(error, ValidationError):
        reason = "; ".join(detail["msg"].removeprefix("Value error, ") for detail in error.errors())
    variable = "VLLM_USE_V2_MODEL_RUNNER"
    forced = variable in os.environ and "Model Runner" in reason
    fix = f"unset {variable}" if forced else "change the model or the setting that the message names"
    return f"vLLM refuses this configuration: {reason}", fix


def _print(findings: list[Finding], active: bool) -> None:
    console = Console(highlight=False)
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        line = f"{_MARKS[finding.state]}{finding.check:{width}}  {escape(finding.message)}"
        console.print(line, soft_wrap=True)
        if finding.fix:
            console.print(f"        {'':{width}}  mend: {escape(finding.fix)}", style="bold", soft_wrap=True)
    console.print()
    if active:
        console.print(
            'ASD would be active here, where --speculative-config has "rejection_sample_method": "asd".',
            soft_wrap=True,
        )
    else:
        console.print("[bold red]ASD would NOT be active here.[/bold red] See PROBLEM above.", soft_wrap=True)
