"""Sending chunk by chunk: laws L5 (no event before its cause) and L6 (no oracle), and derivations."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.cachegen.account import PAPER_BITS, tie_gbps, ways
from kvlib.cachegen.bandwidth import (
    NS_PER_S,
    Bandwidth,
    markov,
    read_bandwidth,
    square_wave,
    steady,
    uniform_steps,
)
from kvlib.cachegen.streaming import ADAPTIVE, ORACLE, TEXT, Chunk, Context, Encoding, choose, prepare, stream
from kvlib.cost import recompute_s
from kvlib.errors import ConfigError, TraceError
from kvlib.specs import get_gpu, get_model

LAW = settings(max_examples=80, deadline=None, derandomize=True)
ENCODINGS = [Encoding("8-bit", 8.0, 0.001), Encoding("fine", 5.0, 0.01), Encoding("coarse", 2.5, 0.1)]
POLICIES = (ADAPTIVE, ORACLE, TEXT, "8-bit", "fine", "coarse")


def context(tokens=9600, chunk_tokens=1500):
    return prepare(get_model("mistral-7b"), get_gpu("a40"), tokens, chunk_tokens, ENCODINGS, 4e9)


LINKS = st.one_of(
    st.builds(steady, st.floats(0.05, 100)),
    st.builds(square_wave, st.floats(1, 20), st.floats(0.05, 1), st.floats(0.01, 3)),
    st.builds(
        markov, st.floats(1, 20), st.floats(0.05, 1), st.floats(0, 1), st.floats(0.01, 1), st.integers(0, 99)
    ),
    st.builds(uniform_steps, st.floats(0.05, 1), st.floats(1, 20), st.floats(0.01, 1), st.integers(0, 99)),
)


@LAW
@given(LINKS, st.sampled_from(POLICIES), st.floats(0.1, 5), st.sampled_from((200, 1500, 9600, 20000)))
def test_l5_every_chunk_arrives_after_it_was_sent_and_is_ready_after_it_arrived(
    link, policy, slo_s, chunk_tokens
):
    sent = stream(context(chunk_tokens=chunk_tokens), link, policy, slo_s)
    assert len(sent.chunks) == math.ceil(9600 / chunk_tokens)
    link_free = gpu_free = 0
    for chunk in sent.chunks:
        assert chunk.sent_ns == link_free <= chunk.arrived_ns <= chunk.ready_ns
        assert chunk.ready_ns > gpu_free
        link_free, gpu_free = chunk.arrived_ns, chunk.ready_ns


@LAW
@given(LINKS, st.integers(0, 5 * NS_PER_S), st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_transfer_in_two_parts_ends_when_the_whole_does(link, begin, first, second):
    together = link.end_ns(begin, first + second)
    apart = link.end_ns(link.end_ns(begin, first), second)
    # Each part is rounded up to a nanosecond, and at each change of speed down to a byte.
    assert begin <= together and abs(apart - together) <= 2 + 2 * NS_PER_S // min(link.bytes_per_s)


@LAW
@given(LINKS, st.floats(0.3, 3))
def test_with_foresight_a_context_is_late_only_if_every_fixed_choice_is(link, slo_s):
    # The oracle's first plan is the finest uniform one in time; it only ever refines what still fits.
    fixed = [stream(context(), link, choice, slo_s).ready_s for choice in (TEXT, "8-bit", "fine", "coarse")]
    if min(fixed) <= slo_s:
        assert stream(context(), link, ORACLE, slo_s).ready_s <= slo_s


@LAW
@given(LINKS, LINKS, st.floats(0.3, 3))
def test_l6_the_adaptive_senders_first_choice_does_not_depend_on_the_network(one, other, slo_s):
    choices = {
        stream(context(), link, ADAPTIVE, slo_s, first_guess_gbps=2.0).chunks[0].choice
        for link in (one, other)
    }
    assert len(choices) == 1


@LAW
@given(st.floats(0.2, 20), st.floats(0.3, 3))
def test_on_a_steady_link_that_was_guessed_right_adapting_is_in_time_whenever_foresight_is(gbps, slo_s):
    link = steady(gbps)
    adaptive = stream(context(), link, ADAPTIVE, slo_s, first_guess_gbps=gbps)
    oracle = stream(context(), link, ORACLE, slo_s)
    assert (adaptive.ready_s <= slo_s + 1e-6) == (oracle.ready_s <= slo_s)


def test_the_text_fallback_is_taken_when_it_is_in_time_because_it_loses_nothing():
    # 9,600 tokens take 1.51 s to compute again (oracle L9.a40.151) and a few bytes to send.
    assert {chunk.choice for chunk in stream(context(), steady(1.0), ADAPTIVE, slo_s=2.0).chunks} == {TEXT}
    assert TEXT not in {chunk.choice for chunk in stream(context(), steady(4.0), ADAPTIVE, slo_s=1.0).chunks}


def test_recomputed_chunks_sum_to_the_whole_prefill():
    # Attention pairs n·c + n²/2 telescope to N²/2, and at 1,500 tokens no chunk waits for the weights.
    total = sum(chunk.gpu_ns[TEXT] for chunk in context().chunks) / NS_PER_S
    assert total == pytest.approx(recompute_s(get_model("mistral-7b"), get_gpu("a40"), 9600), rel=1e-6)
    # At 50 tokens each of 192 chunks reads 14.5 GB of weights at 696 GB/s: 192 · 20.8 ms = 4.0 s and more.
    assert sum(chunk.gpu_ns[TEXT] for chunk in context(chunk_tokens=50).chunks) / NS_PER_S > 4.0


def test_a_hand_made_timeline():
    # 100 bytes/s; chunks of 100 and 50 bytes; the GPU takes 2 s each. Link: 0-1, 1-1.5 s. GPU: 1-3, 3-5 s.
    chunks = tuple(Chunk({"a": size, TEXT: 1}, {"a": 2 * NS_PER_S, TEXT: 9 * NS_PER_S}) for size in (100, 50))
    sent = stream(Context(chunks, {TEXT: 0.0, "a": 0.5}), Bandwidth((0,), (100,)), "a", 1.0)
    assert [(c.arrived_ns, c.ready_ns) for c in sent.chunks] == [
        (10**9, 3 * 10**9),
        (1_500_000_000, 5 * 10**9),
    ]
    assert sent.loss == 0.5 and sent.ready_s == 5.0


def test_choose_prefers_the_finest_in_time_and_otherwise_the_soonest():
    chunk = Chunk({"fine": 100, "coarse": 10, TEXT: 1}, {"fine": 0, "coarse": 0, TEXT: 5 * NS_PER_S})
    losses, link = {TEXT: 0.0, "fine": 0.1, "coarse": 1.0}, Bandwidth((0,), (100,))
    picks = [choose((chunk,) * 2, losses, link, 0, 0, round(slo * NS_PER_S)) for slo in (12, 3, 1, 0.01)]
    # Text needs 10 s, fine 2 s, coarse 0.2 s.
    assert picks == [TEXT, "fine", "coarse", "coarse"]


def test_l9_ex3_the_account_of_9600_tokens():
    # Oracles L9.ex3 and L9.ex3.10: printed to two digits.
    formats = {"FP16": 16, "8-bit": 8, "2.3-bit": 2.3}
    slow = ways(65536, 9600, 3.0, formats, 1.51)
    assert [round(way.num_bytes / 1e9, 2) for way in slow[:3]] == [1.26, 0.63, 0.18]
    assert [round(way.seconds, 2) for way in slow] == [3.36, 1.68, 0.48, 1.51]
    assert [way.name for way in sorted(slow, key=lambda way: way.seconds)] == [
        "2.3-bit",
        "recompute",
        "8-bit",
        "FP16",
    ]
    fast = ways(65536, 9600, 10.0, formats, 1.51)
    assert [round(way.seconds, 2) for way in fast[:3]] == [1.01, 0.5, 0.14]
    # pedagogy.md, chapter 14 exercise 2, and oracle L9.bits2.3.
    assert round(tie_gbps(65536, 9600, 8, 1.51), 2) == 3.33
    assert round(PAPER_BITS, 2) == 2.26


def test_a_recorded_trace_is_read(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("# mine\nseconds,gbps\n0,4\n0.5,0.8\n\n2,1\n")
    link = read_bandwidth(path)
    assert link == Bandwidth((0, 500_000_000, 2 * NS_PER_S), (500_000_000, 100_000_000, 125_000_000))


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "no line"),
        ("seconds,gbps\n", "no line"),
        ("0,1\n0,2", ":2: .*later"),
        ("0,abc", ":1: got '0,abc'"),
        ("0,1\n1", ":2:"),
        ("0,0", ":1:"),
        ("0,-3", ":1:"),
        ("nan,1", ":1:"),
        ("0,inf", ":1:"),
        ("0,1,2", ":1:"),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(tmp_path, text, message):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        read_bandwidth(path)


def test_impossible_settings_are_refused():
    model, gpu = get_model("mistral-7b"), get_gpu("a40")
    with pytest.raises(ConfigError, match="policy"):
        stream(context(), steady(1), "psychic", 1.0)
    for bad in (0, -1.0, math.nan, math.inf, True, "3"):
        with pytest.raises(ConfigError):
            steady(bad)
        with pytest.raises(ConfigError):
            stream(context(), steady(1), ADAPTIVE, bad)
        with pytest.raises(ConfigError):
            prepare(model, gpu, 9600, 1500, ENCODINGS, bad)
    for encodings in ([], [Encoding(TEXT, 4.0, 0.0)]):
        with pytest.raises(ConfigError, match="encodings"):
            prepare(model, gpu, 9600, 1500, encodings, 4e9)


def test_markov_at_one_half_is_as_restless_as_a_coin_and_at_one_never_moves():
    assert len(set(markov(3, 1, 1.0, 0.1, seed=3).bytes_per_s)) == 1
    speeds = markov(3, 1, 0.5, 0.1, seed=3, pieces=2000).bytes_per_s
    moves = sum(a != b for a, b in zip(speeds, speeds[1:]))
    # A fair coin over 1,999 steps: 1,000 ± 3.3 standard deviations of 22.
    assert 925 < moves < 1075
