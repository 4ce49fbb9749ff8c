"""Fewer bits per cached number, as chapters 13 and 14 measured them: how many, and at what damage.

Two families that never mix. A *kept* format stays a tensor that attention reads, so it also makes GPU memory
larger. A *sent* one is a bitstream: smaller, but it has to be decoded before it is of any use.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kvlib.errors import ConfigError
from kvlib.specs.checks import real
from kvlib.specs.kv_dtypes import KvDtype

FULL_BITS = 16
# What the engine serves without any compression.
FULL = KvDtype("bf16", FULL_BITS, source="bfloat16")
_DATA = Path(__file__).resolve().parents[1] / "figures" / "data"
# Chapter 13 quantizes in groups of 32 numbers and stores a 16-bit scale and a 16-bit zero for each.
_KIVI_GROUP, _KIVI_SCALE_BITS = 32, 32
_CODED_FAMILY = "CacheGen (paper's recipe)"


@dataclass(frozen=True)
class Format:
    """One way to write the cache down.

    Attributes
    ----------
    name : str
    bits : float
        Per number, scales included.
    kl : float
        Mean KL divergence of the next-token distribution from the one of the untouched cache, in nats.
    dtype : KvDtype or None
        How a kept format lies in memory; None for a bitstream.
    """

    name: str
    bits: float
    kl: float
    dtype: KvDtype | None = None


@cache
def _measured(name: str) -> dict:
    return json.loads((_DATA / name).read_text(encoding="utf-8"))


@cache
def kept_formats() -> tuple[Format, ...]:
    """Formats that stay readable, most bits first: one scale per tensor, and KIVI's axes at equal bits.

    Source: measured on SmolLM2-135M by ``kvlib/figures/data/make_smaller_kv.py``.

    Examples
    --------
    >>> [(f.name, f.bits) for f in kept_formats()][:2]
    [('KIVI axes, 8 bits', 9.0), ('INT8, one scale', 8.0)]
    """
    rows = _measured("smaller_kv.json")
    plain = [
        Format(r["name"], r["bits"], r["kl"], KvDtype(r["name"], round(r["bits"]))) for r in rows["formats"]
    ]
    grouped = [
        Format(
            f"KIVI axes, {r['key_bits']} bits", r["bits"], r["kl"],
            KvDtype(f"kivi{r['key_bits']}", r["key_bits"], _KIVI_GROUP, _KIVI_SCALE_BITS),
        )
        for r in rows["key_value_grid"] if r["key_bits"] == r["value_bits"]
    ]
    return tuple(sorted(plain + grouped, key=lambda f: (-f.bits, f.kl)))


@cache
def sent_formats() -> tuple[Format, ...]:
    """CacheGen's levels, most bits first.

    Source: measured on SmolLM2-135M by ``kvlib/figures/data/make_cachegen.py``.

    Examples
    --------
    >>> [f.name for f in sent_formats()]
    ['CacheGen, fine', 'CacheGen, good', 'CacheGen, medium', 'CacheGen, coarse']
    """
    rows = [r for r in _measured("cachegen.json")["rates"] if r["family"] == _CODED_FAMILY]
    made = (Format(f"CacheGen, {r['level']}", r["bits"], r["kl"]) for r in rows)
    return tuple(sorted(made, key=lambda f: -f.bits))


@cache
def smallest(formats: tuple[Format, ...], max_kl: float) -> Format:
    """The format of fewest bits whose damage stays within `max_kl`; of equals, the one that does least.

    Raises
    ------
    ConfigError
        If none does.

    Examples
    --------
    >>> smallest(kept_formats(), 0.003).name, smallest(sent_formats(), 0.003).name
    ('INT8, one scale', 'CacheGen, good')
    """
    fine = [f for f in formats if f.kl <= real("max_kl", max_kl)]
    if not fine:
        least = min(f.kl for f in formats)
        raise ConfigError(f"max_kl: got {max_kl!r}, expected at least {least:g}, as the mildest format does")
    return min(fine, key=lambda f: (f.bits, f.kl))
