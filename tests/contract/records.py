"""Every patch record of the package."""

import importlib
import pkgutil

from vllm_asd import upstream
from vllm_asd.upstream.patching import Patch


def collect() -> list[Patch]:
    """Import all seams and gather their records, in a fixed order."""
    found: dict[str, Patch] = {}
    for module in pkgutil.iter_modules(upstream.__path__):
        members = vars(importlib.import_module(f"{upstream.__name__}.{module.name}"))
        found |= {value.target: value for value in members.values() if isinstance(value, Patch)}
    return [found[target] for target in sorted(found)]
