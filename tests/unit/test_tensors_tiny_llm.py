"""Law L4 on a whole model: contiguous, paged, forked, swapped and shuffled caches give the same logits."""

import random
import subprocess
import sys

import pytest
import torch

from kvlib.blocks import BlockManager
from kvlib.errors import ConfigError
from kvlib.tensors.backend import NumpyBackend, TorchBackend
from kvlib.tensors.cache import ContiguousCache, PagedCache
from kvlib.tensors.decoder import DecoderShape
from kvlib.tensors.kv_store import KvStore
from kvlib.tensors.session import PagedSession
from kvlib.tensors.tiny_llm import TINY_SHAPE, tiny_llm

torch.set_num_threads(1)
BACKENDS = [NumpyBackend(), TorchBackend()]
RNG = random.Random(5)
PROMPTS = [[RNG.randrange(TINY_SHAPE.vocabulary) for _ in range(length)] for length in (5, 17, 33, 64)]


def paged_cache(model, num_blocks, block_size, seqs):
    shape = model.shape
    manager = BlockManager(num_blocks, block_size)
    store = KvStore(model.xp, num_layers=shape.num_layers, num_blocks=num_blocks, block_size=block_size,
                    kv_heads=shape.kv_heads, head_dim=shape.head_dim)
    store.keys[...] = float("nan")
    store.values[...] = float("nan")
    return PagedCache(manager, store, seqs)


@pytest.mark.parametrize("block_size", [1, 4, 16, 64])
@pytest.mark.parametrize("xp", BACKENDS, ids=lambda xp: xp.name)
def test_ragged_batch_prefill_and_20_decode_steps(xp, block_size):
    # Oracle L7.paged.logits: below 1e-12 in float64 (the lecture saw 6e-15).
    model = tiny_llm(xp)
    paged, contiguous = paged_cache(model, 208 // block_size + 4, block_size, list("abcd")), ContiguousCache(xp, 4)
    batch = PROMPTS
    for _ in range(21):
        wanted, got = model.forward(batch, contiguous), model.forward(batch, paged)
        assert float(abs(wanted - got).max()) <= 1e-12
        batch = [[int(row.argmax())] for row in wanted]


@pytest.mark.parametrize("xp", BACKENDS, ids=lambda xp: xp.name)
def test_chunks_forks_swaps_and_scattering_change_nothing(xp):
    model = tiny_llm(xp)
    prompt = PROMPTS[3]
    wanted = model.forward([prompt + [7]], ContiguousCache(xp))
    session = PagedSession(model, num_blocks=40, block_size=4, scatter_seed=3)
    manager, store = session.manager, session.store

    def feed(seq, tokens):
        return model.forward([tokens], PagedCache(manager, store, [seq]))

    feed("a", prompt[:13])
    feed("a", prompt[13:])
    session.fork("a", "b")
    forked = feed("b", [7])
    session.swap_out("a")
    feed("other", prompt[:9])
    session.swap_in("a")
    restored = feed("a", [7])
    for logits in (forked, restored):
        assert float(abs(wanted - logits).max()) <= 1e-12


def test_both_backends_agree():
    logits = [xp.to_numpy(tiny_llm(xp).forward([PROMPTS[3]], ContiguousCache(xp), all_positions=True)) for xp in BACKENDS]
    assert logits[0].shape == (64, TINY_SHAPE.vocabulary)
    assert abs(logits[0] - logits[1]).max() <= 1e-12


def test_a_token_sees_the_past_only():
    xp = BACKENDS[0]
    model = tiny_llm(xp)
    whole = model.forward([PROMPTS[2]], ContiguousCache(xp), all_positions=True)
    changed = model.forward([[*PROMPTS[2][:-1], 0]], ContiguousCache(xp), all_positions=True)
    assert (whole[:-1] == changed[:-1]).all() and (whole[-1] != changed[-1]).any()


@pytest.mark.parametrize(
    ("batch", "message"),
    [([], "batch"), ([[1], []], "batch"), ([[101]], "token"), ([[-1]], "token"), ([[True]], "token"), ([[1] * 1025], "batch")],
)
def test_bad_batches_leave_the_cache_alone(batch, message):
    xp = BACKENDS[0]
    cache = ContiguousCache(xp, max(1, len(batch)))
    with pytest.raises(ConfigError, match=message):
        tiny_llm(xp).forward(batch, cache)
    assert set(cache.lengths) == {0}


def test_impossible_shapes_are_refused():
    sizes = dict(num_layers=1, hidden=8, heads=4, kv_heads=2, head_dim=2, mlp=8, vocabulary=5, max_tokens=8)
    for change in ({"kv_heads": 3}, {"head_dim": 3}, {"num_layers": 0}):
        with pytest.raises(ConfigError):
            DecoderShape(**sizes | change)


def test_what_importing_costs():
    script = (
        "import sys; import kvlib.tensors.sharing, kvlib.tensors.decoding; assert 'numpy' not in sys.modules\n"
        "import kvlib.tensors.smollm, kvlib.tensors.session; assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
