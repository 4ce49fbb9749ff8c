"""The online softmax on plain numbers equals the whole softmax, however the keys are cut into blocks."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.errors import ConfigError
from kvlib.tensors.online_softmax import walk_blocks

NUMBERS = st.floats(-50, 50)
BLOCKS = st.lists(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=4), min_size=1, max_size=6)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(blocks=BLOCKS)
def test_every_state_is_the_softmax_of_what_was_seen(blocks):
    seen = []
    for block, state in zip(blocks, walk_blocks(blocks)):
        seen += block
        top = max(score for score, _ in seen)
        weights = [math.exp(score - top) for score, _ in seen]
        wanted = math.fsum(w * value for w, (_, value) in zip(weights, seen)) / math.fsum(weights)
        assert state.top == top
        assert math.isclose(state.answer, wanted, rel_tol=1e-12, abs_tol=1e-12)


@pytest.mark.parametrize("blocks", [[[]], [[(math.nan, 1.0)]], [[(0.0, math.inf)]]])
def test_bad_blocks_are_refused(blocks):
    with pytest.raises(ConfigError, match=r"blocks\[0\]"):
        walk_blocks(blocks)
