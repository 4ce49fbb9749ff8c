"""Reservations: what each rule takes, what it may look at, and that it gives everything back."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.blocks import MaxReservation, OracleReservation, Pow2OracleReservation
from kvlib.errors import ConfigError, OutOfBlocks, UnknownSequence

RULES = (MaxReservation, Pow2OracleReservation, OracleReservation)


def request(num_input_tokens, num_output_tokens):
    return SimpleNamespace(num_input_tokens=num_input_tokens, num_output_tokens=num_output_tokens)


@pytest.mark.parametrize(
    "rule, slots",
    [
        (MaxReservation, 2048),
        (Pow2OracleReservation, 161 + 512),  # 338 rounds up to 512
        (OracleReservation, 161 + 338),
    ],
)
def test_slots_of_a_mean_sharegpt_request(rule, slots):
    assert rule(12596, 2048).slots_for(request(161, 338)) == slots


def test_the_paper_example_of_pow2():
    """Section 6.1: "if the true output length is 25, it reserves 32 positions for outputs"."""
    assert Pow2OracleReservation(4096, 2048).slots_for(request(100, 25)) == 132


@pytest.mark.parametrize(
    "num_input_tokens, num_output_tokens, slots", [(1500, 300, 2012), (1600, 300, 2048), (10, 0, 10)]
)
def test_pow2_stays_within_max_len(num_input_tokens, num_output_tokens, slots):
    """1500 + 512 = 2012; 1600 + 512 would be 2112; no output needs no space for output."""
    assert Pow2OracleReservation(4096, 2048).slots_for(request(num_input_tokens, num_output_tokens)) == slots


@settings(derandomize=True, deadline=None)
@given(st.integers(1, 1000), st.integers(0, 1000))
def test_oracle_needs_least_and_max_most(num_input_tokens, num_output_tokens):
    one = request(num_input_tokens, num_output_tokens)
    most, middle, least = (rule(4096, 2048).slots_for(one) for rule in RULES)
    assert most >= middle >= least == num_input_tokens + num_output_tokens


@pytest.mark.parametrize("rule", RULES)
def test_L6_only_a_rule_with_oracle_in_its_name_reads_the_output_length(rule):
    class Guarded:
        num_input_tokens = 100
        was_read = False

        @property
        def num_output_tokens(self):
            self.was_read = True
            return 300

    guarded = Guarded()
    rule(4096, 2048).reserve("a", guarded)
    assert guarded.was_read == ("Oracle" in rule.__name__)


@pytest.mark.parametrize("rule", RULES)
def test_releasing_everything_restores_the_memory(rule):
    memory = rule(12596, 2048)
    at_start = memory.buddy.free_blocks()
    for seq in range(5):
        memory.reserve(seq, request(50 * (seq + 1), 90))
    memory.check_integrity()
    for seq in (3, 0, 4, 1, 2):
        memory.release(seq)
        memory.check_integrity()
    assert memory.buddy.free_blocks() == at_start


def test_fits_alone_looks_at_the_largest_arena():
    memory = OracleReservation(
        3000, 4096
    )  # arenas of 2048, 512, …: 3,000 slots, none contiguous beyond 2,048
    assert memory.fits_alone(request(2000, 48))
    assert not memory.fits_alone(request(2000, 49))


def test_refusals_change_nothing():
    memory = MaxReservation(2048, 2048)
    memory.reserve("a", None)
    with pytest.raises(ConfigError, match="'a' has a reservation"):
        memory.reserve("a", None)
    with pytest.raises(OutOfBlocks):
        memory.reserve("b", None)
    with pytest.raises(UnknownSequence):
        memory.release("b")
    memory.check_integrity()
    assert memory.buddy.held_blocks() == [(0, 2048)]
