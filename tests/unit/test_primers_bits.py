"""Entropy, code lengths and the scalar coder of the primer on bits: law L8 and derivations."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.errors import ConfigError, DecodeError
from kvlib.explore import REGISTRY
from kvlib.primers.bits import (
    average_bits,
    cross_entropy,
    entropy,
    fixed_bits,
    huffman_lengths,
    narrow,
    rans_decode,
    rans_encode,
    slots_of,
)

LAW = settings(max_examples=100, deadline=None, derandomize=True)
WEIGHTS = st.lists(st.integers(1, 1000), min_size=1, max_size=40)


def shares(weights):
    total = sum(weights)
    head = [weight / total for weight in weights[1:]]
    return [1 - math.fsum(head), *head]


@LAW
@given(WEIGHTS)
def test_huffman_lies_within_one_bit_above_the_entropy(weights):
    p = shares(weights)
    lengths = huffman_lengths(p)
    assert entropy(p) - 1e-9 <= average_bits(p, lengths) < entropy(p) + 1
    # Kraft: the lengths are those of a real prefix code, and none is wasted.
    if len(p) > 1:
        assert sum(Fraction(1, 2**n) for n in lengths) == 1


@LAW
@given(WEIGHTS, st.randoms(use_true_random=False))
def test_a_wrong_table_never_beats_the_right_one(weights, rng):
    p = shares(weights)
    q = shares([rng.randrange(1, 1000) for _ in weights])
    assert cross_entropy(p, q) >= entropy(p) - 1e-9
    assert cross_entropy(p, p) == pytest.approx(entropy(p))


@LAW
@given(WEIGHTS, st.data())
def test_l8_rans_returns_every_message(weights, data):
    slots = slots_of(shares(weights))
    assert sum(slots) == 4096
    text = data.draw(st.lists(st.integers(0, len(slots) - 1), max_size=60))
    state, words = rans_encode(text, slots)
    assert 2**16 <= state < 2**32
    assert rans_decode(state, words, len(text), slots) == text


@LAW
@given(st.lists(st.integers(0, 2), max_size=12))
def test_the_interval_is_as_wide_as_the_message_is_likely(text):
    state = narrow(text, (8, 1, 1))
    assert state.width == math.prod(Fraction((8, 1, 1)[s], 10) for s in text)
    assert state.low >= 0 and state.low + state.width <= 1
    assert sum(width for _, width in state.parts) == state.width


def test_two_messages_of_one_length_never_overlap():
    intervals = sorted(
        (narrow([a, b, c], (8, 1, 1)) for a in range(3) for b in range(3) for c in range(3)),
        key=lambda s: s.low,
    )
    assert all(first.low + first.width == second.low for first, second in zip(intervals, intervals[1:]))


def test_entropy_of_the_chapters_example():
    # pedagogy.md, chapter 14 exercise 1: .9 · .152 + 2 · .05 · 4.322 = .137 + .432 = .569 bits.
    assert entropy([0.9, 0.05, 0.05]) == pytest.approx(0.569, abs=5e-4)
    assert fixed_bits(3) == 2 and fixed_bits(1) == 0


def test_rans_is_within_one_percent_of_the_cross_entropy_of_its_own_table():
    text = [0] * 18000 + [1] * 1000 + [2] * 1000
    slots = slots_of([0.9, 0.05, 0.05])
    state_bits, words = 32, rans_encode(text, slots)[1]
    wanted = 20000 * cross_entropy([0.9, 0.05, 0.05], [s / 4096 for s in slots])
    assert wanted - 32 <= state_bits + 16 * len(words) <= 1.01 * wanted + 32


@pytest.mark.parametrize("bad", [[], [0.5, 0.6], [1.5, -0.5], [float("nan"), 1.0], [True, 0.0], ["1"]])
def test_what_is_no_distribution_is_refused(bad):
    with pytest.raises(ConfigError, match="probabilities"):
        entropy(bad)


def test_a_symbol_without_a_slot_is_refused_and_a_damaged_message_noticed():
    with pytest.raises(ConfigError, match="symbol 1 has no slot"):
        rans_encode([1], [4096, 0])
    with pytest.raises(ConfigError, match="expected more than 0"):
        cross_entropy([0.5, 0.5], [1.0, 0.0])
    slots = slots_of([0.5, 0.25, 0.25])
    state, words = rans_encode([0, 1, 2] * 40, slots)
    for damaged in (words[:-1], [*words, 1]):
        with pytest.raises(DecodeError):
            rans_decode(state, damaged, 120, slots)
    with pytest.raises(DecodeError):
        rans_decode(state, words, 119, slots)


def test_the_primers_explorers_say_what_the_functions_say():
    assert REGISTRY["primer_bits.code_length"].view(common=0.9, symbols=3).numbers[
        "entropy"
    ] == pytest.approx(entropy([0.9, 0.05, 0.05]))
    assert REGISTRY["primer_bits.narrowing"].view(symbols_coded=1).numbers["bits"] == pytest.approx(
        -math.log2(0.8)
    )
    lowest = min(
        range(1, 50),
        key=lambda i: REGISTRY["primer_bits.wrong_table"].view(believed=i / 50, true=0.8).numbers["spent"],
    )
    assert lowest / 50 == 0.8
