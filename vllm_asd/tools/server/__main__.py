"""`python -m vllm_asd.tools.server`: serve a model with speculative decoding and ASD until Ctrl-C."""

import json
import logging
import os
import sys
from typing import Annotated

import typer

from vllm_asd.tools.models import default_cache_dir, prepare_smollm2
from vllm_asd.tools.server import ServerDied, VllmServer
from vllm_asd.tools.server.environment import dtype_args

ASD_NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 5,
    "prompt_lookup_min": 2,
    "prompt_lookup_max": 4,
    "rejection_sample_method": "asd",
}

# Every response then says what was relaxed.
DEFAULT_ARGS = ["--enforce-eager", "--max-model-len", "4096", "--per-request-spec-decode-metrics", "detailed"]


def main(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Option(help="Folder or name (default: SmolLM2-135M-Instruct).")
    ] = None,
    port: Annotated[int, typer.Option(help="Loopback port.")] = 8000,
    speculative_config: Annotated[
        str, typer.Option(help="As for `vllm serve`; 'none' for none.")
    ] = json.dumps(ASD_NGRAM),
    kv_cache_gib: Annotated[int, typer.Option(help="KV cache on a CPU, in GiB.")] = 2,
) -> None:
    """Serve until Ctrl-C. What stands behind `--` goes to `vllm serve`.

    Example: python -m vllm_asd.tools.server --port 8001 -- --enforce-eager --max-model-len 4096
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    target = model or str(prepare_smollm2(default_cache_dir()))
    args = list(context.args) or DEFAULT_ARGS
    if model is None:
        args = [*args, "--served-model-name", "smollm2", *(dtype_args() if "--dtype" not in args else [])]
    if speculative_config != "none":
        args = [*args, "--speculative-config", speculative_config]
    try:
        _serve(VllmServer(target, args, port=port, kv_cache_gib=kv_cache_gib))
    except (ServerDied, OSError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("stopped")


def _serve(server: VllmServer) -> None:
    with server:
        typer.echo(f"ready after {server.start_s:.0f} s at {server.base_url}/v1  (log: {server.log_path})")
        typer.echo("Ctrl-C stops it.")
        status = server.wait()
        raise ServerDied(f"vllm serve ended with status {status}. The end of its log:\n{server.log_tail()}")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command(context_settings={"allow_extra_args": True})(main)
    sys.exit(app(prog_name=f"{os.path.basename(sys.executable)} -m vllm_asd.tools.server"))
