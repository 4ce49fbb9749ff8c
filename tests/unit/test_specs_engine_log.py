"""vLLM's start-up lines, in all their forms (case B19)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.errors import ConfigError
from kvlib.specs import parse_engine_log


def test_the_hybrid_model_whose_two_lines_disagree():
    log = parse_engine_log(
        "INFO 09-15 10:11:12 [kv_cache_utils.py:1013] GPU KV cache size: 290,864 tokens\n"
        "INFO 09-15 10:11:12 [utils.py:1017] Maximum concurrency for 32,768 tokens per request: 33.04x\n"
    )
    assert (log.cache_tokens, log.request_tokens, log.concurrency) == (290_864, 32_768, 33.04)
    assert log.agrees is False
    assert round(log.tokens) == 1_082_655


def test_the_old_form_in_blocks_agrees():
    log = parse_engine_log(
        "INFO 01-30 worker.py:266] # GPU blocks: 127626, # CPU blocks: 2048\n"
        "INFO 01-30 executor_base.py:115] Maximum concurrency for 32768 tokens per request: 62.32x"
    )
    assert log.cache_tokens == log.tokens == 127_626 * 16 == 2_042_016
    assert log.agrees is True


def test_the_old_form_names_the_platform_in_three_ways():
    # printed by the V0 engine of 2025: 3,671 blocks of 16 are 58,736 tokens, 1.79 times 32,768
    log = parse_engine_log(
        "INFO 11-03 15:51:27 [executor_base.py:113] # cuda blocks: 3671, # CPU blocks: 2730\n"
        "INFO 11-03 15:51:27 [executor_base.py:118] Maximum concurrency for 32768 tokens per request: 1.79x"
    )
    assert (log.cache_tokens, log.agrees) == (58_736, True)
    assert parse_engine_log("# CUDA blocks: 3671, # CPU blocks: 2730").cache_tokens == 58_736


@pytest.mark.parametrize("line", ["# cuda blocks", "# CPU blocks: 2730", "GPU KV cache size: many tokens", ""])
def test_a_log_without_the_lines_is_refused(line):
    with pytest.raises(ConfigError, match="no KV cache line"):
        parse_engine_log(line)


@pytest.mark.parametrize("text", [None, b"GPU KV cache size: 1 tokens", 5])
def test_only_text_is_read(text):
    with pytest.raises(ConfigError, match="text: got"):
        parse_engine_log(text)


def test_one_line_alone_is_not_compared():
    tokens = parse_engine_log("GPU KV cache size: 1,952 tokens")
    assert (tokens.tokens, tokens.agrees) == (1952, None)
    concurrency = parse_engine_log("Maximum concurrency for 4,096 tokens per request: 1,000.50x")
    assert (concurrency.tokens, concurrency.agrees) == (4096 * 1000.5, None)


def test_blocks_are_counted_in_the_block_size_that_is_given():
    assert parse_engine_log("# GPU blocks: 1,000", block_size=32).tokens == 32_000
    with pytest.raises(ConfigError, match="block_size"):
        parse_engine_log("# GPU blocks: 1,000", block_size=0)


def test_the_last_start_counts():
    assert parse_engine_log("GPU KV cache size: 5 tokens\nGPU KV cache size: 7 tokens").tokens == 7


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    tokens=st.integers(1, 10**8),
    length=st.integers(1, 10**6),
    commas=st.booleans(),
    prefix=st.sampled_from(["", "INFO 1 [a.py:1] "]),
)
def test_what_an_engine_prints_about_itself_agrees(tokens, length, commas, prefix):
    form = "{:,}" if commas else "{}"
    log = parse_engine_log(
        f"{prefix}GPU KV cache size: {form.format(tokens)} tokens\n"
        f"{prefix}Maximum concurrency for {form.format(length)} tokens per request: {tokens / length:.2f}x\n"
    )
    assert log.agrees and log.tokens == tokens
