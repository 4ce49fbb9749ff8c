"""Cut the KV sample that ships with kvlib out of the KV that ``make_cachegen.py`` left in WORK.

python kvlib/figures/data/make_cachegen_sample.py WORK
"""

import sys
from pathlib import Path

import numpy as np

from kvlib.cachegen.sample import FILE, LAYERS, TOKENS, store_sample

if __name__ == "__main__":
    work = Path(sys.argv[1])
    store_sample({
        name: np.load(work / f"kv_{name}.npy")[list(LAYERS), :, :TOKENS]
        for name in ("gpl3", "ruth", "argparse")
    })
    print(FILE, FILE.stat().st_size, "bytes")
