"""The command's options, checked, with one line for each mistake."""

from pathlib import Path

from vllm_asd.tools.calibrate.freeze import Base
from vllm_asd.tools.calibrate.grid import Grid
from vllm_asd.tools.json_object import SPECULATION_EXAMPLE, read_object
from vllm_asd.tools.server.served import NotServed, Served, inspect_server, require_detailed


def read_base(
    server_config: Path | None, model: str | None, speculative_config: str | None, drafter: str | None
) -> Base:
    """What to freeze into: a `--config` file, or the two arguments that matter.

    Raises:
        ValueError: Neither or both are given, or they are wrong.
    """
    if (server_config is None) == (speculative_config is None):
        raise ValueError(
            "a server does not tell its settings: give --server-config (the YAML it was started with), "
            "or --model and --speculative-config"
        )
    if server_config is not None:
        if model is not None:
            raise ValueError("--model stands in the --server-config file: drop one of them")
        return Base.read(server_config, drafter)
    speculation = read_object("--speculative-config", speculative_config or "", SPECULATION_EXAMPLE)
    return Base.of({"model": model, "speculative-config": speculation}, drafter)


def read_grid(gates: str, block_caps: str, budgets: str, refills: str | None, max_regret: float) -> Grid:
    """What to try; without refills, none and as much per token as the cap allows in the long run.

    Raises:
        ValueError: Something is no list of numbers above 0.
    """
    back = [0.0, float(f"{max_regret / 100:.2g}")] if refills is None else _numbers("--refills", refills, 0)
    return Grid(
        gate_factors=_numbers("--gates", gates),
        block_caps=[int(value) for value in _numbers("--block-caps", block_caps, 1)],
        budgets=_numbers("--budgets", budgets),
        refills=back,
    )


def read_server(url: str, served_model: str | None, base: Base) -> Served:
    """Ask the server, and refuse one that does not fit the base.

    Raises:
        NotServed: It can't be used, or drafts more tokens than the base says.
    """
    served = inspect_server(url, served_model)
    require_detailed(served)
    if (served.num_draft_tokens or 0) > base.num_draft_tokens:
        raise NotServed(
            f"{served.base_url} drafts {served.num_draft_tokens} tokens, the settings to freeze into "
            f"{base.num_draft_tokens}: give those that the server was started with"
        )
    return served


def _numbers(option: str, text: str, least: float = 1e-6) -> list[float]:
    try:
        values = sorted({float(part) for part in text.split(",")})
    except ValueError:
        values = []
    if not values or not all(least <= value < float("inf") for value in values):
        raise ValueError(f"{option} {text}: give numbers from {least:g} upwards, with commas between")
    return values
