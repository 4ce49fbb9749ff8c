"""Loading from the back while recomputing from the front."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.cost import break_even_bytes_per_s, recompute_s, transfer_s
from kvlib.errors import ConfigError
from kvlib.specs import LinkSpec, get_gpu, get_link, get_model
from kvlib.tiers import PLACES, best_split, link_to, meeting_point, split_s

steady = settings(derandomize=True, deadline=None, max_examples=60)
LLAMA, H100 = get_model("llama-3-8b"), get_gpu("h100-80gb")


@steady
@given(st.integers(1, 400), st.integers(0, 20), st.integers(0, 5), st.integers(0, 300), st.integers(0, 50))
def test_meeting_point_equals_trying_every_split(num_tokens, linear, square, per_token_load, fixed):
    def compute(n):
        return n * linear + n * n * square

    def load(n):
        return n * per_token_load + (fixed if n else 0)

    best = min(max(compute(n), load(num_tokens - n)) for n in range(num_tokens + 1))
    split = meeting_point(num_tokens, compute, load)
    assert split.total_s == best
    assert split.recomputed_tokens + split.loaded_tokens == num_tokens
    assert split.total_s == max(compute(split.recomputed_tokens), load(split.loaded_tokens))


def test_equal_rates_halve_the_time():
    assert meeting_point(1000, lambda n: n, lambda n: n).total_s == 500
    # An odd token out: 501 on one side.
    assert meeting_point(1001, lambda n: n, lambda n: n).total_s == 501


@pytest.mark.parametrize("place", PLACES)
def test_both_together_never_lose_to_either_alone(place):
    link = link_to(place, H100)
    split = best_split(LLAMA, H100, link, 8000)
    alone = min(recompute_s(LLAMA, H100, 8000), transfer_s(8000 * 131072, link))
    assert split.total_s <= alone


def test_at_break_even_the_split_takes_less_than_half():
    """The front half of a prompt is the cheap half: its tokens attend to fewer others."""
    link = LinkSpec("break-even", break_even_bytes_per_s(LLAMA, H100, 32000))
    split = best_split(LLAMA, H100, link, 32000)
    assert split.total_s < recompute_s(LLAMA, H100, 32000) / 2
    assert split.recomputed_tokens > 16000


def test_split_against_brute_force_with_the_cost_model():
    link = get_link("nvme-7gb")
    brute = min(max(split_s(LLAMA, H100, link, 600, n)) for n in range(601))
    assert best_split(LLAMA, H100, link, 600).total_s == brute


@pytest.mark.parametrize("refused, words", [
    (lambda: meeting_point(0, float, float), "num_tokens"),
    (lambda: meeting_point(True, float, float), "num_tokens"),
    (lambda: split_s(LLAMA, H100, get_link("net-3g"), 100, 101), "recomputed_tokens"),
    (lambda: split_s(LLAMA, H100, get_link("net-3g"), 100, -1), "recomputed_tokens"),
    (lambda: best_split(LLAMA, H100, get_link("net-3g"), 1.5), "num_tokens"),
])
def test_refusals_name_the_field(refused, words):
    with pytest.raises(ConfigError, match=words):
        refused()
