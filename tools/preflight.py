"""Checks, before anything is installed, that it can work; says in one line what is missing.

    python tools/preflight.py book|test|lab       also says what the first run downloads
    python tools/preflight.py --quiet
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEEDED_GB = {"book": 2, "lab": 3, "test": 6}
DOWNLOADS = {
    "book": "about 80 MB of Python packages and 20 MB of browser files",
    "lab": "about 110 MB of Python packages",
    "test": "about 1 GB: Python packages, torch 2.13.0 (192 MB where pip offers a CPU build, gigabytes otherwise: see README), triton, "
            "the SmolLM2-135M weights, browser files, and Chromium if there is none",
}


def main() -> int:
    quiet = sys.argv[1:] == ["--quiet"]
    goal = sys.argv[1] if len(sys.argv) > 1 and not quiet else "book"
    if goal not in NEEDED_GB:
        print(f"preflight: got {goal!r}, expected one of {', '.join(NEEDED_GB)}", file=sys.stderr)
        return 1
    if sys.version_info < (3, 11):
        print(f"Python 3.11 or newer is needed; this is {sys.version.split()[0]} ({sys.executable}). "
              "Set PYTHON=/path/to/python3.11 on the make command line.", file=sys.stderr)
        return 1
    free_gb = shutil.disk_usage(ROOT).free / 1e9
    if free_gb < NEEDED_GB[goal]:
        print(f"{NEEDED_GB[goal]} GB of free disk are needed; {ROOT} has {free_gb:.1f} GB.", file=sys.stderr)
        return 1
    if not quiet:
        print(f"First run downloads {DOWNLOADS[goal]}. Later runs download nothing.", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
