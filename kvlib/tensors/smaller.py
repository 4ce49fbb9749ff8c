"""What each way to a smaller KV cache stores, and what it reads for every generated token.

The bytes stored decide how many requests fit; the bytes read decide how long attention takes. Quantizing and
dropping lower both, sparse attention only the second. Standard library only.
"""

from dataclasses import dataclass

from kvlib.errors import ConfigError
from kvlib.specs import KvShape
from kvlib.specs.checks import whole
from kvlib.specs.kv_dtypes import KvDtype

# KIVI keeps a 16-bit smallest number and a 16-bit step for every group (Liu et al. 2024).
GROUP_BITS = 32
PAGE_TOKENS = 16


@dataclass(frozen=True)
class Footprint:
    """One sequence's cache while it decodes.

    Attributes
    ----------
    stored_bytes, read_bytes : int
        Held in memory; read for one new token.
    """

    stored_bytes: int
    read_bytes: int


def grouped(bits: int, group: int = 32) -> KvDtype:
    """The format of KIVI's groups, to size a cache with.

    Examples
    --------
    >>> grouped(2).bytes_for(32) * 8 / 32       # bits per number
    3.0
    """
    whole("bits", bits)
    whole("group", group)
    name = f"{bits} bits in groups of {group}"
    return KvDtype(name, bits, group, GROUP_BITS, source="KIVI, Liu et al. 2024")


def everything(shape: KvShape, tokens: int, kv_dtype="bf16") -> Footprint:
    """All tokens are kept and all are read, in any format.

    Examples
    --------
    >>> from kvlib.specs import get_model
    >>> llama = get_model("llama-3-8b").shape
    >>> everything(llama, 1000, grouped(4)).stored_bytes / everything(llama, 1000).stored_bytes
    0.3125
    """
    num_bytes = shape.kv_bytes(tokens, kv_dtype)
    return Footprint(num_bytes, num_bytes)


def dropped(shape: KvShape, tokens: int, budget: int, kv_dtype="bf16") -> Footprint:
    """At most `budget` tokens are kept, the others are gone.

    Examples
    --------
    >>> from kvlib.specs import get_model
    >>> dropped(get_model("llama-3-8b").shape, 1000, 250)
    Footprint(stored_bytes=32768000, read_bytes=32768000)
    """
    return everything(shape, min(whole("tokens", tokens), whole("budget", budget)), kv_dtype)


def sparse(
    shape: KvShape, tokens: int, budget: int, page_tokens: int = PAGE_TOKENS, kv_dtype="bf16"
) -> Footprint:
    """All tokens are kept; each query reads an index and the pages it picks, `budget` tokens.

    The index holds the smallest and the largest key of each page: two vectors, as much as one token's key and
    value (Quest, Tang et al. 2024).

    Raises
    ------
    ConfigError
        For a latent cache (MLA), whose index would have another size.

    Examples
    --------
    A quarter of 1,600 tokens in pages of 16: stored 1 + 1/16, read 1/4 + 1/16.

    >>> from kvlib.specs import get_model
    >>> llama = get_model("llama-3-8b").shape
    >>> picked, full = sparse(llama, 1600, 400), everything(llama, 1600)
    >>> picked.stored_bytes / full.stored_bytes, picked.read_bytes / full.read_bytes
    (1.0625, 0.3125)
    """
    if any(group.latent for group in shape.groups):
        raise ConfigError("shape: got a latent cache, expected keys and values, which Quest indexes")
    pages = -(-whole("tokens", tokens) // whole("page_tokens", page_tokens))
    index = shape.kv_bytes(pages, kv_dtype)
    picked = dropped(shape, tokens, budget, kv_dtype)
    return Footprint(shape.kv_bytes(tokens, kv_dtype) + index, picked.read_bytes + index)
