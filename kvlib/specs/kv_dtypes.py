"""How many bits one cached number takes, scales included.

A plain 8-bit cache keeps one scale for the whole tensor, which costs nothing per token. A block-scaled one
keeps a scale for every few elements, and those scales are cached too: 8 bits with an fp16 scale for every
32 elements is 8.5 bits per element, 6% more than it says on the tin.
"""

from dataclasses import dataclass
from types import MappingProxyType

from kvlib.errors import ConfigError


@dataclass(frozen=True)
class KvDtype:
    """A storage format of the KV cache.

    Attributes
    ----------
    name : str
    bits : int
        Bits of one element without its scale.
    group_size : int or None
        Elements that share one stored scale; None where one scale serves the whole tensor (or there is none).
    scale_bits : int
        Bits of the numbers stored for each group.
    source : str

    Examples
    --------
    >>> KV_DTYPES["q8_0"].bytes_for(2048)       # 2048 B of elements + 64 fp16 scales
    2176
    """

    name: str
    bits: int
    group_size: int | None = None
    scale_bits: int = 0
    source: str = ""

    def bytes_for(self, elements: int) -> int:
        """Bytes of `elements` cached numbers of one layer and token, rounded up to whole bytes."""
        groups = 0 if self.group_size is None else -(-elements // self.group_size)
        return -(-(elements * self.bits + groups * self.scale_bits) // 8)


_PER_TENSOR = "one scale per tensor, kept with the weights (vLLM, Quantized KV Cache): no bytes per token"
_BARE = "the bits alone; a format with scales per group is larger by these (see q8_0, q4_0, nvfp4)"

KV_DTYPES = MappingProxyType({
    dtype.name: dtype
    for dtype in (
        KvDtype("fp32", 32, source="IEEE 754 binary32"),
        KvDtype("bf16", 16, source="bfloat16"),
        KvDtype("fp16", 16, source="IEEE 754 binary16"),
        KvDtype("fp8", 8, source=_PER_TENSOR),
        KvDtype("int8", 8, source=_BARE),
        KvDtype("fp4", 4, source=_BARE),
        KvDtype("int4", 4, source=_BARE),
        KvDtype("q8_0", 8, 32, 16, source="llama.cpp q8_0: one fp16 scale per 32 elements"),
        KvDtype("q4_0", 4, 32, 16, source="llama.cpp q4_0: one fp16 scale per 32 elements"),
        KvDtype("mxfp8", 8, 32, 8, source="OCP Microscaling 1.0: one 8-bit scale per 32 elements"),
        KvDtype("nvfp4", 4, 16, 8, source="NVIDIA NVFP4: one fp8 scale per 16 elements"),
    )
})

_ALIASES = MappingProxyType({
    "float32": "fp32", "float": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16",
    "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
})


def kv_dtype(name: "str | KvDtype") -> KvDtype:
    """Look up a KV format by name or alias; a `KvDtype` of your own passes through.

    Raises
    ------
    ConfigError
        For a name that is not known: the size of an unknown format is not guessed.

    Examples
    --------
    >>> kv_dtype("bfloat16").bits
    16
    >>> kv_dtype(KvDtype("kivi2", 2, group_size=32, scale_bits=32)).bytes_for(64)
    24
    """
    if isinstance(name, KvDtype):
        return name
    if isinstance(name, str):
        bare = name.removeprefix("torch.").lower()
        found = KV_DTYPES.get(_ALIASES.get(bare, bare))
        if found is not None:
            return found
    known = ", ".join([*KV_DTYPES, *_ALIASES])
    raise ConfigError(f"kv_dtype: got {name!r}, expected 'auto' or one of {known}")
