"""The Triton kernel in Triton's interpreter. It does not catch reads out of bounds, so spare blocks are
NaN."""

import random

import pytest
import torch

from kvlib.errors import ConfigError
from kvlib.tensors.attention import paged_attention
from kvlib.tensors.backend import TorchBackend
from kvlib.tensors.triton_decode import paged_decode

torch.set_num_threads(1)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def example(xp, heads, kv_heads, head_dim, block_size, lengths, seed=0):
    order, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    needed = [-(-length // block_size) for length in lengths]
    blocks = list(range(sum(needed) + 4))
    order.shuffle(blocks)
    pools = [torch.randn(kv_heads, len(blocks), block_size, head_dim, generator=generator).to(xp.dtype) for _ in range(2)]
    tables, spare = [], set(blocks)
    for length, count in zip(lengths, needed):
        table, blocks = blocks[:count], blocks[count:]
        spare -= set(table)
        tables.append(table + [blocks[-1]] * (max(needed) - count))
        if length % block_size:
            for pool in pools:
                pool[:, table[-1], length % block_size:] = float("nan")
    for pool in pools:
        pool[:, sorted(spare)] = float("nan")
    query = torch.randn(len(lengths), heads, head_dim, generator=generator).to(xp.dtype)
    return *(x.to(DEVICE) for x in (query, *pools)), tables


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-5), ("float16", 5e-3), ("bfloat16", 5e-2)])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "block_size"), [(6, 2, 8, 4), (9, 3, 64, 16), (4, 4, 24, 5), (2, 1, 16, 1)])
def test_the_kernel_equals_the_reference(dtype, bound, heads, kv_heads, head_dim, block_size):
    xp, lengths = TorchBackend(dtype, DEVICE), [1, 2 * block_size, 3 * block_size + 1]
    query, keys, values, tables = example(xp, heads, kv_heads, head_dim, block_size, lengths)
    got = paged_decode(query, keys, values, xp.ints(tables), xp.ints(lengths))
    wanted = paged_attention(xp, query[:, None], keys, values, tables, lengths)[:, 0]
    assert got.dtype == xp.dtype and float((got - wanted).float().abs().max()) <= bound


def test_bad_input_is_refused():
    xp = TorchBackend("float32", DEVICE)
    query, keys, values, tables = example(xp, 4, 2, 8, 4, [5, 3])
    tables, lengths = xp.ints(tables), xp.ints([5, 3])
    for arguments in (
        (query[:0], keys, values, tables[:0], lengths[:0]),
        (query, keys, values, tables[:1], lengths),
        (query[:, :3], keys, values, tables, lengths),
        (query[..., :4], keys, values, tables, lengths),
        (query.double(), keys, values, tables, lengths),
        (query.double(), keys.double(), values.double(), tables, lengths),
        (query, keys.swapaxes(1, 2), values.swapaxes(1, 2), tables, lengths),
    ):
        with pytest.raises(ConfigError):
            paged_decode(*arguments)
