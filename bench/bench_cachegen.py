"""How fast the CacheGen codec is, each speed beside its goal (issue 8).

    OMP_NUM_THREADS=1 python bench/bench_cachegen.py [rounds]

The numbers coded are drawn, one normal distribution per layer and channel, in the size of 1,536 tokens of
SmolLM2: 30 layers, K and V, 192 channels, 17.7 million numbers. Prints the best of the rounds
(default 3), in CPU seconds of this process.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch

from kvlib.cachegen import bitstream
from kvlib.cachegen.codec import LANE_TOKENS, decode, encode
from kvlib.cachegen.entropy import decode_lanes, encode_lanes
from kvlib.cachegen.profile import learn_profile
from kvlib.cachegen.quantize import to_steps, to_symbols
from kvlib.tensors.backend import get_backend

LAYERS, TOKENS, CHANNELS = 30, 1536, 192
LEVEL = 2


def drawn(seed: int) -> np.ndarray:
    shape_of, rng = np.random.default_rng(0), np.random.default_rng(seed)
    spread = shape_of.uniform(0.3, 3, (LAYERS, 2, 1, CHANNELS)).astype(np.float32)
    offset = shape_of.normal(size=(LAYERS, 2, 1, CHANNELS)).astype(np.float32)
    return offset + spread * rng.standard_normal((LAYERS, 2, TOKENS, CHANNELS), dtype=np.float32)


def best(rounds: int, run) -> tuple[float, object]:
    times = []
    for _ in range(rounds):
        start = time.process_time()
        result = run()
        times.append(time.process_time() - start)
    return min(times), result


def say(what: str, measured: float, goal: float, unit: str, higher_is_better: bool = True) -> None:
    good = measured >= goal if higher_is_better else measured <= goal
    print(
        f"{what:<44} {measured:8.2f} {unit:<8} goal {'≥' if higher_is_better else '≤'} {goal:g} "
        f" {'ok' if good else 'MISSED'}"
    )


def main() -> None:
    torch.set_num_threads(1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    kv, other = drawn(1), drawn(2)
    profile = learn_profile([other])
    slots = profile.slots[LEVEL]
    planes = kv.astype(np.float64).reshape(2 * LAYERS, TOKENS, CHANNELS)
    others, _ = to_symbols(
        to_steps(planes, 0, profile.means, profile.bins(LEVEL), profile.recipe).others, slots
    )
    symbols = np.ascontiguousarray(others.transpose(2, 0, 1))
    lanes = -(-symbols.shape[2] // LANE_TOKENS)
    seconds = {}
    for name in ("numpy", "torch"):
        xp = get_backend(name)
        seconds["encode", name], (states, words) = best(
            rounds, lambda: encode_lanes(symbols, slots, lanes, xp)
        )
        seconds["decode", name], back = best(
            rounds, lambda: decode_lanes(states, words, symbols.shape[2], slots, xp)
        )
        assert np.array_equal(back, symbols)
    million = symbols.size / 1e6
    say("rANS decode, numpy", million / seconds["decode", "numpy"], 40, "Msym/s")
    say("rANS encode, numpy", million / seconds["encode", "numpy"], 7, "Msym/s")
    say(
        "rANS decode, torch on CPU against numpy",
        seconds["decode", "torch"] / seconds["decode", "numpy"],
        6,
        "times",
        False,
    )
    encode_s, blob = best(rounds, lambda: encode(kv, profile, LEVEL))
    decode_s, back = best(rounds, lambda: decode(blob, profile))
    say("encode 1,536 tokens, bytes out", encode_s, 4, "s", False)
    print(f"{'decode 1,536 tokens, numbers out':<44} {decode_s:8.2f} s")
    _, payloads = bitstream.read(blob)
    overhead = 100 * (len(blob) - sum(len(payload) for payload in payloads)) / len(blob)
    say("container", overhead, 1, "%", False)
    print(
        f"{8 * len(blob) / kv.size:.3f} bits per number, everything included; {million:.1f} million symbols"
        " in the coder runs"
    )


if __name__ == "__main__":
    main()
