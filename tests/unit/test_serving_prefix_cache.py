"""A block cache under the serving engine: what is found again, what it saves, and what must not be found."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.errors import ConfigError
from kvlib.serving import CachedMemory, StepClock, simulate
from kvlib.serving.prefix_cache import Content
from kvlib.specs import get_gpu, get_model
from kvlib.workloads import Request, prefix_trace, sharegpt_like, translation_like

CLOCK = StepClock(get_model("opt-13b"), get_gpu("a100-40gb"))


def test_C17_each_request_counts_once_however_often_it_is_tried():
    """8 equal prompts of 64 tokens in 5 blocks: 7 of them find 3 of 4 blocks, one must be computed."""
    prompts = [Request(0.0, 64, 8, block_ids=(1, 2, 3, 4))] * 8
    result = simulate(prompts, prefix_caching=16, num_slots=80)
    assert result.completed == 8 and result.preemptions > 0
    assert (result.prompt_tokens, result.hit_tokens) == (8 * 64, 7 * 48)
    assert simulate([], prefix_caching=16).hit_ratio == 0.0


def test_C19_a_preempted_request_finds_its_own_blocks_again():
    """7 blocks of 16, two requests of 34 prompt and 35 new tokens.

    Each starts with 3 blocks. At 48 tokens each, the second needs a fourth and gives way; the first takes the
    one that is free, and later the two that are released last, its tail first. Computing again is bounded by
    what the first one took.
    """
    requests = [Request(0.0, 34, 35)] * 2
    cached = simulate(requests, num_slots=112, prefix_caching=16)
    plain = simulate(requests, num_slots=112)
    assert cached.completed == plain.completed == 2
    assert plain.preemptions == cached.preemptions == 1 and plain.recomputed_tokens == 48
    [lost] = [row for row in cached.timeline if row.preempted]
    [back] = [row for row in cached.timeline if row.admitted == (1,) and row.start_s >= lost.start_s]
    held_by_the_first = -(-(34 + 34) // 16)  # at its end
    surviving = min(3, 7 - held_by_the_first)
    assert back.prefilled == ((1, 49 - 16 * surviving),)
    assert cached.recomputed_tokens == 48 - 16 * surviving


def test_a_hit_saves_exactly_the_prefill_of_its_blocks():
    requests = [Request(0.0, 96, 1, block_ids=tuple(range(6))), Request(9.0, 96, 1, block_ids=tuple(range(6)))]
    first, second = simulate(requests, prefix_caching=16).timeline
    assert first.end_s - first.start_s == CLOCK.step_ps([(96, 0)]) / 1e12
    # Five blocks of six are found: one token at least must be computed, and blocks are whole.
    assert second.prefilled == ((1, 16),)
    assert second.end_s - second.start_s == pytest.approx(CLOCK.step_ps([(16, 80)]) / 1e12, rel=1e-9)


def test_an_answer_is_found_by_the_next_turn_only_where_the_workload_says_that_it_is_repeated():
    first = Request(0.0, 32, 17, block_ids=(0, 1))
    said = replace(first, answered_block_ids=(0, 1, 2, 3))  # 32 + 17 tokens; the last of them is never written
    turn = Request(9.0, 80, 1, block_ids=(0, 1, 2, 4, 5))
    assert simulate([first, turn], prefix_caching=16).hit_tokens == 32
    assert simulate([said, turn], prefix_caching=16).hit_tokens == 48


def test_what_was_not_computed_before_a_preemption_is_not_found():
    """6 blocks. While the first request decodes, the second is prefilled 4 tokens a step, and loses its place.

    2 tokens beside the end of the first prefill (28 = 5 x 5 + 3) and 4 in each of the 4 steps until the first
    needs its third block: 18. So of its four blocks one was written, although three are still in place when
    it returns.
    """
    requests = [Request(0.0, 28, 13), Request(0.0, 64, 2, block_ids=(1, 2, 3, 4))]
    knobs = {"chunked_prefill": True, "max_num_batched_tokens": 5}
    result = simulate(requests, num_slots=96, prefix_caching=16, **knobs)
    assert [row.preempted for row in result.timeline if row.preempted] == [(1,)]
    computed = [tokens for row in result.timeline for index, tokens in row.prefilled if index == 1]
    assert sum(computed) == 18 + (64 - 16)
    assert result.recomputed_tokens == 18 - 16


def test_content_that_differs_is_never_shared():
    """Other ids, no ids, and ids that agree only behind a difference."""
    requests = [
        Request(0.0, 64, 20, block_ids=(1, 2, 3, 4)),
        Request(5.0, 64, 20, block_ids=(9, 2, 3, 4)),
        Request(10.0, 64, 20),
        Request(15.0, 64, 20),
    ]
    assert simulate(requests, prefix_caching=16).hit_tokens == 0


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    st.sampled_from(["chat", "agents", "rag"]), st.integers(1, 40), st.sampled_from([8, 16, 32]), st.integers(0, 5)
)
def test_laws_on_real_kinds_of_load(kind, num_requests, block_size, seed):
    """L7: hits are at most what an endless memory would find; everything else is as without a cache."""
    trace = prefix_trace(kind, num_requests, rate=1.0, seed=seed, block_size=32)
    knobs = {"max_len": 200_000, "block_size": block_size, "num_slots": 60_000}
    cached = simulate(trace.requests, prefix_caching=32, **knobs)
    endless = simulate(trace.requests, prefix_caching=32, **{**knobs, "num_slots": 10**7})
    plain = simulate(trace.requests, **knobs)
    assert cached.completed == plain.completed and cached.output_tokens == plain.output_tokens
    assert 0 <= cached.hit_tokens <= endless.hit_tokens <= cached.prompt_tokens == plain.prompt_tokens
    assert plain.hit_tokens == 0


def test_an_announced_prefix_and_one_that_is_found_save_the_same_prefills():
    """Five-shot translation: 21 blocks of 16 are pinned beforehand, or computed by the first request."""
    requests = translation_like(50, rate=4.0, seed=0, shots=5)
    announced = simulate(requests, shared_prefix_tokens=341)
    found = simulate(requests, prefix_caching=16)
    assert announced.hit_tokens == 50 * 336
    assert found.hit_tokens == 49 * 336


def test_without_anything_to_find_a_cache_changes_nothing():
    requests = sharegpt_like(120, rate=5.0, seed=0)
    plain, cached = simulate(requests), simulate(requests, prefix_caching=16)
    assert cached.hit_tokens == 0
    assert cached.timeline[: len(cached.timeline) // 4] == plain.timeline[: len(cached.timeline) // 4]
    # Later a preempted request finds its own blocks.
    assert cached.recomputed_tokens < plain.recomputed_tokens


def test_a_free_block_with_content_is_free():
    memory = CachedMemory(64, 16, 16)
    request = Request(0.0, 64, 1, block_ids=(1, 2, 3, 4))
    memory.admit(0, request, 64)
    memory.release(0)
    assert memory.held_slots == 0
    assert memory.admit(1, Request(0.0, 64, 1), 64).empty_slots == 64
    memory.check_integrity()


def test_ids_beyond_32_bits_stay_distinct():
    content = Content(16)
    ids = (2**40, 2**40 + 1, 2**63, 2**64 - 1, 2**130)
    assert len({tuple(content.tokens(0, Request(0.0, 16, 0, block_ids=(one,)), 0, 16)) for one in ids}) == len(ids)


def test_another_request_of_the_same_row_and_length_is_looked_up_anew():
    memory = CachedMemory(160, 16, 16)
    known, other = Request(0.0, 40, 1, block_ids=(1, 2, 3)), Request(0.0, 40, 1, block_ids=(4, 5, 6))
    memory.admit(0, known, 40)
    assert (memory.cached_tokens(1, known, 40), memory.cached_tokens(1, other, 40)) == (32, 0)


@pytest.mark.parametrize(
    "request_fields, message",
    [
        ({"block_ids": (1, 2)}, r"requests\[0\].block_ids: got 2 ids for 64 tokens, expected 4 of prefix_caching=16"),
        ({"answered_block_ids": (1,)}, r"requests\[0\].answered_block_ids: got 1 ids for 72 tokens, expected 5"),
        ({"num_sequences": 2}, r"requests\[0\].num_sequences: got 2, expected 1 with prefix_caching"),
    ],
)
def test_requests_that_a_cache_cannot_understand_are_named(request_fields, message):
    with pytest.raises(ConfigError, match=message):
        simulate([Request(0.0, 64, 8, **request_fields)], prefix_caching=16)


@pytest.mark.parametrize(
    "knobs, message",
    [
        ({"prefix_caching": -1}, "prefix_caching"),
        ({"prefix_caching": True}, "prefix_caching"),
        ({"prefix_caching": 16, "memory": "max"}, "prefix_caching: expected only with memory='paged'"),
        ({"prefix_caching": 16, "cpu_slots": 100}, "prefix_caching: expected without cpu_slots"),
        ({"prefix_caching": 16, "shared_prefix_tokens": 32}, "shared_prefix_tokens: expected without prefix_caching"),
    ],
)
def test_impossible_settings_are_refused(knobs, message):
    with pytest.raises(ConfigError, match=message):
        simulate([Request(0.0, 8, 8)], **knobs)
