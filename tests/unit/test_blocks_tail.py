"""Last-block waste: the half-block estimate, and where it breaks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.blocks import BlockManager, tail_waste
from kvlib.errors import ConfigError
from kvlib.workloads import sharegpt_like

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@pytest.fixture(scope="module")
def sharegpt_lengths():
    return [r.num_input_tokens + r.num_output_tokens for r in sharegpt_like(5000, rate=3.0, seed=0)]


@pytest.mark.parametrize("block_size, estimate", [(16, 0.016), (256, 0.26)])
def test_the_half_block_estimate_at_mean_length_493(block_size, estimate):
    """Oracle L7.blocksize.ex3: 8/493 and 128/493."""
    assert tail_waste([493], block_size).half_block_estimate == pytest.approx(estimate, rel=0.015)


def test_measured_waste_of_sharegpt_like_lengths(sharegpt_lengths):
    """Oracle L7.blocksize.sim: 1.3-1.7 % at 16; at 256 above 15 % and below the estimate's 26 %; monotone."""
    shares = {size: tail_waste(sharegpt_lengths, size).share_of_held for size in BLOCK_SIZES}
    assert 0.013 < shares[16] < 0.017
    assert 0.15 < shares[256] < 0.26
    assert list(shares.values()) == sorted(shares.values())
    assert shares[1] == 0


def test_half_a_block_is_wrong_once_blocks_outgrow_the_requests(sharegpt_lengths):
    """At 16 tokens the mean waste is (B - 1)/2 within 5 %; at 2,048 nearly all requests fit in one block."""
    small, large = tail_waste(sharegpt_lengths, 16), tail_waste(sharegpt_lengths, 2048)
    assert small.slots_per_sequence == pytest.approx(7.5, rel=0.05)
    assert large.slots_per_sequence > 1.25 * 2048 / 2


@settings(derandomize=True, deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=20), st.integers(1, 64))
def test_the_block_manager_holds_exactly_these_slots(lengths, block_size):
    """L3: the formula and the block manager agree."""
    manager = BlockManager(num_blocks=6000, block_size=block_size)
    for seq, length in enumerate(lengths):
        manager.allocate(seq, length)
    waste = tail_waste(lengths, block_size)
    assert waste.held_slots == (manager.num_blocks - manager.num_free) * block_size
    assert 0 <= waste.slots_per_sequence <= block_size - 1
    assert 0 <= waste.share_of_held < 1


@pytest.mark.parametrize(
    "lengths, match", [([], "lengths: got none"), ([5, 0], r"lengths\[1\]"), ([2.0], r"lengths\[0\]")]
)
def test_bad_lengths_are_refused_with_their_row(lengths, match):
    with pytest.raises(ConfigError, match=match):
        tail_waste(lengths, 16)


@pytest.mark.parametrize("block_size", [0, -16, 16.0, "16", True])
def test_bad_block_sizes_are_refused(block_size):
    with pytest.raises(ConfigError, match="block_size"):
        tail_waste([100], block_size)
