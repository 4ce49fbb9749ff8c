"""Length distributions: the published means are met, the shapes are the stated ones."""

import math
import random
from statistics import NormalDist

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.errors import ConfigError
from kvlib.workloads import Request, lengths, mean_lengths
from kvlib.workloads.lengths import EXPONENTIAL, NARROW, PROBABILITIES, WIDE, LengthDistribution

PUBLISHED_MEANS = [  # vLLM paper, section 6.1; oracle of lecture 7, section 3.3
    (lengths.SHAREGPT_INPUT, 161.31),
    (lengths.SHAREGPT_OUTPUT, 337.99),
    (lengths.ALPACA_INPUT, 19.31),
    (lengths.ALPACA_OUTPUT, 58.45),
]


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    shape=st.sampled_from([WIDE, NARROW, EXPONENTIAL]),
    max_tokens=st.integers(16, 100_000),
    share=st.floats(0.01, 0.7),
)
def test_fitted_distribution_has_the_asked_mean_and_range(shape, max_tokens, share):
    mean = max(1.5, share * max_tokens)
    fitted = LengthDistribution.fitted(shape, mean_tokens=mean, max_tokens=max_tokens)
    assert math.isclose(fitted.mean_tokens, mean, rel_tol=1e-9)
    assert list(fitted.tokens) == sorted(fitted.tokens)
    assert 1 <= fitted.tokens[0] and fitted.tokens[-1] <= max_tokens


@pytest.mark.parametrize("distribution, published", PUBLISHED_MEANS)
def test_published_mean_is_met_by_the_table_and_by_draws(distribution, published):
    assert math.isclose(distribution.mean_tokens, published, rel_tol=1e-9)
    rng = random.Random(1)
    draws = [distribution.draw(rng) for _ in range(40_000)]
    # The standard deviation is at most 1.6 means, so four standard errors of 40,000 draws are 3.2 %.
    assert abs(sum(draws) / len(draws) / published - 1) < 0.032
    assert 1 <= min(draws) and max(draws) <= 1024


def test_final_sharegpt_length_is_499_tokens():
    # L7.mean.final: 161.31 + 337.99 = 499.30
    total = lengths.SHAREGPT_INPUT.mean_tokens + lengths.SHAREGPT_OUTPUT.mean_tokens
    assert math.isclose(total, 499.3, rel_tol=1e-9)


@pytest.mark.parametrize("table, sigma", [(WIDE, 1.2), (NARROW, 0.5)])
def test_log_normal_tables_are_the_quantiles_they_claim(table, sigma):
    points = [min(max(p, 0.001), 0.999) for p in PROBABILITIES]
    assert table == tuple(round(math.exp(sigma * NormalDist().inv_cdf(p)), 3) for p in points)


def test_exponential_table_is_the_quantiles_it_claims():
    points = [min(p, 0.999) for p in PROBABILITIES]
    assert EXPONENTIAL == tuple(abs(round(-math.log(1 - p), 3)) for p in points)


@pytest.mark.parametrize("mean", [0, 1, 1024, 2000, math.nan, math.inf, -3, "9", True])
def test_unreachable_mean_is_refused_by_name(mean):
    with pytest.raises(ConfigError, match="mean_tokens"):
        LengthDistribution.fitted(WIDE, mean_tokens=mean, max_tokens=1024)


@pytest.mark.parametrize("max_tokens", [0, 1, -1, 2.5, True, "9"])
def test_bad_clip_is_refused_by_name(max_tokens):
    with pytest.raises(ConfigError, match="max_tokens"):
        LengthDistribution.fitted(WIDE, mean_tokens=1.5, max_tokens=max_tokens)


def test_mean_lengths_reports_what_was_drawn():
    assert mean_lengths([Request(0, 1, 10), Request(0, 2, 0)]) == (1.5, 5.0)
    with pytest.raises(ConfigError, match="requests"):
        mean_lengths([])
