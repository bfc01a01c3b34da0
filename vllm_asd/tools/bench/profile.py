"""Where the time of one decode step goes: draft, target forward, verification, and the rule in it.

    python -m vllm_asd.tools.bench.profile --batch 1,4,16                        # SmolLM2 with n-grams
    python -m vllm_asd.tools.bench.profile --method eagle3 --drafter HEAD --data PROMPTS.jsonl --output O.json

The engine runs in this very process, with a timer around the runner's own methods. On a GPU the timers wait
for the device, so that the parts add up to more than a step of a server, which overlaps them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from vllm_asd.tools.bench.cells import ASD, EXTRA_BODY, STRICT
from vllm_asd.tools.bench.settings import BenchError, Speculation, read_speculations
from vllm_asd.tools.bench.step_timer import PARTS, StepTimer
from vllm_asd.tools.bench.workload import read_prompts
from vllm_asd.tools.concurrency import read_levels
from vllm_asd.tools.demo.prompts import PROMPTS
from vllm_asd.tools.models import default_cache_dir, prepare_smollm2
from vllm_asd.tools.provenance import provenance

SCHEMA = "vllm-asd/bench-profile/1"
_WARM_UP_TOKENS = 16
_DEFAULT_MODEL_ARGS = ["--enforce-eager", "--max-model-len", "2048"]


def main(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Option(help="Folder or name (default: SmolLM2-135M-Instruct).")
    ] = None,
    speculative_config: Annotated[str | None, typer.Option(help="As for `vllm serve`.")] = None,
    method: Annotated[str | None, typer.Option(help="Instead: vLLM's name of the method.")] = None,
    drafter: Annotated[str | None, typer.Option(help="With --method: the draft model or head.")] = None,
    draft_tokens: Annotated[int, typer.Option(help="With --method: draft tokens per round.")] = 5,
    data: Annotated[Path | None, typer.Option(help="JSONL file with `prompt`.")] = None,
    batch: Annotated[str, typer.Option(help="Batch sizes.")] = "1,4,16",
    max_tokens: Annotated[int, typer.Option(help="Output tokens per request.")] = 64,
    output: Annotated[Path | None, typer.Option(help="Write the JSON here, too.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON in place of the table.")] = False,
) -> None:
    """Time the parts of a decode step under strict and ASD. What stands behind `--` goes to the engine.

    Example: python -m vllm_asd.tools.bench.profile --batch 1,16
    """
    try:
        if model is None and method is None and speculative_config is None:
            method = "ngram"
        given = [speculative_config] if speculative_config else []
        speculation = read_speculations(given, method, drafter, draft_tokens)[0]
        batches = read_levels(batch)
        prompts = read_prompts(data) if data is not None else [prompt.text for prompt in PROMPTS]
    except (BenchError, ValueError) as error:
        _stop(error)
    arguments = list(context.args) or (_DEFAULT_MODEL_ARGS if model is None else [])
    target = model or str(prepare_smollm2(default_cache_dir()))
    engine = _start(target, speculation, [*arguments, "--max-num-seqs", str(batches[-1])])
    try:
        arms = {
            f"{size}": {arm: _profile(engine, prompts, size, arm, max_tokens) for arm in (STRICT, ASD)}
            for size in batches
        }
    except ValueError as error:
        _stop(error)
    report = {
        "schema": SCHEMA,
        "provenance": provenance(("python", "-m", "vllm_asd.tools.bench.profile")),
        "model": Path(target).name,
        "drafter": speculation.label,
        "k": speculation.k,
        "parts": list(PARTS),
        "by_batch": arms,
    }
    text = json.dumps(report, indent=2) + "\n"
    if output is not None:
        output.write_text(text)
    if as_json:
        typer.echo(text)
    else:
        Console(width=110).print(_table(report))


def _stop(reason: object) -> NoReturn:
    typer.echo(f"vllm_asd.tools.bench.profile: {reason}", err=True)
    raise typer.Exit(1) from None


def _start(model: str, speculation: Speculation, arguments: Sequence[str]) -> Any:
    # Read when the engine is built: the runner must live in this process.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.llm_engine import LLMEngine

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    own = ["--model", model, "--no-enable-prefix-caching", "--speculative-config"]
    # What is meant for the server alone, as its ports, is no argument of an engine.
    parsed, _ = parser.parse_known_args([*own, json.dumps(speculation.config), *arguments])
    return LLMEngine.from_engine_args(EngineArgs.from_cli_args(parsed))


def _profile(engine: Any, prompts: Sequence[str], size: int, arm: str, max_tokens: int) -> dict[str, Any]:
    """Median milliseconds by part, over the steps in which the whole batch decodes."""
    runner = engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    _generate(engine, prompts, size, arm, _WARM_UP_TOKENS, None)
    timer = StepTimer(runner, size)
    try:
        _generate(engine, prompts, size, arm, max_tokens, timer)
    finally:
        timer.remove()
    return timer.summary()


def _generate(
    engine: Any, prompts: Sequence[str], size: int, arm: str, tokens: int, timer: StepTimer | None
) -> None:
    from vllm import SamplingParams

    extra = EXTRA_BODY[arm].get("vllm_xargs")
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, extra_args=extra)
    for index in range(size):
        engine.add_request(f"{arm}-{tokens}-{index}", _as_chat(engine, prompts[index % len(prompts)]), params)
    while engine.has_unfinished_requests():
        if timer is None:
            engine.step()
        else:
            timer.step(engine.step)


def _as_chat(engine: Any, prompt: str) -> str:
    tokenizer = engine.get_tokenizer()
    if not getattr(tokenizer, "chat_template", None):
        return prompt
    messages = [{"role": "user", "content": prompt}]
    return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))


def _table(report: dict[str, Any]) -> Table:
    table = Table(title=f"One decode step of {report['model']} with {report['drafter']}, K = {report['k']}")
    table.add_column("batch")
    table.add_column("arm")
    for name in ("steps", "step ms", *report["parts"], "rule %"):
        table.add_column(name, justify="right")
    for size, arms in report["by_batch"].items():
        for arm, found in arms.items():
            parts = [f"{found['mean_ms'][part]:.2f}" for part in report["parts"]]
            whole = f"{found['mean_ms']['step']:.2f}"
            table.add_row(size, arm, str(found["steps"]), whole, *parts, f"{100 * found['rule_share']:.2f}")
    return table


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command(context_settings={"allow_extra_args": True})(main)
    sys.exit(app(prog_name="python -m vllm_asd.tools.bench.profile"))
