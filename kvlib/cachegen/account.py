"""The arithmetic of one context over one link: send it raw, compressed, or not at all.

Source of the worked example: Lecture 9, exercise 3 (oracles L9.ex3, L9.ex3.10, L9.a40.151, L9.bits2.3).
"""

from dataclasses import dataclass

from kvlib.cachegen.bandwidth import BYTES_PER_GBIT
from kvlib.specs.checks import real, whole

# CacheGen's table 1: 176 MB where 8 bits a number took 622 MB (Mistral-7B, LongChat).
PAPER_BITS = 8 * 176 / 622


@dataclass(frozen=True)
class Way:
    """One way to get the KV onto the GPU."""

    name: str
    num_bytes: float
    seconds: float


def ways(
    numbers_per_token: int, tokens: int, gbps: float, bits_per_number: dict[str, float], recompute_s: float
) -> list[Way]:
    """Bytes and seconds of sending the KV at each size, and of recomputing it; decoding is not counted.

    Parameters
    ----------
    numbers_per_token : int
        KV numbers of one token over all layers (Mistral-7B: 65,536).
    gbps : float
        Link speed in 10^9 bits per second, all of it delivered.
    bits_per_number : dict
        Name of each format, and its bits.

    Examples
    --------
    >>> for way in ways(65536, 9600, 3.0, {"FP16": 16, "8-bit": 8, "2.3-bit": 2.3}, recompute_s=1.51):
    ...     print(f"{way.name}: {way.num_bytes / 1e9:.2f} GB, {way.seconds:.2f} s")
    FP16: 1.26 GB, 3.36 s
    8-bit: 0.63 GB, 1.68 s
    2.3-bit: 0.18 GB, 0.48 s
    recompute: 0.00 GB, 1.51 s
    """
    numbers = whole("numbers_per_token", numbers_per_token) * whole("tokens", tokens)
    speed = real("gbps", gbps, above=True) * BYTES_PER_GBIT
    sent = [
        (name, numbers * real("bits_per_number", bits, above=True) / 8)
        for name, bits in bits_per_number.items()
    ]
    return [
        *(Way(name, size, size / speed) for name, size in sent),
        Way("recompute", 0.0, real("recompute_s", recompute_s)),
    ]


def tie_gbps(numbers_per_token: int, tokens: int, bits: float, recompute_s: float) -> float:
    """Link speed at which sending takes as long as recomputing; a faster link should send.

    Examples
    --------
    >>> round(tie_gbps(65536, 9600, 8, 1.51), 2)
    3.33
    """
    return whole("numbers_per_token", numbers_per_token) * whole("tokens", tokens) * bits / recompute_s / 1e9
