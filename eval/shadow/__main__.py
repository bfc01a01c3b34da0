"""`python -m eval.shadow`: see the package."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from eval.shadow.measure import IN_PROCESS, measure
from eval.shadow.summary import Summary, summarize
from vllm_asd.tools.answers import read_prompts
from vllm_asd.tools.measured_folder import begin
from vllm_asd.tools.models import default_cache_dir, prepare_smollm2
from vllm_asd.tools.provenance import provenance
from vllm_asd.tools.server.environment import enter_environment

SCHEMA = "vllm-asd/shadow/1"


def main(
    data: Annotated[list[str], typer.Option(help="NAME=FILE.jsonl with `id` and `prompt`; may be repeated.")],
    drafter: Annotated[str, typer.Option(help="EAGLE-3 head, a folder.")],
    output: Annotated[Path, typer.Option(help="Folder for the raw runs and the summary.")],
    draft_tokens: Annotated[int, typer.Option(help="K.")] = 5,
    prompts: Annotated[int, typer.Option(help="Of each data set, from its top.")] = 24,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 128,
    batch: Annotated[int, typer.Option(help="Prompts at a time.")] = 24,
) -> None:
    """Hold shadow mode's forecast against enforced runs, on SmolLM2-135M-Instruct with the default limits.

    Resumes where it stopped. More prompts or data sets add to what is there; another drafter, K or length
    needs another --output.

    Example: python -m eval.shadow --data gsm8k=gsm8k.jsonl --drafter eagle3-head --output out
    """
    enter_environment("eval.shadow", 2, IN_PROCESS)
    speculation = {
        "method": "eagle3",
        "model": drafter,
        "num_speculative_tokens": draft_tokens,
        "rejection_sample_method": "asd",
    }
    files, settings = begin("eval.shadow", data, output, speculation, max_tokens)
    todo = [prompt for file in files for prompt in read_prompts(file.name, file.path, prompts)]

    def engine() -> Any:
        from vllm import LLM

        return LLM(
            model=str(prepare_smollm2(default_cache_dir())),
            enforce_eager=True,
            max_model_len=2048,
            max_num_seqs=batch,
            disable_log_stats=False,
            per_request_spec_decode_metrics="summary",
            speculative_config=speculation,
        )

    runs = measure(engine, todo, output / "runs.jsonl", max_tokens, batch)
    names = [file.name for file in files] + ([None] if len(files) > 1 else [])
    summaries = [summarize(runs, name) for name in names]
    report = {
        "schema": SCHEMA,
        **provenance(["python", "-m", "eval.shadow"]),
        **settings,
        "summaries": [asdict(summary) for summary in summaries],
    }
    (output / "summary.json").write_text(json.dumps(report, indent=2) + "\n")
    _show(summaries)


def _show(summaries: list[Summary]) -> None:
    table = Table(title="Shadow against enforced")
    for name in ("", "prompts", "parted", "same place", "same block", "regret differs by", "strict"):
        table.add_column(name, justify="right")
    for name in ("foreseen (95%)", "realized (95%)", "foreseen - realized", "same blocks"):
        table.add_column(name, justify="right")
    for s in summaries:
        gains = [
            f"{gain.value:+.3f} ({gain.low:+.3f} to {gain.high:+.3f})"
            for gain in (s.foreseen, s.realized, s.difference)
        ]
        counts = [str(count) for count in (s.prompts, s.parted, s.same_place, s.same_block)]
        figures = [f"{s.max_regret_difference:.1e}", f"{s.strict:.2f}", *gains, f"{s.same_blocks:+.3f}"]
        table.add_row(s.task, *counts, *figures)
    Console(width=180).print(table)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command()(main)
    app(prog_name="python -m eval.shadow")
