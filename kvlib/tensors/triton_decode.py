"""One decode step of attention as a GPU kernel: it finds its blocks through the block table by itself.

Written in Triton (Tillet et al., 2019). One program serves one sequence and one KV head, with all the query
heads that share it, and walks down the block table: a block is read in one contiguous piece, the next one
lies wherever the table says. Without a GPU the kernel runs in Triton's interpreter: slowly, and with the same
result.
"""

import os

import torch

ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    # Triton reads it once, when it is imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from kvlib.errors import ConfigError  # noqa: E402

# Tokens that are read together, whatever the block size: each finds its own block in the table.
TILE_TOKENS = 64
# The smallest side of a matrix product that tensor cores take.
SMALLEST_SIDE = 16
# What the products are computed in. The interpreter would multiply the bits of a bfloat16 as if they were an
# integer.
PRODUCTS = {
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16 if ON_GPU else tl.float32,
}


@triton.jit
def _decode_kernel(query, keys, values, tables, num_tokens, answer, scale, max_blocks, num_blocks, heads,
                   GROUPS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
                   PADDED_GROUPS: tl.constexpr, PADDED_WIDTH: tl.constexpr, PRODUCT: tl.constexpr):
    row, kv_head = tl.program_id(0), tl.program_id(1)
    group, channel = tl.arange(0, PADDED_GROUPS), tl.arange(0, PADDED_WIDTH)
    own_rows = (row * heads + kv_head * GROUPS + group)[:, None] * WIDTH + channel[None, :]
    real_rows = (group < GROUPS)[:, None] & (channel < WIDTH)[None, :]
    q = tl.load(query + own_rows, mask=real_rows, other=0.0).to(PRODUCT)
    length = tl.load(num_tokens + row)
    top = tl.full([PADDED_GROUPS], -1e30, tl.float32)
    total = tl.zeros([PADDED_GROUPS], tl.float32)
    out = tl.zeros([PADDED_GROUPS, PADDED_WIDTH], tl.float32)
    for start in range(0, length, TILE):
        token = start + tl.arange(0, TILE)
        seen = token < length
        block = tl.load(tables + row * max_blocks + token // BLOCK, mask=seen, other=0)
        # 64-bit: a large pool has more numbers than 32 bits can count.
        slot = (kv_head.to(tl.int64) * num_blocks + block) * BLOCK + token % BLOCK
        place = slot[:, None] * WIDTH + channel[None, :]
        read = seen[:, None] & (channel < WIDTH)[None, :]
        k = tl.load(keys + place, mask=read, other=0.0).to(PRODUCT)
        v = tl.load(values + place, mask=read, other=0.0).to(PRODUCT)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        larger = tl.maximum(top, tl.max(scores, axis=1))
        weights = tl.exp(scores - larger[:, None])
        shrink = tl.exp(top - larger)
        total = total * shrink + tl.sum(weights, axis=1)
        out = out * shrink[:, None] + tl.dot(weights.to(PRODUCT), v, input_precision="ieee")
        top = larger
    tl.store(answer + own_rows, (out / total[:, None]).to(answer.dtype.element_ty), mask=real_rows)


def paged_decode(query, keys, values, block_tables, num_tokens):
    """Attention of one new token for each sequence, through the block tables; sums are kept in float32.

    Parameters
    ----------
    query : tensor [batch, heads, head_dim]
    keys, values : tensor [kv_heads, num_blocks, block_size, head_dim]
        One layer of a `KvStore`, contiguous.
    block_tables : tensor of int [batch, max_blocks]
        Entries past a sequence's last block are not read.
    num_tokens : tensor of int [batch]
        The new token included; at least 1.

    Returns
    -------
    tensor [batch, heads, head_dim]

    Raises
    ------
    ConfigError
        For an empty batch, heads or dtypes that do not match, or tensors of another layout.
    """
    batch, heads, width = query.shape
    kv_heads, num_blocks, block_size, key_width = keys.shape
    if not batch or block_tables.shape[0] != batch or num_tokens.shape[0] != batch:
        raise ConfigError(f"batch: got {batch} queries, {block_tables.shape[0]} block tables and "
                          f"{num_tokens.shape[0]} lengths, expected as many of each and at least one")
    if heads % kv_heads or width != key_width or keys.shape != values.shape:
        raise ConfigError(f"heads: got {heads} query heads of {width} on {kv_heads} KV heads of {key_width}, "
                          "expected a multiple of the KV heads and the same width")
    if query.dtype not in PRODUCTS or query.dtype != keys.dtype:
        raise ConfigError(f"query: got {query.dtype} on keys of {keys.dtype}, expected the same of float32, "
                          "float16 and bfloat16")
    if not (keys.is_contiguous() and values.is_contiguous()):
        raise ConfigError("keys: got a strided view, expected the contiguous layer of a store")
    query, tables, answer = query.contiguous(), block_tables.contiguous(), query.new_empty(query.shape)
    groups = heads // kv_heads
    _decode_kernel[(batch, kv_heads)](
        query, keys, values, tables, num_tokens, answer, width**-0.5, tables.shape[1], num_blocks, heads,
        GROUPS=groups, BLOCK=block_size, WIDTH=width, TILE=TILE_TOKENS,
        PADDED_GROUPS=_padded(groups), PADDED_WIDTH=_padded(width), PRODUCT=PRODUCTS[query.dtype],
    )
    return answer


def _padded(size: int) -> int:
    """The side of a tile that holds `size` rows: a power of two that tensor cores take."""
    return max(SMALLEST_SIDE, triton.next_power_of_2(size))
