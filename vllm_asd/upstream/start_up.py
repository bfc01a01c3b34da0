"""What a start of vLLM says about ASD: one line where it is refused, nothing where nobody asked for it."""

from __future__ import annotations

import logging
import sys
from types import TracebackType

from vllm_asd.config import AsdConfigError
from vllm_asd.upstream.patching import PatchError

_COMMAND_LINE = "vllm.entrypoints.cli.main"
_ENDPOINT_LOGGER = "vllm.plugins"


def end_in_one_line() -> None:
    """Let the command ``vllm`` end with our message alone, should nobody catch it; the exit code stays 1.

    Scripts, which may want to know where they were, keep their traceback.
    """
    if not _is_command_line() or getattr(sys.excepthook, "asd", False):
        return
    others = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, AsdConfigError | PatchError):
            sys.stderr.write(f"vllm-asd: error: {error}\n")
        else:
            others(kind, error, trace)

    hook.asd = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def _is_command_line() -> bool:
    """Whether this process runs ``vllm``, or ``python -m`` with its module, which then has another name."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return _COMMAND_LINE in sys.modules or (spec is not None and spec.name == _COMMAND_LINE)


class _OnlyOurs(logging.Filter):
    """Drops vLLM's warning of endpoint plugins that VLLM_PLUGINS does not name, if that is ours alone."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.args != (["asd"],)


_UNWANTED = _OnlyOurs()


def keep_silent() -> None:
    """Hold that warning back: nobody has asked for ASD yet."""
    logging.getLogger(_ENDPOINT_LOGGER).addFilter(_UNWANTED)


def speak() -> None:
    """Let it through: ASD is on, and the warning says how to get its routes."""
    logging.getLogger(_ENDPOINT_LOGGER).removeFilter(_UNWANTED)
