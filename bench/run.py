"""Run every benchmark of this folder, one after the other, and write what the book's page *Benchmarks* shows.

    python bench/run.py [NAME …]        all of bench_*.py, or only those whose name holds NAME

A part of them only prints; all of them together also write ``book/reference/benchmarks.json``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from machine import describe
from peers import PEERS
from speeds import RECORD_VARIABLE

HERE = Path(__file__).resolve().parent
PAGE_DATA = HERE.parent / "book" / "reference" / "benchmarks.json"


def run(scripts: list[Path], record: Path) -> list[str]:
    """Run the scripts, each in a process of its own; the names of those that failed."""
    failed = []
    for script in scripts:
        print(f"\n== {script.stem}", flush=True)
        if subprocess.run([sys.executable, str(script)], env={**os.environ, RECORD_VARIABLE: str(record)}).returncode:
            failed.append(script.stem)
    return failed


def shortened(value: float) -> float:
    return float(f"{value:.3g}")


def write(machine: dict, record: Path) -> None:
    speeds = [json.loads(row) for row in record.read_text(encoding="utf-8").splitlines()]
    for speed in speeds:
        speed["value"] = shortened(speed["value"])
    data = {"machine": machine, "speeds": speeds, "peers": [asdict(peer) for peer in PEERS]}
    PAGE_DATA.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> int:
    wanted = sys.argv[1:]
    scripts = [s for s in sorted(HERE.glob("bench_*.py")) if not wanted or any(name in s.stem for name in wanted)]
    machine = describe()
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder, "speeds.jsonl")
        failed = run(scripts, record)
        if failed:
            print(f"\nfailed: {', '.join(failed)}")
        elif not wanted:
            write(machine, record)
            print(f"\nwritten: {PAGE_DATA.relative_to(HERE.parent)}; `make html` puts it on the page")
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
