"""How long the whole book takes to build, every notebook executed: ``python bench/bench_book.py``."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from speeds import Speed, report

ROOT = Path(__file__).resolve().parents[1]
BUILD = [str(Path(sys.executable).with_name("jupyter-book")), "build", ".", "-W", "-n", "--keep-going"]


def measure() -> Iterator[Speed]:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        done = subprocess.run([*BUILD, "--path-output", folder], cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"the book does not build:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        yield Speed("book.build", "the whole book built, every notebook executed", time.perf_counter() - start, "s", 300)


if __name__ == "__main__":
    report(measure())
