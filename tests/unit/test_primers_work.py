"""The closed forms of work with and without a cache, against the sums they stand for."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.cost import attention_flops, linear_flops
from kvlib.errors import ConfigError
from kvlib.primers.work import flops_with_cache, flops_without_cache, rows_without_cache, tokens_run
from kvlib.specs import MODELS, get_model

lengths = st.integers(1, 200)
quick = settings(max_examples=40, deadline=None, derandomize=True)
FULL_ATTENTION = [m.name for m in MODELS.values() if all(g.window is None for g in m.shape.groups)]
WINDOWED = [name for name in MODELS if name not in FULL_ATTENTION]


@quick
@given(lengths, lengths)
def test_rows_without_cache_is_the_sum_over_passes(prompt, output):
    assert rows_without_cache(prompt, output) == sum(range(prompt, prompt + output))


@quick
@given(lengths, lengths, st.sampled_from(FULL_ATTENTION))
def test_flops_without_cache_is_the_sum_of_prefills(prompt, output, name):
    model = get_model(name)
    passes = range(prompt, prompt + output)
    summed = math.fsum(linear_flops(model, n) + attention_flops(model, n) for n in passes)
    assert flops_without_cache(model, prompt, output) == pytest.approx(summed, rel=1e-12)


@quick
@given(lengths, lengths)
def test_flops_with_cache_is_a_prefill_and_decode_steps(prompt, output):
    model = get_model("llama-3-8b")
    end = tokens_run(prompt, output)
    # Each decode step attends to the c cached tokens and counts half of itself, as n*c + n^2/2 with n = 1.
    steps = range(prompt, end)
    decode = math.fsum(linear_flops(model, 1) + attention_flops(model, 1, cached) for cached in steps)
    prefill = linear_flops(model, prompt) + attention_flops(model, prompt)
    assert flops_with_cache(model, prompt, output) == pytest.approx(prefill + decode, rel=1e-12)


@pytest.mark.parametrize("name", WINDOWED)
def test_a_sliding_window_is_refused(name):
    with pytest.raises(ConfigError, match="sliding window"):
        flops_without_cache(get_model(name), 10, 10)


@pytest.mark.parametrize("bad", [0, -1, True, 1.0, "8", None])
def test_lengths_must_be_whole_and_positive(bad):
    with pytest.raises(ConfigError, match="prompt_tokens"):
        rows_without_cache(bad, 1)
    with pytest.raises(ConfigError, match="output_tokens"):
        tokens_run(1, bad)
