"""Time the entropy coder with more and fewer lanes and write ``cachegen_lanes.json`` beside this file.

    OMP_NUM_THREADS=1 python kvlib/figures/data/make_cachegen_lanes.py WORK      # WORK of make_cachegen.py

The symbols are the differences of one real text (gpl3) at level "medium", under tables learned on another
(ruth). `constriction` codes the same symbols with the same tables in one stream: the yardstick of the rate.
"""

import json
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path

import constriction
import numpy as np
import torch

from kvlib.cachegen.entropy import SLOTS, decode_lanes, encode_lanes
from kvlib.cachegen.profile import learn_profile
from kvlib.cachegen.quantize import to_steps, to_symbols
from kvlib.tensors.backend import get_backend

LEVEL = 2
LANE_TOKENS = (1, 2, 5, 10, 25, 60, 150)
ROUNDS = 3
OUT = Path(__file__).with_name("cachegen_lanes.json")


def best(run):
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        result = run()
        times.append(time.process_time() - start)
    return min(times), result


def outside_rate(symbols: np.ndarray, slots: np.ndarray) -> float:
    """Bits per symbol of constriction's range coder under the same tables."""
    coder = constriction.stream.queue.RangeEncoder()
    for channel, plane in np.ndindex(*symbols.shape[:2]):
        model = constriction.stream.model.Categorical(
            slots[channel, plane].astype(np.float32) / SLOTS, perfect=False
        )
        coder.encode(symbols[channel, plane].astype(np.int32), model)
    return coder.num_bits() / symbols.size


def main(work: str) -> None:
    torch.set_num_threads(1)
    kv, other = (np.load(Path(work) / f"kv_{name}.npy") for name in ("gpl3", "ruth"))
    profile = learn_profile([other])
    planes = kv.astype(np.float64).reshape(-1, *kv.shape[2:])
    slots = profile.slots[LEVEL]
    others, _ = to_symbols(
        to_steps(planes, 0, profile.means, profile.bins(LEVEL), profile.recipe).others, slots
    )
    symbols = np.ascontiguousarray(others.transpose(2, 0, 1))
    rows = []
    for lane_tokens in LANE_TOKENS:
        lanes = -(-symbols.shape[2] // lane_tokens)
        row = {"lane_tokens": lane_tokens, "lanes": lanes * symbols.shape[1]}
        for name in ("numpy", "torch"):
            xp = get_backend(name)
            encode_s, (states, words) = best(lambda: encode_lanes(symbols, slots, lanes, xp))
            decode_s, back = best(lambda: decode_lanes(states, words, symbols.shape[2], slots, xp))
            assert np.array_equal(back, symbols)
            row[name] = {
                "encode": round(symbols.size / encode_s / 1e6, 1),
                "decode": round(symbols.size / decode_s / 1e6, 1),
            }
        row["bits"] = round((16 * words.size + 32 * states.size) / symbols.size, 4)
        row["state_bits"] = round(32 * states.size / symbols.size, 5)
        rows.append(row)
        print(row, flush=True)
    made = {
        "provenance": {
            "command": "OMP_NUM_THREADS=1 python kvlib/figures/data/make_cachegen_lanes.py WORK",
            "symbols": symbols.size,
            "clock": "CPU seconds of one thread, best of three",
            "versions": {
                "python": platform.python_version(),
                "numpy": np.__version__,
                "torch": torch.__version__,
                "constriction": version("constriction"),
            },
        },
        "constriction_bits": round(outside_rate(symbols, slots), 4),
        "rows": rows,
    }
    OUT.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
