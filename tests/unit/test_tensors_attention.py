"""Attention through block tables equals attention on contiguous keys and values (law L4), on both
backends."""

import math
import random
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.errors import ConfigError
from kvlib.tensors.attention import dense_attention, paged_attention
from kvlib.tensors.backend import NumpyBackend, TorchBackend, get_backend

torch.set_num_threads(1)
QUICK = settings(max_examples=60, deadline=None, derandomize=True)
BACKENDS = [NumpyBackend(), TorchBackend()]


def scattered(xp, lengths, block_size, kv_heads, head_dim, seed=0):
    """Random rows of some sequences, shuffled over a pool; every slot that no token owns is NaN."""
    rng, order = np.random.default_rng(seed), random.Random(seed)
    needed = [-(-length // block_size) for length in lengths]
    blocks = list(range(sum(needed) + 3))
    order.shuffle(blocks)
    pools = [np.full((kv_heads, len(blocks), block_size, head_dim), np.nan) for _ in range(2)]
    tables, rows = [], []
    for length, count in zip(lengths, needed):
        table, blocks = blocks[:count], blocks[count:]
        own = [rng.standard_normal((length, kv_heads, head_dim)) for _ in range(2)]
        for pool, values in zip(pools, own):
            for position in range(length):
                pool[:, table[position // block_size], position % block_size] = values[position]
        tables.append(table)
        rows.append([xp.floats(values) for values in own])
    return xp.floats(pools[0]), xp.floats(pools[1]), tables, rows


@QUICK
@given(
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=4),
    block_size=st.sampled_from([1, 3, 4, 16, 64]),
    kv_heads=st.integers(1, 3),
    groups=st.integers(1, 3),
    new=st.integers(1, 5),
    window=st.none() | st.integers(1, 200),
    backend=st.sampled_from(BACKENDS),
)
def test_paged_equals_dense(lengths, block_size, kv_heads, groups, new, window, backend):
    new = min(new, *lengths)
    keys, values, tables, rows = scattered(backend, lengths, block_size, kv_heads, head_dim=8)
    query = backend.floats(np.random.default_rng(1).standard_normal((len(lengths), new, kv_heads * groups, 8)))
    paged = paged_attention(backend, query, keys, values, tables, lengths, window)
    for own_query, (k, v), out in zip(query, rows, paged):
        assert float(abs(dense_attention(backend, own_query, k, v, window) - out).max()) <= 1e-12


@pytest.mark.parametrize("block_size", [1, 4, 16, 64])
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda xp: xp.name)
def test_paged_equals_torch_sdpa(block_size, backend):
    # 300 new tokens take three query tiles; 520 tokens in all take several key tiles.
    lengths, new = [300, 520], 300
    keys, values, tables, rows = scattered(backend, lengths, block_size, kv_heads=2, head_dim=16)
    query = backend.floats(np.random.default_rng(1).standard_normal((2, new, 6, 16)))
    paged = torch.as_tensor(paged_attention(backend, query, keys, values, tables, lengths))
    for length, own_query, (k, v), out in zip(lengths, query, rows, paged):
        mask = torch.ones(new, length, dtype=torch.bool).tril(diagonal=length - new)
        q, k, v = (torch.as_tensor(x).transpose(0, 1)[None] for x in (own_query, k, v))
        sdpa = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)[0].transpose(0, 1)
        assert float((sdpa - out).abs().max()) <= 1e-12


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-5), ("bfloat16", 5e-2), ("float16", 5e-3)])
def test_narrow_dtypes_stay_near_float64(dtype, bound):
    # Bounds: a few units in the last place of the answer, which is of order 1 (2^-8 for bfloat16, 2^-11 for
    # float16).
    exact, narrow = TorchBackend(), TorchBackend(dtype)
    keys, values, tables, _ = scattered(exact, [130], 16, kv_heads=2, head_dim=16)
    query = exact.floats(np.random.default_rng(1).standard_normal((1, 1, 4, 16)))
    wanted = paged_attention(exact, query, keys, values, tables, [130])
    got = paged_attention(narrow, *(narrow.floats(x) for x in (query, keys, values)), tables, [130])
    assert got.dtype == narrow.dtype
    assert float((wanted - got.double()).abs().max()) <= bound


def test_two_blocks_by_hand():
    # pedagogy.md, chapter 3, exercise 3: scores (0, ln 2), values (1, 4): (1·1 + 2·4) / 3 = 3; a third block
    # with score
    # ln 3 and value 2 gives (9 + 3·2) / 6 = 2.5.
    xp = NumpyBackend()
    keys = xp.floats([[[[0.0]], [[math.log(2)]], [[math.log(3)]]]])
    values = xp.floats([[[[1.0]], [[4.0]], [[2.0]]]])
    query = xp.floats([[[[1.0]]]])
    assert paged_attention(xp, query, keys, values, [[0, 1]], [2]).item() == pytest.approx(3)
    assert paged_attention(xp, query, keys, values, [[0, 1, 2]], [3]).item() == pytest.approx(2.5)


def test_memory_does_not_grow_with_the_context():
    def peak_bytes(length):
        xp = NumpyBackend()
        keys, values, tables, _ = scattered(xp, [length], 16, kv_heads=2, head_dim=16)
        query = xp.floats(np.ones((1, 1, 4, 16)))
        tracemalloc.start()
        paged_attention(xp, query, keys, values, tables, [length])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    short, long = peak_bytes(1024), peak_bytes(16 * 1024)
    # The block table itself grows by 8 bytes for each of 960 blocks, as a list and as an array; the cache by
    # 7.5 MB.
    assert long - short < 40_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tables": [], "num_tokens": []}, "batch"),
        ({"num_tokens": [5, 5]}, "batch"),
        ({"num_tokens": [9]}, "num_tokens"),
        ({"num_tokens": [0]}, "num_tokens"),
        ({"num_tokens": [True]}, "num_tokens"),
        ({"query": np.ones((1, 1, 3, 8))}, "heads"),
        ({"query": np.ones((1, 1, 4, 6))}, "heads"),
        ({"query": np.ones((1, 1, 4, 8), np.float32)}, "dtype"),
        ({"window": 0}, "window"),
    ],
)
def test_bad_input_is_refused(change, message):
    xp = NumpyBackend()
    pool = xp.zeros(2, 4, 4, 8)
    given_input = {"query": np.ones((1, 1, 4, 8)), "tables": [[0, 1]], "num_tokens": [8], "window": None} | change
    with pytest.raises(ConfigError, match=message):
        paged_attention(xp, given_input["query"], pool, pool, given_input["tables"], given_input["num_tokens"],
                        given_input["window"])


@pytest.mark.parametrize(
    "arguments", [("jax",), ("numpy", "bfloat16"), ("torch", "int8"), ("numpy", "float64", "cuda"), ("torch", "float64", "tpu")]
)
def test_unknown_backends_are_refused(arguments):
    with pytest.raises(ConfigError):
        get_backend(*arguments)
