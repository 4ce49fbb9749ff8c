"""Measure scattered copies on this machine and write ``strata_copies.json`` beside this file.

    OMP_NUM_THREADS=1 python kvlib/figures/data/make_strata_copies.py     # under a minute, on an idle machine

Shares (scattered over contiguous) are stored to two digits; they depend on the machine, which is why a test checks
their order of magnitude only.
"""

import json
import os
import platform
from pathlib import Path

import numpy
import torch

from kvlib.tiers import measure_copies

PIECES_KIB = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
REPEATS = 60


def rows() -> list[dict]:
    torch.set_num_threads(1)
    measured = [measure_copies(kib * 1024, backend, repeats=REPEATS) for backend in ("numpy", "torch") for kib in PIECES_KIB]
    return [
        {
            "backend": m.backend,
            "piece_bytes": m.piece_bytes,
            "one_by_one_share": float(f"{m.one_by_one_share:.2g}"),
            "gathered_share": float(f"{m.gathered_share:.2g}"),
        }
        for m in measured
    ]


if __name__ == "__main__":
    result = {
        "command": "OMP_NUM_THREADS=1 python kvlib/figures/data/make_strata_copies.py",
        "seed": 1,
        "where": f"once, on a machine with {os.cpu_count()} CPU cores",
        "versions": {"python": platform.python_version(), "numpy": numpy.__version__, "torch": torch.__version__},
        "rows": rows(),
    }
    Path(__file__).with_name("strata_copies.json").write_text(json.dumps(result, indent=1) + "\n")
