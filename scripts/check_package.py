"""Build wheel and sdist, install the wheel into an empty environment, and see that the command works there.

    python scripts/check_package.py    # leaves both in dist/

The wheel is built from the sdist, so that what the sdist lacks is missed here and not by a user.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Without vLLM the doctor must say so, and nothing else may fail.
NO_VLLM = "vLLM is not installed"


def main() -> int:
    """Build, install, ask; the first failure ends it."""
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    _run(sys.executable, "-m", "build", "--outdir", str(dist), str(ROOT))
    (wheel,) = dist.glob("*.whl")
    (sdist,) = dist.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as folder:
        _run(sys.executable, "-m", "venv", folder)
        binaries = Path(folder) / "bin"
        _run(str(binaries / "python"), "-m", "pip", "install", "--quiet", str(wheel))
        _run(str(binaries / "vllm-asd"), "--version")
        _run(str(binaries / "vllm-asd"), "plan", "--acceptance", "0.7", "--draft-cost", "0.05")
        doctor = subprocess.run(
            [str(binaries / "vllm-asd"), "doctor"], capture_output=True, text=True, check=False, cwd=folder
        )
    if doctor.returncode != 1 or NO_VLLM not in doctor.stdout:
        print(
            f"doctor without vLLM: status {doctor.returncode}\n{doctor.stdout}{doctor.stderr}",
            file=sys.stderr,
        )
        return 1
    print(f"{wheel.name} and {sdist.name}: installed into an empty environment, the command works")
    return 0


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"check_package: {' '.join(map(str, error.cmd))} ended with {error.returncode}")
