"""Law L4 (same answer) on the tiny decoder, and a hand count of its multiplications."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.errors import ConfigError
from kvlib.primers.attention import Tally, attend, softmax
from kvlib.primers.decoder import (
    HEAD_DIM, HIDDEN, LAYERS, MAX_TOKENS, MLP, QUERY_HEADS, VOCABULARY,
    TinyDecoder, generate, worst_difference,
)
from kvlib.primers.work import rows_without_cache, tokens_run
from kvlib.specs import KvShape

SAME = 1e-12
tokens = st.integers(0, VOCABULARY - 1)
prompts = st.lists(tokens, min_size=1, max_size=8)
kv_heads = st.sampled_from([1, 2, 4])
few = settings(max_examples=20, deadline=None, derandomize=True)


@few
@given(prompts, kv_heads, st.integers(1, 6), st.integers(0, 50))
def test_forgetting_the_cache_changes_no_logit(prompt, heads, steps, seed):
    decoder = TinyDecoder(heads, seed)
    kept, forgot = (generate(decoder, prompt, steps, keep_cache=keep) for keep in (True, False))
    assert worst_difference(kept, forgot) <= SAME
    assert [step.token for step in kept] == [step.token for step in forgot]


@few
@given(prompts, kv_heads, st.integers(1, 6))
def test_with_a_cache_each_token_runs_once_and_without_one_every_time(prompt, heads, steps):
    kept, forgot = (generate(TinyDecoder(heads), prompt, steps, keep_cache=keep) for keep in (True, False))
    assert sum(step.rows_computed for step in kept) == tokens_run(len(prompt), steps)
    assert sum(step.rows_computed for step in forgot) == rows_without_cache(len(prompt), steps)
    assert all(step.rows_read + step.rows_computed == step.position for step in (*kept, *forgot))
    assert all(step.rows_read == 0 for step in forgot)


@few
@given(prompts, tokens, kv_heads)
def test_rows_of_earlier_tokens_do_not_change_when_the_text_grows(prompt, extra, heads):
    decoder = TinyDecoder(heads)
    short, long = decoder.new_cache(), decoder.new_cache()
    decoder.forward(prompt, short)
    decoder.forward([*prompt, extra], long)
    for layer in range(LAYERS):
        for head in range(heads):
            assert long.keys[layer][head][: len(prompt)] == short.keys[layer][head]
            assert long.values[layer][head][: len(prompt)] == short.values[layer][head]


@few
@given(prompts, prompts, kv_heads)
def test_a_prompt_in_two_pieces_gives_the_same_logits(first, second, heads):
    decoder = TinyDecoder(heads)
    whole = decoder.forward([*first, *second], decoder.new_cache())
    cache = decoder.new_cache()
    decoder.forward(first, cache)
    assert worst_difference([whole], [decoder.forward(second, cache)]) <= SAME


@few
@given(st.integers(1, 8), st.integers(0, 8), kv_heads)
def test_multiply_adds_are_those_of_the_matrices_and_the_pairs(new, cached, heads):
    decoder = TinyDecoder(heads)
    cache = decoder.new_cache()
    if cached:
        decoder.forward([1] * cached, cache)
    # Per token and layer: query and output (HIDDEN x HIDDEN each), key and value, two feed-forward matrices.
    matrices = 2 * HIDDEN**2 + 2 * HIDDEN * heads * HEAD_DIM + 2 * HIDDEN * MLP
    # Token i of the new ones meets cached + i keys; each pair costs HIDDEN for scores and HIDDEN for values.
    pairs = sum(cached + i for i in range(1, new + 1))
    expected = LAYERS * (new * matrices + 2 * HIDDEN * pairs) + HIDDEN * VOCABULARY
    assert decoder.forward([1] * new, cache).multiply_adds == expected


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_the_cache_holds_what_kv_shape_says(heads):
    decoder = TinyDecoder(heads)
    cache = decoder.new_cache()
    decoder.forward([3, 1, 4], cache)
    layers = [*cache.keys, *cache.values]
    held = sum(len(row) for layer in layers for head in layer for row in head)
    shape = KvShape.uniform(layers=LAYERS, kv_heads=heads, head_dim=HEAD_DIM)
    bytes_of_bf16 = 2
    assert held * bytes_of_bf16 == shape.kv_bytes(3)


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_neighboring_query_heads_share_a_kv_head(heads, monkeypatch):
    decoder = TinyDecoder(heads)
    cache, read = decoder.new_cache(), []

    def watched(query, keys, values, tally):
        read.append(next(head for head in range(heads) for layer in cache.keys if layer[head] is keys))
        return attend(query, keys, values, tally)

    monkeypatch.setattr("kvlib.primers.decoder.attend", watched)
    decoder.forward([3], cache)
    # Query head j reads KV head floor(j G / h), as the primer's text and Ainslie et al. 2023 have it.
    assert read == [j * heads // QUERY_HEADS for j in range(QUERY_HEADS)] * LAYERS


def test_attention_by_hand():
    # Scores 0 and ln 3 (times sqrt(1) = 1) give weights 1/4 and 3/4; values 0 and 4 mix to 3.
    answer = attend([1.0], [[0.0], [math.log(3)]], [[0.0], [4.0]], tally := Tally())
    assert answer == pytest.approx([3.0], abs=1e-12)
    assert tally.multiply_adds == 4          # two scores of width 1, one value column of two rows


@few
@given(st.lists(st.floats(-700, 700), min_size=1, max_size=10))
def test_softmax_weights_are_positive_and_add_up_to_one(scores):
    weights = softmax(scores)
    assert math.fsum(weights) == pytest.approx(1.0, abs=1e-12)
    assert all(weight >= 0 for weight in weights)


@pytest.mark.parametrize("heads", [0, 3, 8, True, 2.0, "4"])
def test_kv_heads_must_divide_the_query_heads(heads):
    with pytest.raises(ConfigError, match="kv_heads"):
        TinyDecoder(heads)


@pytest.mark.parametrize(
    ("new_tokens", "field"),
    [
        ([], "new_tokens"), ([1] * (MAX_TOKENS + 1), "new_tokens"),
        ([VOCABULARY], "token"), ([-1], "token"), ([True], "token"),
    ],
)
def test_bad_tokens_are_refused_and_leave_the_cache_alone(new_tokens, field):
    decoder = TinyDecoder()
    cache = decoder.new_cache()
    with pytest.raises(ConfigError, match=field):
        decoder.forward(new_tokens, cache)
    assert cache.num_tokens == 0
