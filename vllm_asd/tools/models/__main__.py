"""`python -m vllm_asd.tools.models`: prepare the local models and print where they are."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from vllm_asd.tools import models


def main(
    cache_dir: Annotated[
        Path | None, typer.Option(help="Where to keep them (default: the user's cache).")
    ] = None,
    bits: Annotated[int, typer.Option(min=3, max=8, help="Precision of the drafter's weights.")] = 5,
) -> None:
    """Prepare SmolLM2-135M-Instruct, its low-precision drafter and the tiny test models.

    Example: python -m vllm_asd.tools.models --bits 4
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    folder = cache_dir or models.default_cache_dir()
    smollm2 = models.prepare_smollm2(folder)
    made = {
        "target": smollm2,
        "draft model": models.prepare_low_precision_copy(smollm2, folder, bits=bits),
        "tiny target": models.prepare_tiny_llama(folder),
        "tiny drafter": models.prepare_tiny_llama_drafter(folder),
    }
    for role, path in made.items():
        typer.echo(f"{role:13} {path}")


if __name__ == "__main__":
    typer.run(main)
