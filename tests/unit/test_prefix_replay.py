"""Replay: the measured table of the real trace, prefix hits, and traces that cannot be replayed."""

import os
from pathlib import Path
from types import SimpleNamespace as Space

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hash_seeds import printed_under_hash_seeds

from kvlib.errors import ConfigError
from kvlib.prefix import ReplayResult, lru_hit_ratios, lru_knee, replay, stack_distances, trace_statistics
from kvlib.prefix.eviction import POLICIES
from kvlib.workloads import read_trace

SHARED = Path(os.environ.get("KVLIB_SHARED", Path(__file__).parents[3] / "shared")) / "data"
PROMPTS = st.lists(st.lists(st.integers(0, 20), max_size=6, unique=True), max_size=30).filter(any)
# ../shared/data/README.md, "Measured on the Mooncake file"
CAPACITIES = (1_000, 10_000, 30_000, 50_000, 100_000, None)
MEASURED = {
    "lru": (0.0445, 0.2112, 0.3257, 0.3546, 0.3637, 0.3664),
    "lfu": (0.0481, 0.1318, 0.2759, 0.3438, 0.3631, 0.3664),
    "lfu_kept": (0.0811, 0.1879, 0.2796, 0.3430, 0.3631, 0.3664),
    "length_aware": (0.0504, 0.1123, 0.2028, 0.2602, 0.3345, 0.3664),
}


def trace_of(prompts):
    return Space(requests=[Space(block_ids=None if prompt is None else tuple(prompt)) for prompt in prompts])


@pytest.fixture(scope="module")
def conversation():
    path = SHARED / "mooncake_conversation_trace.jsonl"
    if not path.exists():
        pytest.skip("the Mooncake trace is not here")
    return read_trace(path)


@pytest.mark.parametrize("policy", MEASURED)
def test_real_trace_gives_the_measured_table(conversation, policy):
    # L7.lru.gt.lfu: these columns show LFU ahead at 1,000 blocks and LRU at 10,000 and 100,000. The one-pass
    # test below covers LRU at every capacity.
    for capacity, expected in [
        (c, ratio) for c, ratio in zip(CAPACITIES, MEASURED[policy]) if c in (1_000, 10_000, 100_000)
    ]:
        assert round(replay(conversation, capacity, policy).hit_ratio, 4) == expected


def test_real_trace_fifo_and_belady(conversation):
    fifo = replay(conversation, 10_000, "fifo")
    assert (round(fifo.hit_ratio, 4), round(fifo.prefix_hit_ratio, 4)) == (0.1865, 0.1815)
    assert round(replay(conversation, 10_000, "belady").hit_ratio, 4) == 0.3664


def test_real_trace_in_one_pass(conversation):
    assert [round(ratio, 4) for ratio in lru_hit_ratios(conversation, CAPACITIES)] == list(MEASURED["lru"])
    assert lru_hit_ratios(conversation, [10_000]) == [replay(conversation, 10_000).hit_ratio]


def test_real_trace_statistics(conversation):  # PFX-7, P.mc.blocks, P.mc.720 and ../shared/data/README.md
    statistics = trace_statistics(conversation, num_hottest=2)
    assert (statistics.num_requests, statistics.num_arrival_times) == (12_031, 1_180)
    assert (statistics.num_references, statistics.num_unique_blocks) == (288_500, 182_790)
    assert round(statistics.share_used_once, 4) == 0.7585
    assert [count for _, count in statistics.hottest] == [12_031, 43]
    assert round(statistics.mean_of_ratios) == 371
    assert round(statistics.top_1_percent_share, 3) == 0.317
    assert statistics.reusable_share == pytest.approx(replay(conversation).hit_ratio, rel=1e-12)


# --- one pass against replay, and distances against their definition ---


@settings(derandomize=True, deadline=None, max_examples=80)
@given(prompts=PROMPTS)
def test_one_pass_equals_replay_at_every_capacity(prompts):
    trace, capacities = trace_of(prompts), [*range(1, 23), None]
    assert lru_hit_ratios(trace, capacities) == [
        replay(trace, capacity, "lru").hit_ratio for capacity in capacities
    ]


@settings(derandomize=True, deadline=None, max_examples=60)
@given(prompts=PROMPTS, eighths=st.integers(0, 4))  # eighths, so that no rounding blurs the boundary
def test_knee_is_the_smallest_capacity_that_is_good_enough(prompts, eighths):
    trace = trace_of(prompts)
    num_references = sum(map(len, prompts))
    enough = replay(trace).hits - eighths / 8 * num_references
    assert lru_knee(trace, within=eighths / 8) == min(
        c for c in range(1, 23) if replay(trace, c).hits >= enough
    )


@settings(derandomize=True, deadline=None, max_examples=80)
@given(references=st.lists(st.integers(0, 8), max_size=60))
def test_stack_distance_counts_the_different_blocks_since(references):
    expected = []
    for now, block in enumerate(references):
        before = [time for time in range(now) if references[time] == block]
        if before:
            expected.append(len(set(references[before[-1] : now])))
    assert stack_distances(references) == expected


