"""Contiguous growth by moving: what doubling and fixed steps copy and hold."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.blocks import grow_by_doubling, grow_by_steps
from kvlib.errors import ConfigError


def test_doubling_to_1024_moves_1023_tokens():
    """1 + 2 + 4 + ... + 512 = 2^10 - 1."""
    growth = grow_by_doubling(1024)
    assert growth.tokens_copied == 1023
    assert growth.moves == tuple((2**k, 2 ** (k + 1)) for k in range(10))


def test_steps_of_256_to_1024_move_1536_tokens():
    """256 + 512 + 768."""
    assert grow_by_steps(1024, 256).tokens_copied == 1536


@settings(derandomize=True, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 300))
def test_closed_forms(num_tokens, step):
    """Steps: s + 2s + ... over ceil(n/s) - 1 moves. Doubling: 1 + 2 + ... + c/2 = c - 1, c the last space."""
    moves = -(-num_tokens // step) - 1
    assert grow_by_steps(num_tokens, step).tokens_copied == step * moves * (moves + 1) // 2
    capacity = 1 << (num_tokens - 1).bit_length()
    doubling = grow_by_doubling(num_tokens)
    assert (doubling.tokens_copied, doubling.capacity) == (capacity - 1, capacity)
    assert doubling.tokens_copied < 2 * num_tokens  # amortized: at most two copies a token


@settings(derandomize=True, deadline=None)
@given(st.integers(1, 400), st.integers(1, 50))
def test_every_move_copies_a_full_space_into_a_larger_one(num_tokens, step):
    for growth, first in ((grow_by_doubling(num_tokens), 1), (grow_by_steps(num_tokens, step), step)):
        capacity = first
        for copied, larger in growth.moves:
            assert copied == capacity < larger
            capacity = larger
        assert capacity == growth.capacity >= num_tokens
        assert 0 < growth.utilisation <= 1


def test_slot_steps_of_a_small_case():
    """Doubling to 5: held 1, 2, 4, 4, 8 = 19 slot-steps; used 1 + 2 + 3 + 4 + 5 = 15."""
    growth = grow_by_doubling(5)
    assert (growth.slot_steps_held, growth.slot_steps_used, growth.utilisation) == (19, 15, 15 / 19)


@pytest.mark.parametrize("value", [0, -1, 2.5, "8", True])
def test_impossible_sizes_are_refused(value):
    with pytest.raises(ConfigError, match="num_tokens"):
        grow_by_doubling(value)
    with pytest.raises(ConfigError, match="step"):
        grow_by_steps(10, value)
