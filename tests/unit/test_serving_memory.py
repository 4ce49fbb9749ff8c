"""Memory policies: one contract, kept by every one of them."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.errors import ConfigError
from kvlib.serving import PagedMemory, PrefixedMemory
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
    steps, taken, copies = at_once.grow(seqs, limit)
    assert not copies

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
    while room := memory.admit(seq, one, 30):
        held += room.empty_slots
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


@pytest.mark.parametrize("name", ["paged", "max", "static"])
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
    assert memory.admit("a", None, 12592).empty_slots == 12592  # 787 blocks
    assert memory.admit("b", None, 1) is None


def test_not_even_one_block_is_refused():
    with pytest.raises(ConfigError, match="block_size=16"):
        PagedMemory(15, 16)


def test_a_watermark_is_kept_for_those_who_run():
    """10 blocks, 30 % kept: 7 may be taken beside others, but a lone request may take all 10."""
    memory = PagedMemory(40, 4, watermark=0.3)
    assert memory.admit("alone", None, 40).empty_slots == 40
    memory.release("alone")
    assert memory.admit("a", None, 4).empty_slots == 4
    assert memory.admit("b", None, 28) is None  # 7 blocks of 9 free would leave 2
    assert memory.admit("b", None, 24).empty_slots == 24
    assert memory.grow(["a", "b"], 4)[0] == 4  # growing may use what admissions leave


def test_swapping_moves_whole_sequences_and_a_full_host_refuses():
    memory = PagedMemory(16, 4, cpu_slots=11)  # 4 blocks here, 2 there
    assert memory.admit("a", None, 5).empty_slots == 8 and memory.admit("b", None, 3).empty_slots == 4
    assert memory.swap_out("a") and memory.held_slots == 4
    assert not memory.swap_out("b") and memory.held_slots == 4  # the host is full
    assert memory.swap_in("a").empty_slots == 2 and memory.held_slots == 12  # 5 tokens and the next one
    assert memory.manager.num_tokens("a") == 6
    memory.check_integrity()


def test_without_room_for_the_next_token_nobody_is_swapped_in():
    memory = PagedMemory(12, 4, cpu_slots=8)
    assert memory.admit("a", None, 8).empty_slots == 8
    assert memory.swap_out("a") and memory.admit("b", None, 4).empty_slots == 4
    assert memory.swap_in("a") is None  # 8 tokens would fit in the 2 free blocks, 9 do not
    memory.release("b")
    assert memory.swap_in("a").empty_slots == 3 and memory.held_slots == 12


@pytest.mark.parametrize(
    "setting", [{"watermark": 1.0}, {"watermark": -0.1}, {"watermark": "1%"}, {"cpu_slots": -1}]
)
def test_settings_out_of_range_are_refused(setting):
    with pytest.raises(ConfigError, match=next(iter(setting))):
        PagedMemory(64, 16, **setting)


def test_a_shared_prefix_is_pinned_once_in_whole_blocks():
    """Exercise 7 of lecture 7: 341 tokens are 21 blocks of 16 and 5 tokens that everybody computes anew."""
    memory = PrefixedMemory(64 * 16, 16, shared_prefix_tokens=341)
    assert memory.pinned_tokens == memory.held_slots == 21 * 16
    one = request(361, 30)
    assert memory.cached_tokens("a", one, 0) == 336
    assert memory.admit("a", one, 361).empty_slots == 32  # 25 tokens of its own
    assert memory.admit("b", one, 361).empty_slots == 32
    assert memory.manager.block_table("a")[:21] == memory.manager.block_table("b")[:21]
    assert memory.grow(["a", "b"], 10)[0] == 10  # 371 tokens each: one block more, and no copy-on-write
    assert memory.manager.take_copies() == []
    memory.release("a")
    memory.release("b")
    assert memory.held_slots == 21 * 16
    memory.check_integrity()


def test_a_prompt_that_is_no_longer_than_the_prefix_shares_nothing():
    memory = PrefixedMemory(160, 16, shared_prefix_tokens=80)
    assert memory.cached_tokens("a", request(80, 5), 0) == 0 and memory.cached_tokens("a", request(81, 5), 0) == 80
    assert memory.admit("a", request(80, 5), 80).empty_slots == 80
    # Beside the prefix only 5 blocks are left: 80 own tokens fit, 81 do not.
    assert memory.fits_alone(request(80, 1)) and not memory.fits_alone(request(80, 2))
    assert memory.fits_alone(request(100, 61)) and not memory.fits_alone(request(100, 62))


def test_a_prefix_must_leave_room():
    with pytest.raises(ConfigError, match="shared_prefix_tokens: got 160"):
        PrefixedMemory(160, 16, shared_prefix_tokens=160)
