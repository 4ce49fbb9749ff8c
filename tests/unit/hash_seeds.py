"""Run a program in processes of its own, each with another PYTHONHASHSEED."""

from __future__ import annotations

import os
import subprocess
import sys


def printed_under_hash_seeds(program: str) -> set[bytes]:
    """What `program` prints under two hash seeds: one element where nothing depends on the order of sets."""
    return {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("0", "1")
    }
