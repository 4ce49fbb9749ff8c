"""Replaying family trees on the block manager: the lecture's counts, and laws for any tree."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.errors import ConfigError
from kvlib.tensors.sharing import replay, samples_tree

QUICK = settings(max_examples=80, deadline=None, derandomize=True)


@pytest.mark.parametrize("n", range(2, 9))
def test_oracle_copies_are_n_minus_1_or_none(n):
    # L7.cow.nminus1: prompt 100 ends inside a block of 16, prompt 96 does not.
    assert replay(100, samples_tree(n, 1), 16).copies == n - 1
    assert replay(96, samples_tree(n, 1), 16).copies == 0


@pytest.mark.parametrize(("n", "blocks"), [(2, 12), (4, 18), (8, 30)])
def test_oracle_blocks_of_parallel_sampling(n, blocks):
    # L7.par.blocks: 6 + 3n with sharing, 9n without.
    run = replay(100, samples_tree(n, 40), 16)
    assert (run.blocks, run.blocks_alone) == (blocks, 9 * n)


def test_longer_outputs_share_less():
    # pedagogy.md, chapter 4, exercise 1: prompt 100, four samples of 400: 6 + 4 · 26 = 110 of 4 · 32 = 128.
    run = replay(100, samples_tree(4, 400), 16)
    assert (run.blocks, run.blocks_alone) == (110, 128)


def test_fewer_copies_are_not_fewer_blocks():
    # pedagogy.md, chapter 4: at 96 tokens no copy but four new blocks, at 97 three copies and three new
    # blocks.
    at_96, at_97 = (replay(prompt, samples_tree(4, 1), 16) for prompt in (96, 97))
    assert (at_96.copies, at_96.new_blocks) == (0, 4)
    assert (at_97.copies, at_97.new_blocks) == (3, 3)


def test_oracle_whole_cache_copying():
    # L7.beam.copy: 4 · (64 + Σ_{s=1..31} (64 + s)) = 10,176, whatever the parents are.
    assert replay(64, samples_tree(4, 32), 16).whole_copy_tokens == 10176


@st.composite
def trees(draw):
    steps, live = [], 1
    for _ in range(draw(st.integers(1, 25))):
        steps.append(draw(st.lists(st.integers(0, live - 1), min_size=1, max_size=5)))
        live = len(steps[-1])
    return steps


@QUICK
@given(prompt=st.integers(1, 40), tree=trees(), block_size=st.sampled_from([1, 2, 4, 16]))
def test_laws_of_sharing(prompt, tree, block_size):
    run = replay(prompt, tree, block_size)
    assert run.tokens == (prompt + len(tree),) * len(tree[-1])
    assert sum(run.refcounts.values()) == sum(map(len, run.tables)) == run.blocks_alone
    assert max(map(len, run.tables)) <= run.blocks <= run.blocks_alone
    assert 0 <= run.saving < 1
    assert run.needed_copy_tokens <= run.whole_copy_tokens
    # Only a child that is not the first of its parent brings a second reference to a half-full block.
    assert run.copies <= sum(len(step) - len(set(step)) for step in tree)
    if block_size == 1:
        assert run.copies == 0


def test_bad_trees_are_refused():
    for prompt, tree, block_size in ((0, [(0,)], 4), (4, [()], 4), (4, [(1,)], 4), (4, [(0, 0), (2,)], 4),
                                     (4, [(True,)], 4), (4, [(0,)], 0)):
        with pytest.raises(ConfigError):
            replay(prompt, tree, block_size)
    for n, new in ((0, 1), (1, 0)):
        with pytest.raises(ConfigError):
            samples_tree(n, new)
