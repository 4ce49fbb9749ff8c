"""Traces with prefix reuse: block ids that mean what they say, and a calibration that holds."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hash_seeds import printed_under_hash_seeds

from kvlib.errors import ConfigError
from kvlib.prefix import lru_hit_ratios, replay, trace_statistics
from kvlib.workloads import conversation_like, mean_lengths, prefix_trace, tool_agent_like
from kvlib.workloads.block_numbering import BlockNumbering
from kvlib.workloads.prefix_traces import LOADS
from kvlib.workloads.published import CONVERSATION, TOOL_AGENT
from kvlib.workloads.sessions import turns_in_order

# --- block ids ---

LENGTHS = {"a": 3, "b": 5, "c": 7}
SEGMENTS = st.lists(st.sampled_from(sorted(LENGTHS)), min_size=1, max_size=5)


def spelled_out(names):
    """The tokens of a prompt: each segment's own, numbered."""
    return [(name, position) for name in names for position in range(LENGTHS[name])]


@settings(derandomize=True, deadline=None)
@given(prompts=st.lists(SEGMENTS, min_size=2, max_size=6), block_size=st.integers(1, 9))
def test_ids_are_equal_exactly_where_the_tokens_so_far_are(prompts, block_size):
    numbering, seen = BlockNumbering(block_size), {}
    for names in prompts:
        ids, tokens = numbering.block_ids([(name, LENGTHS[name]) for name in names]), spelled_out(names)
        assert len(ids) == -(-len(tokens) // block_size)
        for number, block_id in enumerate(ids, start=1):
            assert seen.setdefault(block_id, tokens[: number * block_size]) == tokens[: number * block_size]
    assert len({tuple(tokens) for tokens in seen.values()}) == len(seen)
    assert sorted(seen) == list(range(len(seen)))


# --- traces ---


@pytest.mark.parametrize("kind", LOADS)
def test_trace_is_ordered_complete_and_repeatable(kind):
    trace = prefix_trace(kind, n=300, rate=2.0, seed=1)
    assert trace == prefix_trace(kind, n=300, rate=2.0, seed=1)
    assert trace != prefix_trace(kind, n=300, rate=2.0, seed=2)
    assert (len(trace.requests), trace.format, trace.dropped) == (300, "synthetic", 0)
    arrivals = [request.arrival_s for request in trace.requests]
    assert arrivals == sorted(arrivals) and arrivals[0] >= 0
    assert all(len(r.block_ids) == -(-r.num_input_tokens // 512) for r in trace.requests)


@pytest.mark.parametrize("kind", LOADS)
def test_smaller_blocks_reuse_at_least_as_many_tokens(kind):
    small, large = (prefix_trace(kind, n=150, rate=2.0, seed=3, block_size=size) for size in (64, 512))
    assert [r.num_input_tokens for r in small.requests] == [r.num_input_tokens for r in large.requests]
    # 64 divides 512: what a large block shares, its eight small ones share too.
    assert replay(small).hits * 64 >= (replay(large).hits - len(large.requests)) * 512


@pytest.mark.parametrize("kind", LOADS)
def test_mean_rate_is_the_one_asked_for(kind):
    trace = prefix_trace(kind, n=2_000, rate=5.0, seed=4)
    # Sessions come one by one, and their number of turns spreads about as widely as its mean: over n / turns
    # sessions that is a standard error of sqrt(2 * turns / n), of which we allow three.
    allowed = 3 * math.sqrt(2 * LOADS[kind].mean_turns / 2_000)
    assert abs(2_000 / trace.duration_s / 5.0 - 1) < allowed


def test_a_turn_repeats_what_its_session_said_so_far():
    turns = turns_in_order(LOADS["agents"], 2.0, random.Random(5))
    latest = {}
    for turn, _ in zip(turns, range(500)):
        before = latest.get(turn.session)
        if before is not None:
            assert turn.arrival_us > before.arrival_us
            answer_tokens = turn.segments[len(before.segments)][1]
            assert turn.segments[: len(before.segments)] == before.segments
            assert answer_tokens == before.num_output_tokens
        latest[turn.session] = turn
    assert any(len(turn.segments) > 8 for turn in latest.values())


def test_kinds_differ_in_where_their_reuse_comes_from():
    reusable = {kind: replay(prefix_trace(kind, n=700, rate=3.0, seed=6)).hit_ratio for kind in LOADS}
    # An order of its own spoils the prefix of a RAG prompt; agents repeat nearly everything.
    assert reusable["rag"] < reusable["chat"] < reusable["agents"]
    assert reusable["rag"] < reusable["documents"]


def test_result_does_not_depend_on_the_hash_seed():
    program = "from kvlib.workloads import prefix_trace; print(prefix_trace('rag', 40, 2.0, 7).requests)"
    outputs = printed_under_hash_seeds(program)
    assert len(outputs) == 1


# --- calibration ---


@pytest.fixture(scope="module")
def conversation():
    return conversation_like(CONVERSATION.num_requests, seed=0)


def check_against(published, trace):
    assert abs(trace.duration_s / published.duration_s - 1) < 0.05
    mean_input, mean_output = mean_lengths(trace.requests)
    assert abs(mean_input / published.mean_input_tokens - 1) < 0.05
    assert abs(mean_output / published.mean_output_tokens - 1) < 0.05
    statistics = trace_statistics(trace)
    assert abs(statistics.share_used_once - published.share_used_once) < 0.03
    assert abs(statistics.reusable_share - published.reusable_share) < 0.03
    capacities, ratios = zip(*published.lru_hit_ratios)
    assert all(abs(a - b) < 0.035 for a, b in zip(lru_hit_ratios(trace, capacities), ratios))
    return statistics


def test_conversation_resembles_the_published_trace(conversation):
    statistics = check_against(CONVERSATION, conversation)
    # Block 0 is in every request, and no other block in so many (43 in the real trace).
    assert statistics.hottest[0] == (0, CONVERSATION.num_requests)
    assert statistics.hottest[1][1] <= 43


def test_tool_agent_resembles_the_published_trace():
    statistics = check_against(TOOL_AGENT, tool_agent_like(TOOL_AGENT.num_requests, seed=0))
    assert statistics.hottest[0][1] > 10_000  # Mooncake, section 4.2


def test_lru_beats_lfu_on_the_conversation_except_when_tiny(conversation):  # L7.lru.gt.lfu
    lru, lfu = (
        [replay(conversation, c, policy).hit_ratio for c in (1_000, 10_000)] for policy in ("lru", "lfu")
    )
    assert lru[1] > lfu[1] + 0.03
    assert lru[0] < lfu[0] + 0.005


# --- bad input ---


@pytest.mark.parametrize(
    "field, value",
    [
        ("kind", "email"), ("n", 0), ("rate", 0), ("rate", float("nan")), ("seed", -1),
        ("block_size", 0), ("block_size", True),
    ],
)  # fmt: skip
def test_bad_argument_is_refused_by_name(field, value):
    arguments = {"kind": "chat", "n": 3, "rate": 1.0, "seed": 0, "block_size": 16, field: value}
    with pytest.raises(ConfigError, match=f"{field}: "):
        prefix_trace(**arguments)


def test_a_later_turn_begins_with_the_answers_before_it():
    """Whole blocks of prompt and answer stand at the start of the next prompt, and asking changes no prompt."""
    plain = prefix_trace("chat", 300, rate=2.0, seed=0, block_size=16).requests
    answered = prefix_trace("chat", 300, rate=2.0, seed=0, block_size=16, answers=True).requests
    assert [one.block_ids for one in answered] == [one.block_ids for one in plain]
    repeated = 0
    for one in answered:
        assert len(one.answered_block_ids) == -(-(one.num_input_tokens + one.num_output_tokens) // 16)
        whole = (one.num_input_tokens + one.num_output_tokens) // 16
        prompt = one.num_input_tokens // 16
        assert one.answered_block_ids[:prompt] == one.block_ids[:prompt]
        if whole > prompt:
            repeated += any(other.block_ids[:whole] == one.answered_block_ids[:whole] for other in answered)
    assert repeated > 100  # four sessions of five return at least once
