"""Write what was found as a file that `vllm serve --config` takes, and beside it how it was found."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vllm_asd.config import METHOD, AsdConfig, split_speculative_config
from vllm_asd.tools.calibrate.grid import Setting
from vllm_asd.tools.server_config import SPECULATION, read_server_config
from vllm_asd.tools.usage import BadUsage

METRICS = "per-request-spec-decode-metrics"
# The audit reads the single exceptions.
_LEVEL = "detailed"


@dataclass(frozen=True)
class Base:
    """What is frozen into: the arguments of `vllm serve`, the limits still open.

    Attributes:
        arguments: As in a `--config` file, with dashes; without `speculative-config`.
        native: vLLM's own keys of `speculative-config`.
        asd: Ours; the limits among them are replaced.
    """

    arguments: Mapping[str, Any]
    native: Mapping[str, Any]
    asd: AsdConfig

    @classmethod
    def of(cls, arguments: Mapping[str, Any], drafter: str | None = None) -> "Base":
        """Check the arguments.

        Args:
            arguments: With the key `speculative-config`, a dictionary.
            drafter: Stands in for the drafter's name there; None leaves it.

        Raises:
            ValueError: No model, no `speculative-config`, or a key in it is wrong.
        """
        given = {key.replace("_", "-"): value for key, value in arguments.items()}
        if not given.get("model"):
            raise BadUsage(
                "the frozen file needs the model to serve: give --model, or `model` in --server-config"
            )
        speculation = given.pop(SPECULATION, None)
        count = speculation.get("num_speculative_tokens") if isinstance(speculation, dict) else None
        if not isinstance(speculation, dict) or type(count) is not int or count < 1:
            raise BadUsage(
                "the frozen file needs the server's speculation with num_speculative_tokens above 0: give "
                f"--speculative-config as the server got it, or `{SPECULATION}` in --server-config"
            )
        if drafter is not None:
            speculation = {**speculation, "model": drafter}
        native, asd = split_speculative_config({**speculation, "rejection_sample_method": METHOD})
        return cls(given, native, asd or AsdConfig())

    @classmethod
    def read(cls, path: Path, drafter: str | None = None) -> "Base":
        """Read a `--config` file of `vllm serve`.

        Raises:
            ValueError: It can't be read, it is no YAML mapping, or see `of`.
        """
        return cls.of(read_server_config(path), drafter)

    @property
    def num_draft_tokens(self) -> int:
        """K."""
        return int(self.native["num_speculative_tokens"])

    def frozen(self, setting: Setting) -> dict[str, Any]:
        """The arguments with the setting's limits, enforced."""
        defaults = AsdConfig().model_dump()
        kept = {k: v for k, v in self.asd.model_dump().items() if v != defaults[k] or k == "asd_pricing"}
        kept.pop("asd_mode", None)
        speculation = {**self.native, "rejection_sample_method": METHOD, **kept, **setting.keys}
        return {**self.arguments, METRICS: _LEVEL, SPECULATION: speculation}


def refuse_other_file(target: Path, base: Path | None) -> None:
    """Refuse to write over a file that is neither the base nor an earlier result.

    Raises:
        ValueError: It is, or it has no folder.
    """
    if target.suffix not in (".yaml", ".yml"):
        raise ValueError(f"vLLM takes only .yaml: name the frozen file {target.with_suffix('.yaml')}")
    if not target.absolute().parent.is_dir():
        raise ValueError(f"there is no folder {target.parent} for {target.name}: make it")
    ours = evidence_path(target).exists() or (base is not None and base.absolute() == target.absolute())
    if target.exists() and not ours:
        raise ValueError(f"{target} is there already and no calibration wrote it: give another --freeze")


def evidence_path(target: Path) -> Path:
    """Where the figures behind a frozen file lie."""
    return target.with_suffix(".calibration.json")


def write_frozen(
    target: Path, arguments: Mapping[str, Any], header: list[str], evidence: Mapping[str, Any]
) -> None:
    """Write both files.

    Args:
        target: The YAML.
        arguments: Of `vllm serve`.
        header: Lines of its leading comment.
        evidence: For the JSON beside it.
    """
    comment = "".join(f"# {line}".rstrip() + "\n" for line in header)
    target.write_text(comment + yaml.safe_dump(dict(arguments), sort_keys=False))
    evidence_path(target).write_text(json.dumps(evidence, indent=2) + "\n")
