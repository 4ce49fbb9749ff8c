"""The CacheGen codec: ``OMP_NUM_THREADS=1 python bench/bench_cachegen.py``.

The numbers coded are drawn, one normal distribution per layer and channel, in the size of 1,536 tokens of
SmolLM2: 30 layers, K and V, 192 channels, 17.7 million numbers. Best of three, in CPU seconds of this process.
"""

from collections.abc import Iterator

import numpy as np
import torch
from speeds import Speed, best_cpu_s, report

from kvlib.cachegen import bitstream
from kvlib.cachegen.codec import LANE_TOKENS, decode, encode
from kvlib.cachegen.entropy import decode_lanes, encode_lanes
from kvlib.cachegen.profile import Profile, learn_profile
from kvlib.cachegen.quantize import to_steps, to_symbols
from kvlib.tensors.backend import get_backend

LAYERS, TOKENS, CHANNELS = 30, 1536, 192
LEVEL = 2


def drawn(seed: int) -> np.ndarray:
    shape_of, rng = np.random.default_rng(0), np.random.default_rng(seed)
    spread = shape_of.uniform(0.3, 3, (LAYERS, 2, 1, CHANNELS)).astype(np.float32)
    offset = shape_of.normal(size=(LAYERS, 2, 1, CHANNELS)).astype(np.float32)
    return offset + spread * rng.standard_normal((LAYERS, 2, TOKENS, CHANNELS), dtype=np.float32)


def symbols_of(kv: np.ndarray, profile: Profile) -> np.ndarray:
    """What the entropy coder gets: the differences from the anchors, as whole numbers."""
    planes = kv.astype(np.float64).reshape(2 * LAYERS, TOKENS, CHANNELS)
    steps = to_steps(planes, 0, profile.means, profile.bins(LEVEL), profile.recipe)
    others, _ = to_symbols(steps.others, profile.slots[LEVEL])
    return np.ascontiguousarray(others.transpose(2, 0, 1))


def coder(symbols: np.ndarray, slots) -> Iterator[Speed]:
    lanes, million, decode_s = -(-symbols.shape[2] // LANE_TOKENS), symbols.size / 1e6, {}
    for name in ("numpy", "torch"):
        xp = get_backend(name)
        states, words = encode_lanes(symbols, slots, lanes, xp)
        assert np.array_equal(decode_lanes(states, words, symbols.shape[2], slots, xp), symbols)
        decode_s[name] = best_cpu_s(lambda: decode_lanes(states, words, symbols.shape[2], slots, xp))
    encode_s = best_cpu_s(lambda: encode_lanes(symbols, slots, lanes, get_backend("numpy")))
    yield Speed("cachegen.rans_decode", "rANS decode, numpy", million / decode_s["numpy"], "M symbols/s", 40, True)
    yield Speed("cachegen.rans_encode", "rANS encode, numpy", million / encode_s, "M symbols/s", 7, True)
    ratio = decode_s["torch"] / decode_s["numpy"]
    yield Speed("cachegen.torch", "rANS decode, torch on the CPU against numpy", ratio, "times", 6)


def container_share(blob: bytes) -> float:
    """The bytes of a stream that are not coded numbers."""
    _, payloads = bitstream.read(blob)
    return 1 - sum(len(payload) for payload in payloads) / len(blob)


def measure() -> Iterator[Speed]:
    torch.set_num_threads(1)
    kv, profile = drawn(1), learn_profile([drawn(2)])
    yield from coder(symbols_of(kv, profile), profile.slots[LEVEL])
    blob = encode(kv, profile, LEVEL)
    size = f"the KV of {TOKENS:,} tokens of SmolLM2"
    yield Speed("cachegen.encode", f"encode {size}", best_cpu_s(lambda: encode(kv, profile, LEVEL)), "s", 4)
    yield Speed("cachegen.decode", f"decode {size}", best_cpu_s(lambda: decode(blob, profile)), "s")
    yield Speed("cachegen.container", "container beside the coded numbers", 100 * container_share(blob), "%", 1)


if __name__ == "__main__":
    report(measure())
