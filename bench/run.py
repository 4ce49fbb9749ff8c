"""Run every benchmark of this folder, one after the other.

    python bench/run.py [NAME …]        all of bench_*.py, or only those whose name holds NAME
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    wanted = sys.argv[1:]
    failed = []
    for script in sorted(HERE.glob("bench_*.py")):
        if wanted and not any(name in script.stem for name in wanted):
            continue
        print(f"\n== {script.stem}", flush=True)
        if subprocess.run([sys.executable, str(script)]).returncode:
            failed.append(script.stem)
    if failed:
        print(f"\nfailed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
