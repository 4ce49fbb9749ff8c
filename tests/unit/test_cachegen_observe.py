"""Measures on KV: variance gains against the algebra of correlated numbers, entropies against hand counts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.cachegen.entropy_cost import lane_bits
from kvlib.cachegen.observe import (
    GROUPINGS,
    differences,
    grouped_bits,
    held_out_bits,
    shuffled,
    third_means,
    variance_gain,
)
from kvlib.cachegen.rivals import kivi, uniform
from kvlib.cachegen.synthetic import (
    break_even_correlation,
    expected_gains,
    measured_gains,
    synthetic_channels,
)
from kvlib.cachegen.tradeoff import bits_at
from kvlib.errors import ConfigError

LAW = settings(max_examples=15, deadline=None, derandomize=True)


@LAW
@given(st.floats(0, 0.9), st.floats(0, 3), st.sampled_from(("previous", "anchor")))
def test_drawn_numbers_gain_what_the_algebra_says(correlation, offset, to):
    drawn = synthetic_channels(correlation, offset, channels=20, tokens=400, seed=4)
    measured, expected = measured_gains(drawn, to), expected_gains(correlation, offset, to)
    # 8,000 numbers, fewer independent ones as correlation grows: 15 % is over three standard errors.
    assert measured.raw == pytest.approx(expected.raw, rel=0.15)
    assert measured.centred == pytest.approx(expected.centred, rel=0.15)


def test_numpys_measure_and_the_pure_python_one_agree():
    drawn = synthetic_channels(0.7, 1.5, channels=6, tokens=100, seed=2)
    plane = np.array(drawn).T
    for to in ("previous", "anchor"):
        gains = measured_gains(drawn, to)
        assert variance_gain(plane, to, centred=False) == pytest.approx(gains.raw)
        assert variance_gain(plane, to, centred=True) == pytest.approx(gains.centred)


def test_where_differencing_starts_to_pay():
    # pedagogy.md: 0.5 to the previous token; to an anchor about 0.86: mean of ρ^d, d = 1 … 9, is 1/2.
    assert break_even_correlation("previous") == 0.5
    anchor = break_even_correlation("anchor")
    assert anchor == pytest.approx(0.86, abs=0.005)
    assert np.mean([anchor**d for d in range(1, 10)]) == pytest.approx(0.5, abs=1e-3)


def test_lecture_9s_synthetic_kv():
    # Lecture 9, s3.2: correlation 0.97 without offset gains "3.1 times" to the anchor, 0.8 loses ("0.80").
    assert expected_gains(0.8, 0.0, "anchor").centred == pytest.approx(0.80, abs=0.02)
    assert expected_gains(0.97, 0.0, "anchor").centred > 3


def test_shuffling_keeps_the_numbers_and_destroys_the_order():
    kv = np.random.default_rng(0).normal(size=(2, 2, 50, 3)).cumsum(2)
    mixed = shuffled(kv, 1)
    assert np.array_equal(np.sort(mixed, axis=2), np.sort(kv, axis=2)) and not np.array_equal(mixed, kv)
    assert variance_gain(mixed[0, 0], "previous", True) < 1 < variance_gain(kv[0, 0], "previous", True)


def test_third_means_are_geometric_over_the_codecs_thirds():
    assert third_means([1, 4, 9, 9, 2, 8]) == pytest.approx((2, 9, 4, (1 * 4 * 9 * 9 * 2 * 8) ** (1 / 6)))


def test_finer_groups_never_have_more_entropy_and_held_out_is_never_less():
    rng = np.random.default_rng(0)
    symbols, other = (rng.integers(0, 4, (3, 40, 5)) + np.arange(5) for _ in range(2))
    bits = {grouping: grouped_bits(symbols, grouping) for grouping in GROUPINGS}
    assert (
        bits["global"] >= bits["layer"] >= bits["layer_channel"]
        and bits["global"] >= bits["channel"] >= bits["layer_channel"]
    )
    for grouping in GROUPINGS:
        assert held_out_bits(symbols, other, grouping) >= bits[grouping]
    # Each channel is uniform over four values: two bits, less the hundredths a small sample looks better by.
    assert 1.9 < bits["channel"] <= 2


@pytest.mark.parametrize(
    "call",
    [
        lambda: differences(np.zeros((3, 1)), "next"),
        lambda: grouped_bits(np.zeros((1, 1, 1), int), "head"),
        lambda: expected_gains(0.5, 0.0, "next"),
        lambda: synthetic_channels(float("nan"), 0.0),
        lambda: lane_bits(0, 192),
    ],
)
def test_unknown_words_and_impossible_numbers_are_refused(call):
    with pytest.raises(ConfigError):
        call()


def test_bits_at_reads_between_measured_points_and_not_beyond():
    points = [(4.0, 0.001), (2.0, 0.1)]
    assert bits_at(points, 0.01) == pytest.approx(3.0)
    assert bits_at(points, 0.1) == 2.0 and bits_at(points, 0.0001) is None and bits_at([], 0.01) is None


def test_rivals_stay_within_half_a_step():
    kv = np.random.default_rng(1).normal(size=(3, 2, 64, 32))
    back, bits = uniform(kv, 4)
    assert bits == 4 + 32 / 32
    assert (np.abs(back - kv) <= np.abs(kv).max(-1, keepdims=True) / 14 * (1 + 1e-6)).all()
    back, bits = kivi(kv, 2)
    assert bits == 3.0
    # Four levels between a group's ends: at most a sixth of its range away, plus float16 rounding.
    keys = kv[:, 0].reshape(3, 2, 32, 32)
    error = np.abs(back - kv)[:, 0].reshape(3, 2, 32, 32)
    assert (error <= np.ptp(keys, axis=2, keepdims=True) / 6 + 5e-3).all()
