"""A smaller KV cache: formats, evicted tokens, unread pages, bytes, and stacking on blocks and prefixes (L4)."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.blocks import BlockManager
from kvlib.cachegen.rivals import kivi
from kvlib.errors import ConfigError
from kvlib.prefix import BlockCache
from kvlib.specs import get_model
from kvlib.tensors import eviction
from kvlib.tensors.backend import NumpyBackend
from kvlib.tensors.cache import ContiguousCache, PagedCache
from kvlib.tensors.placement import scatter_free_blocks
from kvlib.tensors.quantized_kv import (
    PER_CHANNEL, PER_TOKEN, Float8, Groups, OneScale, bits_per_number, quantized, relative_error, to_e4m3,
)
from kvlib.tensors.reuse import RoundingStore, TableCache, prefill, store_for
from kvlib.tensors.smaller import Footprint, dropped, everything, grouped, sparse
from kvlib.tensors.sparse_attention import SelectedPages, page_bounds
from kvlib.tensors.tiny_llm import tiny_llm

XP = NumpyBackend()
MODEL = tiny_llm(XP)
SHAPE = MODEL.shape
LAW = settings(derandomize=True, deadline=None, max_examples=40)
seeds = st.integers(0, 2**32 - 1)
FOUR_BITS = Groups(4, PER_TOKEN, group=SHAPE.head_dim)


def drawn(seed, *shape):
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape) * 10 ** rng.uniform(-2, 2)


def prompt(seed, length):
    return np.random.default_rng(seed).integers(0, SHAPE.vocabulary, length).tolist()


# Formats.

@LAW
@given(seeds, st.sampled_from((2, 3, 4, 8)), st.sampled_from((PER_TOKEN, PER_CHANNEL)))
def test_groups_stay_within_half_a_step(seed, bits, axis):
    rows = drawn(seed, 64, 32)
    along = rows if axis == PER_TOKEN else rows.T
    parts = along.reshape(len(along), -1, 32)
    # A step is the range over 2^bits - 1. Float16 moves the low end by 2^-11 of itself, the high end by 2^-11 of
    # the range.
    bound = np.ptp(parts, -1, keepdims=True) / (2**bits - 1) / 2 + 2**-9 * np.abs(parts).max(-1, keepdims=True)
    back = Groups(bits, axis).restore(rows)
    error = np.abs((back if axis == PER_TOKEN else back.T).reshape(parts.shape) - parts)
    assert (error <= bound).all()


@LAW
@given(seeds, st.sampled_from((2, 4)))
def test_kivi_is_what_the_codec_chapter_measures_against(seed, bits):
    kv = drawn(seed, 2, 2, 64, 32)
    back, size = kivi(kv, bits)
    formats = Groups(bits, PER_CHANNEL), Groups(bits, PER_TOKEN)
    assert np.array_equal(quantized(kv, *formats), back) and bits_per_number(*formats) == size


def test_e4m3_is_torchs_for_every_float16_in_range():
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float64)
    halves = halves[np.abs(halves) <= 448]
    theirs = torch.tensor(halves, dtype=torch.float32).to(torch.float8_e4m3fn).to(torch.float64).numpy()
    assert np.array_equal(to_e4m3(halves), theirs)
    # The largest number E4M3 holds is 448 = 1.75 · 2^8; what is larger saturates.
    assert to_e4m3(np.array([1e6, -1e6])).tolist() == [448.0, -448.0]


@LAW
@given(seeds)
def test_one_scale_spends_its_codes_on_the_largest_number(seed):
    rows = drawn(seed, 16, 8)
    for bits in (4, 8):
        step = np.abs(rows).max() / (2 ** (bits - 1) - 1)
        assert np.abs(OneScale(bits).restore(rows) - rows).max() <= step / 2 * (1 + 1e-9)
    # E4M3 has 3 bits of mantissa: half a step is 1/16 of a normal number, or 2^-10 of the scale below 2^-6.
    error = np.abs(Float8().restore(rows) - rows)
    assert (error <= np.maximum(np.abs(rows) / 16, np.abs(rows).max() / 448 * 2**-10) * (1 + 1e-9)).all()


@pytest.mark.parametrize("form", [Groups(2, PER_TOKEN), Groups(2, PER_CHANNEL), OneScale(8), Float8()])
def test_zeros_come_back_as_zeros(form):
    assert not form.restore(np.zeros((32, 32))).any()


def test_a_channel_far_from_zero_wants_groups_along_it():
    rows = np.random.default_rng(0).normal(size=(64, 32))
    rows[:, 5] += 50
    along, across = (relative_error(rows, Groups(2, axis)) for axis in (PER_CHANNEL, PER_TOKEN))
    # Across channels the step is about 50 / 3, so the other 31 round to zero: an error near their own deviation, 1.
    # Along a channel the step is a third of a range of 4, and the error 4/3 / sqrt(12) ≈ 0.4.
    assert across > 2 * along


@pytest.mark.parametrize("call", [
    lambda: Groups(0, PER_TOKEN), lambda: Groups(True, PER_TOKEN), lambda: Groups(2, "per head"),
    lambda: Groups(2, PER_TOKEN, 0), lambda: OneScale(1), lambda: Groups(2, PER_TOKEN).restore(np.zeros((4, 33))),
    lambda: Groups(2, PER_CHANNEL).restore(np.zeros((33, 32))),
])
def test_impossible_formats_are_refused(call):
    with pytest.raises(ConfigError, match="got .*expected"):
        call()


# Which tokens are kept.

def noted(length=60, seed=0):
    cache = eviction.AttentionByHead(XP)
    logits = MODEL.forward([prompt(seed, length)], cache)
    return cache, cache.sums(), logits


def test_noting_attention_changes_nothing_and_loses_nothing():
    _, sums, logits = noted()
    assert np.array_equal(logits, MODEL.forward([prompt(0, 60)], ContiguousCache(XP)))
    # Every query gives away exactly 1, and each KV head serves heads / kv_heads query heads.
    sharing = SHAPE.heads // SHAPE.kv_heads
    assert np.allclose(sums.from_all.sum(-1), 60 * sharing)
    assert np.allclose(sums.from_last.sum(-1), eviction.OBSERVED * sharing)
    assert (sums.from_last <= sums.from_all + 1e-12).all()


@LAW
@given(st.sampled_from(sorted(eviction.POLICIES)), seeds, st.integers(1, 60))
def test_every_policy_keeps_exactly_its_budget(policy, seed, budget):
    mass = np.random.default_rng(seed).random((2, 3, 60))
    kept = eviction.POLICIES[policy](eviction.AttentionSums(mass, mass), max(budget, eviction.SINKS))
    assert kept.shape == (2, 3, max(budget, eviction.SINKS))
    assert (np.diff(kept, axis=-1) > 0).all() and kept.min() >= 0 and kept.max() < 60


@LAW
@given(st.sampled_from(sorted(eviction.POLICIES)), seeds)
def test_a_budget_for_everything_keeps_everything(policy, seed):
    mass = np.random.default_rng(seed).random((2, 3, 20))
    kept = eviction.POLICIES[policy](eviction.AttentionSums(mass, mass), 20)
    kv = drawn(seed, 2, 2, 20, 6)
    assert np.array_equal(eviction.kept_kv(kv, kept), kv)


@LAW
@given(seeds)
def test_kept_kv_takes_each_heads_own_tokens(seed):
    rng = np.random.default_rng(seed)
    kv, mass = rng.normal(size=(2, 2, 20, 6)), rng.random((2, 3, 20))
    kept = eviction.heavy_hitters(eviction.AttentionSums(mass, mass), 8)
    packed = eviction.kept_kv(kv, kept)
    for layer in range(2):
        for head in range(3):
            channels = slice(2 * head, 2 * head + 2)
            assert np.array_equal(packed[layer, :, :, channels], kv[layer][:, kept[layer, head]][:, :, channels])


def test_heavy_hitters_and_snapkv_keep_what_was_looked_at():
    looked_at = np.full((1, 1, 100), 0.01)
    looked_at[0, 0, [3, 40]] = 5.0
    sums = eviction.AttentionSums(looked_at, looked_at)
    assert {3, 40} <= set(eviction.heavy_hitters(sums, 8)[0, 0])
    kept = set(eviction.snapkv(sums, eviction.OBSERVED + 10)[0, 0])
    # Smoothing over five neighbors lifts two tokens on each side as well; the last 32 stay in any case.
    assert {*range(1, 6), *range(38, 43), *range(68, 100)} == kept
    assert list(eviction.window(sums, 3)[0, 0]) == [97, 98, 99]


@LAW
@given(st.integers(1, 64), st.integers(1, 64), st.sampled_from((1, 4, 16)))
def test_a_window_frees_whole_blocks(tokens, budget, block_size):
    budget = min(budget, tokens)
    nothing = np.zeros((1, 2, tokens))
    kept = eviction.window(eviction.AttentionSums(nothing, nothing), budget)
    freed = eviction.freed_blocks(kept, tokens, block_size)
    assert freed == ((tokens - budget) // block_size) / -(-tokens // block_size)


@pytest.mark.parametrize("call", [
    lambda s: eviction.window(s, 61), lambda s: eviction.at_random(s, 0), lambda s: eviction.heavy_hitters(s, True),
    lambda s: eviction.sinks_and_window(s, 4, sinks=5), lambda s: eviction.snapkv(s, 61),
    lambda s: eviction.window(s, 2.0),
])
def test_impossible_budgets_are_refused(call):
    nothing = np.zeros((1, 1, 60))
    with pytest.raises(ConfigError, match="got .*expected"):
        call(eviction.AttentionSums(nothing, nothing))


# Which pages are read.

def context_of(cache):
    return np.array([
        [part[0][layer].reshape(cache.lengths[0], -1) for part in (cache.keys, cache.values)]
        for layer in range(SHAPE.num_layers)
    ])


@pytest.mark.parametrize("page_tokens", [1, 7, 16])
def test_reading_every_page_is_attention(page_tokens):
    cache, _, _ = noted()
    pages = SelectedPages(XP, context_of(cache), SHAPE.kv_heads, page_tokens, pages=-(-60 // page_tokens))
    more = prompt(1, 9)
    ours, theirs = (MODEL.forward([more], c, all_positions=True) for c in (pages, cache))
    assert np.abs(ours - theirs).max() <= 1e-12


def test_reading_few_pages_hides_the_others():
    cache, _, _ = noted()
    context = context_of(cache)
    few = SelectedPages(XP, context, SHAPE.kv_heads, page_tokens=10, pages=1)
    query = np.random.default_rng(0).normal(size=(1, SHAPE.heads, SHAPE.head_dim))
    one = {layer: few.read(layer, query) for layer in range(SHAPE.num_layers)}
    for layer, answer in one.items():
        keys = few.keys[0][layer]
        for head in range(SHAPE.heads):
            own = head * SHAPE.kv_heads // SHAPE.heads
            best = page_bounds(query[:, head], keys[:, own], 10)[0].argmax()
            place = slice(10 * best, 10 * best + 10)
            weights = np.exp(keys[place, own] @ query[0, head] * SHAPE.head_dim**-0.5)
            assert np.allclose(answer[0, head], weights / weights.sum() @ few.values[0][layer][place, own])


@LAW
@given(seeds, st.integers(1, 9))
def test_a_bound_is_never_below_a_score(seed, page_tokens):
    queries, keys = drawn(seed, 3, 4), drawn(seed + 1, 20, 4)
    bounds = page_bounds(queries, keys, page_tokens)
    scores = queries @ keys.T
    for page in range(bounds.shape[1]):
        best = scores[:, page * page_tokens:(page + 1) * page_tokens].max(-1)
        assert (bounds[:, page] >= best - 1e-9 * np.abs(best)).all()


# Bytes stored and read.

LLAMA = get_model("llama-3-8b").shape


@LAW
@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 256))
def test_sparse_attention_never_stores_less(tokens, budget, page_tokens):
    full, few = everything(LLAMA, tokens), dropped(LLAMA, tokens, budget)
    picked = sparse(LLAMA, tokens, budget, page_tokens)
    assert picked.stored_bytes > full.stored_bytes >= few.stored_bytes
    assert picked.read_bytes > few.read_bytes == few.stored_bytes


def test_the_account_by_hand():
    # 131,072 bytes per token; 1,000 tokens are 63 pages of 16, and each page's two keys are one token's worth.
    assert sparse(LLAMA, 1000, 100) == Footprint(131072 * (1000 + 63), 131072 * (100 + 63))
    assert dropped(LLAMA, 50, 100) == everything(LLAMA, 50)


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("group", [32, 64])
def test_both_halves_count_scales_alike(bits, group):
    assert grouped(bits, group).bytes_for(1024) * 8 / 1024 == Groups(bits, PER_TOKEN, group).bits_per_number


@pytest.mark.parametrize("call", [
    lambda: sparse(get_model("deepseek-v3").shape, 1000, 100), lambda: grouped(0), lambda: grouped(2, 0),
    lambda: dropped(LLAMA, 10, 0),
    lambda: sparse(LLAMA, 10, 5, page_tokens=True),
])
def test_impossible_accounts_are_refused(call):
    with pytest.raises(ConfigError, match="got .*expected"):
        call()


# It stacks (L4): scattered blocks and reused prefixes give the same answer as one rounded array.

class RoundedContiguous(ContiguousCache):
    def write(self, layer, keys, values):
        def rounded(rows):
            return FOUR_BITS.restore(rows.reshape(len(rows), -1)).reshape(rows.shape)

        super().write(layer, rounded(keys), rounded(values))


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_rounded_numbers_in_scattered_blocks(block_size):
    manager = BlockManager(64, block_size)
    scatter_free_blocks(manager, seed=1)
    paged = PagedCache(manager, store_for(MODEL, 64, block_size, FOUR_BITS), ["a"])
    contiguous = RoundedContiguous(XP)
    for new in (prompt(0, 37), prompt(1, 1), prompt(2, 5)):
        ours, theirs = (MODEL.forward([new], cache) for cache in (paged, contiguous))
        assert np.abs(ours - theirs).max() <= 1e-12
    exact = MODEL.forward([[*prompt(0, 37), *prompt(1, 1), *prompt(2, 5)]], ContiguousCache(XP))
    assert np.abs(ours - exact).max() > 1e-4     # it did round


@settings(derandomize=True, deadline=None, max_examples=15)
@given(st.integers(0, 40), st.integers(1, 20), st.integers(1, 20), st.sampled_from((None, FOUR_BITS)))
def test_a_reused_prefix_gives_the_same_answer(shared, first, second, form):
    common = prompt(7, 41)[:shared]
    cache, store = BlockCache(32, 4), store_for(MODEL, 32, 4, form)
    prefill(MODEL, cache, store, "first", common + prompt(8, first))
    again = common + prompt(9, second)
    logits, hit = prefill(MODEL, cache, store, "second", again)
    alone, missed = prefill(MODEL, BlockCache(32, 4), store_for(MODEL, 32, 4, form), "alone", again)
    assert np.abs(logits - alone).max() <= 1e-12 and missed == 0
    assert hit >= min(shared, len(again) - 1) // 4 * 4


def test_another_format_is_another_block():
    cache, store = BlockCache(32, 4), store_for(MODEL, 32, 4, FOUR_BITS)
    keys = [(("kv", "int4"),), (("kv", "bf16"),), (("kv", "int4"),)]
    hits = [prefill(MODEL, cache, store, i, prompt(0, 17), extra)[1] for i, extra in enumerate(keys)]
    assert hits == [0, 0, 16]


@pytest.mark.parametrize("form", [Groups(4, PER_CHANNEL), OneScale(8), Float8(), None])
def test_a_store_refuses_formats_that_look_at_neighbors(form):
    with pytest.raises(ConfigError, match="form: got .*expected"):
        RoundingStore(XP, form, num_layers=1, num_blocks=2, block_size=2, kv_heads=1, head_dim=4)


def test_a_cache_and_a_store_of_other_sizes_are_refused():
    with pytest.raises(ConfigError, match="store: got 8 blocks of 4, expected"):
        prefill(MODEL, BlockCache(8, 2), store_for(MODEL, 8, 4), "a", [1, 2])
    with pytest.raises(ConfigError, match="position"):
        TableCache(store_for(MODEL, 8, 4), [0], num_cached=0).extend([5])
