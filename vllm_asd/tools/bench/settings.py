"""What a run is asked to do, read from options and files; one message per mistake."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vllm_asd.config import AsdConfig, AsdConfigError
from vllm_asd.tools.json_object import SPECULATION_EXAMPLE, NotAnObject, read_object
from vllm_asd.tools.server_config import SPECULATION, read_server_config

SERVED_NAME = "bench"
_OURS = ("--speculative-config", "--served-model-name", "--port", "--host", "--disable-log-stats")

# vLLM's methods that have no drafter unless one is named; others find it in the target, or need none.
_NEED_DRAFTER = ("draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", "dflash", "custom_class")


class BenchError(Exception):
    """The run can't go on; the message is for the user."""


@dataclass(frozen=True)
class Speculation:
    """One way to draft.

    Attributes:
        label: Short name, unique in a run: vLLM's method, numbered when it comes twice.
        config: What `--speculative-config` gets, ASD included.
    """

    label: str
    config: dict[str, Any]

    @property
    def k(self) -> int:
        """Draft tokens per round."""
        return int(self.config["num_speculative_tokens"])


@dataclass(frozen=True)
class Settings:
    """All that two runs must share to be one.

    Attributes:
        model: Folder or name.
        speculations: The drafters, each on a server of its own.
        concurrency: Requests at a time, rising.
        repeats: Strict-ASD-strict triplets per concurrency.
        prompts: Requests per cell, at least.
        waves: Requests per cell, at least this many times the concurrency.
        max_tokens: Output tokens of every request.
        data: Prompts, JSONL, or one of vLLM's data set names.
        dataset_path: What that data set reads, or None.
        chat: Whether prompts go through the model's chat template.
        natural: Also once with natural ends.
        trace: Arrivals and lengths to replay, JSONL, or None.
        trace_load: Their rate, as a share of what the plain server can do.
        trace_requests: How many of them.
        profile: Also time the parts of a step.
        server_args: Further arguments of every `vllm serve`.
        kv_cache_gib: KV cache on a CPU.
        data_sha256: Of the prompts, so that a resumed run has the same.
    """

    model: str
    speculations: tuple[Speculation, ...]
    concurrency: tuple[int, ...]
    repeats: int
    prompts: int
    waves: int
    max_tokens: int
    data: str
    dataset_path: str | None
    chat: bool
    natural: bool
    trace: str | None
    trace_load: float
    trace_requests: int
    profile: bool
    server_args: tuple[str, ...]
    kv_cache_gib: int
    data_sha256: str | None = None

    def requests_at(self, concurrency: int) -> int:
        """Requests of one fixed-work cell."""
        return max(self.prompts, self.waves * concurrency)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return dict(json.loads(json.dumps(asdict(self))))


def read_speculations(
    given: Sequence[str], method: str | None, drafter: str | None, draft_tokens: int
) -> tuple[Speculation, ...]:
    """Read the drafters, from whole configurations or from --method and --drafter.

    Raises:
        BenchError: Neither or both, no JSON object, or ASD settings that leave nothing to compare.
    """
    if given and (method or drafter):
        raise BenchError("give --speculative-config or --method and --drafter, not both")
    try:
        configs = [read_object("--speculative-config", text, SPECULATION_EXAMPLE) for text in given]
    except NotAnObject as error:
        raise BenchError(str(error)) from None
    if not configs:
        if method is None:
            raise BenchError("give --speculative-config, or --method (with --drafter, if it needs a model)")
        configs = [_from_method(method, drafter, draft_tokens)]
    found: list[Speculation] = []
    for config in configs:
        completed = _with_asd(config)
        name = str(completed.get("method", "drafter"))
        if name in _NEED_DRAFTER and not completed.get("model"):
            raise BenchError(
                f"the method {name} needs a draft model or head: give --drafter, "
                'or "model" in --speculative-config'
            )
        same = sum(item.config.get("method", "drafter") == name for item in found)
        found.append(Speculation(name if not same else f"{name}-{same + 1}", completed))
    return tuple(found)


def split_server_config(path: Path) -> tuple[str | None, list[str], list[str]]:
    """Split a `vllm serve --config` file into the model, its speculative configuration and the rest.

    Returns:
        Model or None, the speculative configurations as JSON text, and the rest as arguments.

    Raises:
        BadUsage: Not readable, or not a mapping.
    """
    rest = read_server_config(path)
    model = rest.pop("model", None) or rest.pop("model-tag", None)
    speculation = rest.pop(SPECULATION, None)
    for option in _OURS:
        rest.pop(option.removeprefix("--"), None)
    arguments = [argument for key, value in rest.items() for argument in _as_arguments(key, value)]
    return model, [json.dumps(speculation)] if speculation else [], arguments


def _as_arguments(key: str, value: Any) -> list[str]:
    """One entry of the file as vLLM itself reads it."""
    if isinstance(value, bool):
        return [f"--{key}" if value else f"--no-{key}"]
    if isinstance(value, list):
        return [f"--{key}", *map(str, value)] if value else []
    return [f"--{key}", json.dumps(value) if isinstance(value, dict) else str(value)]


def check_server_args(arguments: Sequence[str]) -> tuple[str, ...]:
    """Refuse what bench itself sets.

    Raises:
        BenchError: One of them is there.
    """
    for argument in arguments:
        name = argument.split("=")[0].replace("_", "-")
        if name in _OURS:
            hint = "give it to bench itself" if name == "--speculative-config" else "bench sets it"
            raise BenchError(f"{name} can't stand behind `--`: {hint}")
    return tuple(arguments)


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _from_method(method: str, drafter: str | None, draft_tokens: int) -> dict[str, Any]:
    config: dict[str, Any] = {"method": method, "num_speculative_tokens": draft_tokens}
    if drafter is not None:
        config["model"] = drafter
    if method == "ngram":
        config |= {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
    return config


def _with_asd(config: dict[str, Any]) -> dict[str, Any]:
    keys = {key.replace("-", "_"): value for key, value in config.items()}
    count = keys.get("num_speculative_tokens")
    if type(count) is not int or count < 1:
        raise BenchError('--speculative-config: "num_speculative_tokens" must be a whole number above 0')
    chosen = keys.setdefault("rejection_sample_method", "asd")
    if chosen != "asd":
        raise BenchError(
            f'--speculative-config: "rejection_sample_method" is {chosen!r}; leave it out, bench sets "asd"'
        )
    try:
        limits = AsdConfig.from_keys({key: value for key, value in keys.items() if key.startswith("asd_")})
    except AsdConfigError as error:
        raise BenchError(f"--speculative-config: {error}") from None
    if limits.asd_mode == "shadow" or limits.limits.is_strict:
        raise BenchError("--speculative-config: with these asd_ limits ASD is strict, nothing to compare")
    return keys
