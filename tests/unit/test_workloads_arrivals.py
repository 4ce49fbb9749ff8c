"""Arrival times: whole microseconds, the asked mean rate, bursts where they belong."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.errors import ConfigError
from kvlib.workloads import bursty_arrivals_us, poisson_arrivals_us


@settings(derandomize=True, deadline=None, max_examples=50)
@given(
    n=st.integers(1, 200), rate=st.floats(0.001, 1e5), seed=st.integers(0, 2**32), factor=st.integers(1, 9)
)
def test_times_are_ordered_whole_and_repeatable(n, rate, seed, factor):
    plain = poisson_arrivals_us(n, rate, random.Random(seed))
    bursty = bursty_arrivals_us(n, rate, random.Random(seed), burst_factor=factor)
    for times in (plain, bursty):
        assert len(times) == n
        assert times == sorted(times)
        assert all(type(time) is int and time >= 0 for time in times)
    assert plain == poisson_arrivals_us(n, rate, random.Random(seed))
    if factor == 1:
        assert bursty == plain


def test_poisson_gaps_have_the_mean_and_spread_of_an_exponential():
    n, rate = 50_000, 4.0
    times = poisson_arrivals_us(n, rate, random.Random(2))
    gaps = [after - before for before, after in zip([0, *times], times)]
    mean = math.fsum(gaps) / n
    # An exponential's standard deviation equals its mean: 250,000 us. Four standard errors are 1.8 %.
    assert abs(mean / 250_000 - 1) < 0.018
    deviation = math.sqrt(math.fsum((gap - mean) ** 2 for gap in gaps) / n)
    assert abs(deviation / 250_000 - 1) < 0.03


def test_bursts_keep_the_mean_rate_and_are_silent_in_between():
    n, rate = 40_000, 5.0
    times = bursty_arrivals_us(n, rate, random.Random(3), burst_factor=4, cycle_s=60)
    assert all(time % 60_000_000 < 15_000_000 for time in times)  # 60 s / 4 = 15 s on
    assert abs(n / (times[-1] / 1e6) / rate - 1) < 0.03


def test_same_seed_at_twice_the_rate_is_the_same_pattern_in_half_the_time():
    slow = poisson_arrivals_us(500, 1.0, random.Random(4))
    fast = poisson_arrivals_us(500, 2.0, random.Random(4))
    # Each of the 500 gaps is rounded to a microsecond: at most half a microsecond on either side.
    assert all(abs(a - 2 * b) <= 1.5 * 500 for a, b in zip(slow, fast))


@pytest.mark.parametrize("rate", [0, -1, math.nan, math.inf, 2e6, "3", True, None])
def test_bad_rate_is_refused_by_name(rate):
    for arrivals in (poisson_arrivals_us, bursty_arrivals_us):
        with pytest.raises(ConfigError, match="rate"):
            arrivals(3, rate, random.Random(0))


@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True])
def test_bad_counts_are_refused_by_name(value):
    with pytest.raises(ConfigError, match="n: "):
        poisson_arrivals_us(value, 1.0, random.Random(0))
    with pytest.raises(ConfigError, match="burst_factor: "):
        bursty_arrivals_us(3, 1.0, random.Random(0), burst_factor=value)
    with pytest.raises(ConfigError, match="cycle_s: "):
        bursty_arrivals_us(3, 1.0, random.Random(0), cycle_s=value)
