"""A piece of real KV that ships with kvlib, so that chapter 14 runs without the model.

Three layers of SmolLM2-135M-Instruct (the 2nd, the 16th and the 29th), the first 128 tokens of three texts,
each channel at 8 bits. Computed by ``kvlib/figures/data/make_cachegen_sample.py``.
"""

import json
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name("data") / "kv_sample.npz"
LAYERS = (1, 15, 28)
TOKENS = 128
HEAD_DIM, ROPE_BASE = 64, 100_000.0


def load_sample() -> dict[str, np.ndarray]:
    """The KV of each text: float32 [3, 2, 128, 192], keys rotated as they are cached.

    Examples
    --------
    >>> {name: kv.shape for name, kv in load_sample().items()}
    {'gpl3': (3, 2, 128, 192), 'ruth': (3, 2, 128, 192), 'argparse': (3, 2, 128, 192)}
    """
    with np.load(FILE, allow_pickle=False) as file:
        names = json.loads(file["names"].tobytes())
        return {name: file["low"] + file["steps"][i] * file["step"] for i, name in enumerate(names)}


def store_sample(kvs: dict[str, np.ndarray], path=FILE) -> None:
    """Write KV [3, 2, tokens, channels] of some texts, each channel in 256 steps between its extremes."""
    stacked = np.stack(list(kvs.values()))
    low = stacked.min((0, 3), keepdims=True)[0].astype(np.float32)
    step = ((stacked.max((0, 3), keepdims=True)[0] - low) / 255).astype(np.float32)
    steps = np.rint((stacked - low) / np.where(step > 0, step, 1)).clip(0, 255).astype(np.uint8)
    with open(path, "wb") as file:
        np.savez_compressed(
            file,
            names=np.frombuffer(json.dumps(list(kvs)).encode(), np.uint8),
            low=low,
            step=step,
            steps=steps,
        )
