"""`vllm-asd bench`: what speed does it give, against strict and against no speculation, under load?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vllm_asd.cli import options
from vllm_asd.cli.ending import checking, keeping
from vllm_asd.tools.server.keyed_request import use_api_key
from vllm_asd.tools.usage import BadUsage

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
_NEEDED = ("vllm", "prometheus_client", "yaml", "numpy", "matplotlib", "pandas")
_NGRAM = "ngram"
# The small default model: no compilation for a run of minutes.
_DEFAULT_MODEL_ARGS = ("--enforce-eager", "--max-model-len", "2048")


@options.register(app, "bench", allow_extra_args=True)
def main(
    context: typer.Context,
    model: options.Model = None,
    speculative_config: options.SpeculativeConfigs = None,
    method: Annotated[str | None, typer.Option(help="Instead: vLLM's name of the method.")] = None,
    drafter: Annotated[str | None, typer.Option(help="With --method: the draft model or head.")] = None,
    draft_tokens: Annotated[int, typer.Option(help="With --method: draft tokens per round.", min=1)] = 5,
    server_config: options.ServerConfig = None,
    api_key: options.ApiKey = None,
    concurrency: options.Concurrency = "1,4,16,64",
    repeats: Annotated[int, typer.Option(help="Strict-ASD-strict triplets per concurrency.", min=1)] = 3,
    output: options.Output = Path("bench-report"),
    data: options.Data = None,
    dataset_name: Annotated[
        str | None, typer.Option(help="Instead of --data: a data set name of `vllm bench serve`.")
    ] = None,
    dataset_path: Annotated[str | None, typer.Option(help="What that data set reads.")] = None,
    chat: options.Chat = True,
    requests: Annotated[int, typer.Option(help="Requests per measurement, at least.", min=1)] = 8,
    waves: Annotated[int, typer.Option(help="And at least this many per user.", min=1)] = 4,
    max_tokens: Annotated[int, typer.Option(help="Output tokens of each request.", min=2)] = 128,
    natural: Annotated[bool, typer.Option(help="Also once with answers that end by themselves.")] = True,
    trace: Annotated[
        Path | None,
        typer.Option(help="JSONL with arrival_s, input_tokens, output_tokens: replay it, scaled."),
    ] = None,
    trace_load: Annotated[
        float, typer.Option(help="Its rate, as a share of what the plain server can do.", min=0.01)
    ] = 0.7,
    trace_requests: Annotated[int, typer.Option(help="How many of its requests.", min=3)] = 64,
    profile: Annotated[bool, typer.Option(help="Also time the parts of a step.")] = True,
    kv_cache_gib: Annotated[int, typer.Option(help="KV cache on a CPU, in GiB.", min=1)] = 2,
    as_json: options.AsJson = False,
) -> None:
    """Measure speed on fixed work: no speculation, strict, ASD and shadow, in turn, under load.

    Starts and stops the servers itself; what stands after `--` goes to every `vllm serve`. Without a model it
    takes SmolLM2-135M-Instruct with n-grams.

    Example: vllm-asd bench --concurrency 1,4,16 --output bench-report

    A GPU pair: vllm-asd bench --model meta-llama/Llama-3.1-8B-Instruct --method eagle3
    --drafter yuhuili/EAGLE3-LLaMA3.1-Instruct-8B --data prompts.jsonl -- --max-model-len 8192
    """
    use_api_key(api_key)
    options.require(_NEEDED, "gpu,eval")
    from vllm_asd.tools.bench import settings as reading
    from vllm_asd.tools.bench.conduct import conduct
    from vllm_asd.tools.bench.workload import read_prompts, read_trace
    from vllm_asd.tools.concurrency import read_levels
    from vllm_asd.tools.data_option import read_file
    from vllm_asd.tools.settings_file import refuse_other_folder

    with checking():
        texts, from_file = list(speculative_config or []), list[str]()
        if server_config is not None:
            found, configs, from_file = reading.split_server_config(server_config)
            model = model or found
            if not texts and method is None:
                texts = configs
        server_args = reading.check_server_args([*from_file, *context.args])
        if model is None:
            server_args = server_args or _DEFAULT_MODEL_ARGS
            if not texts and method is None:
                method = _NGRAM
        speculations = reading.read_speculations(texts, method, drafter, draft_tokens)
        levels = read_levels(concurrency)
        file = read_file(data or [])
        if data and dataset_name is not None:
            raise BadUsage("give --data or --dataset-name, not both")
        if file is not None:
            read_prompts(file)
        if trace is not None:
            if dataset_name is not None:
                raise BadUsage("--trace needs prompts: give --data a JSONL file")
            read_trace(trace, trace_requests)
        refuse_other_folder(output / "settings.json")
    settings = reading.Settings(
        model=model or _default_model(),
        speculations=speculations,
        concurrency=levels,
        repeats=repeats,
        prompts=requests,
        waves=waves,
        max_tokens=max_tokens,
        data=dataset_name or str(file or "built-in.jsonl"),
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
    with keeping(output), options.only_json(as_json):
        for line in conduct(settings, output, built_in=file is None and dataset_name is None):
            typer.echo(line)
    if as_json:
        options.print_json(json.loads((output / "report.json").read_text(encoding="utf-8")))


def _default_model() -> str:
    from vllm_asd.tools.models import default_cache_dir, prepare_smollm2

    return str(prepare_smollm2(default_cache_dir()))
