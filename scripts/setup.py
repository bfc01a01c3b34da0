"""Prepare `.venv`: vLLM, this plugin and the tools a target asks for.

Runs on the system's Python with nothing but its standard library, may be interrupted and run again at any
time, and returns at once when nothing changed since the last run.

    python3 scripts/setup.py demo dev
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bootstrap.errors import SetupError
from bootstrap.steps import prepare

EXTRAS = ("demo", "dev", "docs", "eval")


def main() -> int:
    """Prepare the environment beside this checkout; a failure is one clear paragraph, never a traceback."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help=f"which of {', '.join(EXTRAS)}")
    parser.add_argument(
        "--variant", choices=["cpu", "gpu"], help="which vLLM (default: gpu where nvidia-smi works)"
    )
    parser.add_argument("--force", action="store_true", help="go through every step even if nothing changed")
    args = parser.parse_args()
    unknown = sorted(set(args.extras) - set(EXTRAS))
    if unknown:
        parser.error(f"no such extra: {', '.join(unknown)} (there are {', '.join(EXTRAS)})")
    root = Path(__file__).resolve().parent.parent
    try:
        prepare(root, frozenset(args.extras), args.variant, args.force)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nsetup: interrupted; run it again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
