"""`vllm-asd bench`: what speed does it give, against strict and against no speculation, under load?"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from vllm_asd.tools.bench.settings import Settings

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
_NEEDED = ("vllm", "prometheus_client", "yaml", "numpy", "matplotlib", "pandas")
_NGRAM = "ngram"
# The small default model: no compilation for a run of minutes.
_DEFAULT_MODEL_ARGS = ("--enforce-eager", "--max-model-len", "2048")


@app.command(context_settings={"allow_extra_args": True})
def main(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Option(help="Folder or name (default: SmolLM2-135M-Instruct with n-grams).")
    ] = None,
    speculative_config: Annotated[
        list[str] | None,
        typer.Option(
            help="As for `vllm serve`; may be repeated, each on a server of its own.", metavar="JSON"
        ),
    ] = None,
    method: Annotated[str | None, typer.Option(help="Instead: vLLM's name of the method.")] = None,
    drafter: Annotated[str | None, typer.Option(help="With --method: the draft model or head.")] = None,
    draft_tokens: Annotated[int, typer.Option(help="With --method: draft tokens per round.", min=1)] = 5,
    config: Annotated[
        Path | None, typer.Option(help="A `vllm serve --config` file; options here win.", dir_okay=False)
    ] = None,
    concurrency: Annotated[str, typer.Option(help="Requests at a time.", metavar="N,...")] = "1,4,16,64",
    repeats: Annotated[int, typer.Option(help="Strict-ASD-strict triplets per concurrency.", min=1)] = 3,
    output: Annotated[
        Path, typer.Option(help="Folder for results; an unfinished run there goes on.", file_okay=False)
    ] = Path("bench-report"),
    data: Annotated[
        str | None,
        typer.Option(help="JSONL file with `prompt`, or a data set name of `vllm bench serve`."),
    ] = None,
    dataset_path: Annotated[str | None, typer.Option(help="What that data set reads.")] = None,
    chat: Annotated[bool, typer.Option(help="Put prompts into the model's chat template.")] = True,
    prompts: Annotated[int, typer.Option(help="Requests per measurement, at least.", min=1)] = 8,
    waves: Annotated[int, typer.Option(help="And at least this many per user.", min=1)] = 4,
    max_tokens: Annotated[int, typer.Option(help="Output tokens of each request.", min=2)] = 128,
    natural: Annotated[bool, typer.Option(help="Also once with answers that end by themselves.")] = True,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="JSONL with arrival_s, input_tokens, output_tokens: replay it, scaled.", dir_okay=False
        ),
    ] = None,
    trace_load: Annotated[
        float, typer.Option(help="Its rate, as a share of what the plain server can do.", min=0.01)
    ] = 0.7,
    trace_requests: Annotated[int, typer.Option(help="How many of its requests.", min=3)] = 64,
    profile: Annotated[bool, typer.Option(help="Also time the parts of a step.")] = True,
    kv_cache_gib: Annotated[int, typer.Option(help="KV cache on a CPU, in GiB.", min=1)] = 2,
) -> None:
    """Measure speed on fixed work: no speculation, strict, ASD and shadow, in turn, under load.

    Starts and stops the servers itself; what stands behind `--` goes to every `vllm serve`.

    Example: vllm-asd bench --concurrency 1,4,16 --output bench-report

    A GPU pair: vllm-asd bench --model meta-llama/Llama-3.1-8B-Instruct --method eagle3
    --drafter yuhuili/EAGLE3-LLaMA3.1-Instruct-8B --data prompts.jsonl -- --max-model-len 8192
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        _stop(f"needs {', '.join(missing)}: pip install 'vllm-asd[gpu,eval]', or [cpu,eval]")
    from vllm_asd.tools.bench import settings as reading
    from vllm_asd.tools.server import ServerDied

    try:
        texts = list(speculative_config or [])
        from_file: list[str] = []
        if config is not None:
            found, configs, from_file = reading.read_server_config(config)
            model = model or found
            if not texts and method is None:
                texts = configs
        server_args = reading.check_server_args([*from_file, *context.args])
        if model is None:
            model, method, server_args = _default_model(texts, method, server_args)
        settings = reading.Settings(
            model=model,
            speculations=reading.read_speculations(texts, method, drafter, draft_tokens),
            concurrency=reading.read_concurrency(concurrency),
            repeats=repeats,
            prompts=prompts,
            waves=waves,
            max_tokens=max_tokens,
            data=data or "built-in.jsonl",
            dataset_path=dataset_path,
            chat=chat,
            natural=natural,
            trace=None if trace is None else str(trace),
            trace_load=trace_load,
            trace_requests=trace_requests,
            profile=profile,
            server_args=server_args,
            kv_cache_gib=kv_cache_gib,
        )
        _run(settings, output, built_in=data is None)
    except (reading.BenchError, ServerDied, OSError) as error:
        _stop(error)
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on from here", err=True)
        raise typer.Exit(130) from None


def _default_model(
    texts: list[str], method: str | None, server_args: tuple[str, ...]
) -> tuple[str, str | None, tuple[str, ...]]:
    from vllm_asd.tools.models import default_cache_dir, prepare_smollm2

    model = str(prepare_smollm2(default_cache_dir()))
    if not texts and method is None:
        method = _NGRAM
    return model, method, server_args or _DEFAULT_MODEL_ARGS


def _run(settings: Settings, output: Path, *, built_in: bool) -> None:
    from vllm_asd.tools.bench.conduct import conduct

    for line in conduct(settings, output, built_in=built_in):
        typer.echo(line)


def _stop(reason: object) -> NoReturn:
    typer.echo(f"vllm-asd bench: {reason}", err=True)
    raise typer.Exit(1) from None
