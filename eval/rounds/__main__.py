"""`python -m eval.rounds`: see the package."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from eval.rounds.summary import Summary, summarize
from vllm_asd.tools.answers import collect, read_prompts
from vllm_asd.tools.measured_folder import begin
from vllm_asd.tools.models import default_cache_dir, prepare_smollm2
from vllm_asd.tools.provenance import provenance
from vllm_asd.tools.server import VllmServer

SCHEMA = "vllm-asd/rounds/1"
# The order within a prompt; the control is run twice.
ARMS: dict[str, dict[str, Any]] = {"strict": {"asd_budget": 0}, "asd": {}, "strict-again": {"asd_budget": 0}}


def main(
    data: Annotated[list[str], typer.Option(help="NAME=FILE.jsonl with `id` and `prompt`; may be repeated.")],
    drafter: Annotated[str, typer.Option(help="EAGLE-3 head, a folder.")],
    output: Annotated[Path, typer.Option(help="Folder for the raw answers and the summary.")],
    method: Annotated[str, typer.Option(help="vLLM's name of the drafting method.")] = "eagle3",
    draft_tokens: Annotated[int, typer.Option(help="K.")] = 5,
    budget: Annotated[float, typer.Option(help="B, nats per request.")] = 8.0,
    gate: Annotated[float, typer.Option(help="g, nats per unit of q.")] = 0.25,
    block_cap: Annotated[int, typer.Option(help="M, exceptions per block.")] = 2,
    pricing: Annotated[str, typer.Option(help="remaining or realized.")] = "remaining",
    prompts: Annotated[int, typer.Option(help="Of each data set, from its top.")] = 64,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 160,
    concurrency: Annotated[int, typer.Option(help="Requests at a time.")] = 24,
) -> None:
    """Count verification rounds, strict against relaxed, on SmolLM2-135M-Instruct. Resumes where it stopped.

    More prompts or data sets add to what is there; other limits need another --output.

    Example: python -m eval.rounds --data gsm8k=gsm8k.jsonl --drafter eagle3-head --output out
    """
    speculation = {
        "method": method,
        "model": drafter,
        "num_speculative_tokens": draft_tokens,
        "rejection_sample_method": "asd",
        "asd_budget": budget,
        "asd_gate": gate,
        "asd_block_cap": block_cap,
        "asd_pricing": pricing,
    }
    files, settings = begin("eval.rounds", data, output, speculation, max_tokens)
    todo = [prompt for file in files for prompt in read_prompts(file.name, file.path, prompts)]
    args = ["--served-model-name", "smollm2", "--enforce-eager", "--max-model-len", "2048"]
    args += ["--max-num-seqs", str(concurrency), "--per-request-spec-decode-metrics", "detailed"]
    args += ["--speculative-config", json.dumps(speculation)]
    with VllmServer(prepare_smollm2(default_cache_dir()), args, kv_cache_gib=2) as server:
        answers = asyncio.run(
            collect(server.base_url, "smollm2", todo, ARMS, output / "answers.jsonl", max_tokens, concurrency)
        )
    summaries = [summarize(answers, file.name) for file in files] + [summarize(answers)]
    report = {
        "schema": SCHEMA,
        **provenance(("python", "-m", "eval.rounds")),
        **settings,
        "concurrency": concurrency,
        "summaries": [asdict(summary) for summary in summaries],
    }
    (output / "summary.json").write_text(json.dumps(report, indent=2) + "\n")
    _show(summaries)


def _show(summaries: list[Summary]) -> None:
    table = Table(title="Tokens per verification round")
    for name in (
        "",
        "prompts",
        "strict",
        "ASD",
        "ratio (95%)",
        "same blocks",
        "exc./100",
        "regret",
        "used up",
    ):
        table.add_column(name, justify="right")
    table.add_column("changed (by itself)", justify="right")
    table.add_column("length", justify="right")
    for s in summaries:
        ratio, low, high = s.gain
        table.add_row(
            s.task,
            str(s.prompts),
            f"{s.strict:.2f}",
            f"{s.asd:.2f}",
            f"{ratio:.3f} ({low:.3f}-{high:.3f})",
            f"{s.counterfactual:.3f}",
            f"{s.exceptions_per_100_tokens:.2f}",
            f"{s.regret_per_answer:.2f}",
            f"{s.exhausted:.0%}",
            f"{s.changed:.0%} ({s.changed_by_itself:.0%})",
            f"{s.length_ratio:.3f}",
        )
    Console(width=140).print(table)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command()(main)
    app(prog_name="python -m eval.rounds")
