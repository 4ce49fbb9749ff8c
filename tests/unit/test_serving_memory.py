"""Memory policies: one contract, kept by every one of them."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.errors import ConfigError
from kvlib.serving import PagedMemory
from kvlib.serving.simulation import MEMORIES

MAX_LEN = 128


def request(num_input_tokens, num_output_tokens):
    return SimpleNamespace(num_input_tokens=num_input_tokens, num_output_tokens=num_output_tokens)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    st.integers(1, 16),
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.integers(0, 12),
    st.integers(1, 80),
)
def test_growing_many_steps_at_once_equals_one_step_at_a_time(block_size, lengths, spare_blocks, limit):
    num_blocks = spare_blocks + sum(-(-length // block_size) for length in lengths)
    at_once, stepwise = (PagedMemory(num_blocks * block_size, block_size) for _ in range(2))
    seqs = list(range(len(lengths)))
    for memory in (at_once, stepwise):
        for seq, length in enumerate(lengths):
            assert memory.admit(seq, None, length)
    steps, taken = at_once.grow(seqs, limit)

    expected, done = [], 0
    while done < limit:
        before = [len(stepwise.manager.block_table(seq)) for seq in seqs]
        if sum(stepwise.manager.blocks_to_append(seq) for seq in seqs) > stepwise.manager.num_free:
            break
        for seq in seqs:
            stepwise.manager.append(seq)
            if len(stepwise.manager.block_table(seq)) > before[seq]:
                expected.append((seq, done))
        done += 1
    assert (steps, sorted(taken)) == (done, sorted(expected))
    assert at_once.held_slots == stepwise.held_slots
    at_once.check_integrity()


@pytest.mark.parametrize("name", MEMORIES)
def test_admission_and_release_are_exact_and_a_refusal_changes_nothing(name):
    memory = MEMORIES[name](512, 16, MAX_LEN)
    held, seq, one = 0, 0, request(30, 40)
    while slots := memory.admit(seq, one, 30):
        held += slots
        assert memory.held_slots == held <= memory.num_slots
        seq += 1
    assert seq > 0 and memory.held_slots == held  # the refused one took nothing
    for admitted in range(seq):
        memory.release(admitted)
        memory.check_integrity()
    assert memory.held_slots == 0


@pytest.mark.parametrize("name", MEMORIES)
def test_what_fits_alone_can_be_admitted_and_grown_to_its_end(name):
    for num_input_tokens in (1, 15, 16, 17, 60, 100):
        for num_output_tokens in (0, 1, 28, 100):
            one = request(num_input_tokens, num_output_tokens)
            memory = MEMORIES[name](128, 16, MAX_LEN)
            steps = max(0, num_output_tokens - 1)
            if memory.fits_alone(one):
                assert memory.admit("a", one, num_input_tokens)
                assert memory.grow(["a"], max(1, steps))[0] >= steps
            elif name == "paged":
                assert num_input_tokens + steps > 128


@pytest.mark.parametrize("name", ["paged", "max"])
def test_L6_no_oracle(name):
    """After arrival neither paging nor Max looks at the output length."""

    class Guarded:
        num_input_tokens = 20

        @property
        def num_output_tokens(self):
            raise AssertionError("the policy looked into the future")

    memory = MEMORIES[name](512, 16, MAX_LEN)
    assert memory.admit("a", Guarded(), 20)
    assert memory.grow(["a"], 30)[0] == 30
    memory.release("a")


def test_slots_that_do_not_fill_a_block_are_never_held():
    memory = PagedMemory(12596, 16)
    assert memory.num_slots == 12596
    assert memory.admit("a", None, 12592) == 12592  # 787 blocks
    assert memory.admit("b", None, 1) == 0


def test_not_even_one_block_is_refused():
    with pytest.raises(ConfigError, match="block_size=16"):
        PagedMemory(15, 16)