# --- what a hit is ---


def test_a_hit_behind_a_miss_is_no_prefix_hit():
    # The second request misses its first block, 3, so finding 2 behind it saves no prefill.
    trace = trace_of([[1, 2], [3, 2]])
    assert replay(trace) == ReplayResult(references=4, hits=1, prefix_hits=0)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(prompts=PROMPTS, capacity=st.integers(1, 9), policy=st.sampled_from(sorted(POLICIES)))
def test_counts_are_consistent(prompts, capacity, policy):
    result = replay(trace_of(prompts), capacity, policy)
    assert result.references == sum(map(len, prompts))
    assert 0 <= result.prefix_hits <= result.hits <= result.references - len(set().union(*prompts))
    assert result.hit_ratio == result.hits / result.references


def test_an_id_beyond_32_bits_is_another_block():  # D03
    for one, other in ((1, 2**32 + 1), (2**63, 2**63 + 1), (10**18, 10**18 + 1)):
        assert replay(trace_of([[one], [other]])).hits == 0


def test_result_does_not_depend_on_the_hash_seed():
    program = (
        "from types import SimpleNamespace as S\n"
        "from kvlib.prefix.replay import POLICIES, replay\n"
        "t = S(requests=[S(block_ids=tuple(f'{i * i % 7}-{d}' for d in range(4))) for i in range(50)])\n"
        "print([replay(t, 6, p) for p in POLICIES])"
    )
    outputs = printed_under_hash_seeds(program)
    assert len(outputs) == 1


# --- statistics by hand ---


def test_statistics_by_hand():
    requests = [
        Space(arrival_s=1.0, num_input_tokens=10, num_output_tokens=5, block_ids=(0, 1)),
        Space(arrival_s=1.0, num_input_tokens=20, num_output_tokens=1, block_ids=(0, 2, 3)),
        Space(arrival_s=4.0, num_input_tokens=30, num_output_tokens=0, block_ids=(0, 1, 4)),
    ]
    statistics = trace_statistics(Space(requests=requests), num_hottest=1)
    assert (statistics.num_requests, statistics.duration_s, statistics.num_arrival_times) == (3, 3.0, 2)
    assert (statistics.mean_input_tokens, statistics.mean_output_tokens) == (20.0, 2.0)
    assert statistics.ratio_of_means == 10.0  # 60 / 6
    assert statistics.mean_of_ratios == 11.0  # (10/5 + 20/1) / 2; no output, no ratio
    assert (statistics.num_references, statistics.num_unique_blocks) == (8, 5)
    assert statistics.share_used_once == 3 / 5
    assert statistics.reusable_share == 3 / 8
    assert statistics.top_1_percent_share == 2 / 3  # one block of five, with 2 of the 3 hits
    assert statistics.hottest == ((0, 3),)


def test_statistics_without_output_or_reuse():
    statistics = trace_statistics(
        Space(requests=[Space(arrival_s=0.0, num_input_tokens=3, num_output_tokens=0, block_ids=(7,))])
    )
    assert (statistics.ratio_of_means, statistics.mean_of_ratios) == (None, None)
    assert (statistics.reusable_share, statistics.top_1_percent_share) == (0.0, 0.0)


# --- bad input ---


@pytest.mark.parametrize("capacity", [0, -1, 1.5, "10", True])
def test_bad_capacity_is_refused(capacity):
    with pytest.raises(ConfigError, match="capacity_blocks"):
        replay(trace_of([[1]]), capacity)
    with pytest.raises(ConfigError, match="capacities"):
        lru_hit_ratios(trace_of([[1]]), [5, capacity])


@pytest.mark.parametrize("policy", ["LRU", "mru", None, 3])
def test_unknown_policy_lists_the_known_ones(policy):
    with pytest.raises(ConfigError, match="policy: .*belady.*lfu_kept"):
        replay(trace_of([[1]]), 3, policy)


@pytest.mark.parametrize(
    "prompts, why", [([], "no block references"), ([[]], "no block references"), ([[1], None], "request 1")]
)
def test_trace_without_references_is_refused(prompts, why):
    for use in (replay, trace_statistics, lru_knee, lambda trace: lru_hit_ratios(trace, [1])):
        with pytest.raises(ConfigError, match=why):
            use(trace_of(prompts))


@pytest.mark.parametrize("num_hottest", [-1, 1.0, True])
def test_bad_num_hottest_is_refused(num_hottest):
    with pytest.raises(ConfigError, match="num_hottest"):
        trace_statistics(trace_of([[1]]), num_hottest)


@pytest.mark.parametrize("within", [-0.1, float("nan"), "0.02", True])
def test_bad_within_is_refused(within):
    with pytest.raises(ConfigError, match="within"):
        lru_knee(trace_of([[1]]), within)
