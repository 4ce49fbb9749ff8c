"""Chunked pipelines and their rivals, the four steps of a request, and occupancy."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.cluster import (
    chunked_beside_decodes, chunked_pipeline, chunks_for_share, layer_wise, request_steps, run_pipeline,
    sequence_parallel, tensor_parallel, whole_prefill,
)
from kvlib.cluster.pipeline import activation_bytes, cut
from kvlib.cost import decode_step_s, mixed_step_s, prefill_s, transfer_s
from kvlib.errors import ConfigError
from kvlib.specs import LinkSpec, get_gpu, get_link, get_model

QUICK = settings(derandomize=True, deadline=None, max_examples=60)
MODEL, GPU = get_model("llama-2-70b"), get_gpu("a800-80gb")
FAST, SLOW = get_link("net-800g"), get_link("net-25g")


# --- the pipeline ---


def test_equal_chunks_by_hand():
    # pedagogy.md, chapter 11: 16 chunks over 4 nodes take 16 + 4 - 1 = 19 units instead of 64.
    made = run_pipeline([1.0] * 16, nodes=4)
    assert made.speedup == pytest.approx(64 / 19) and round(made.speedup, 1) == 3.4
    # And the 90 % point: m / (m + 3) >= 0.9 from m = 27 on.
    assert chunks_for_share(0.9, 4) == 27


@QUICK
@given(share=st.floats(0.01, 0.99), nodes=st.integers(1, 16))
def test_enough_chunks_are_just_enough(share, nodes):
    chunks = chunks_for_share(share, nodes)
    assert chunks / (chunks + nodes - 1) >= share - 1e-9
    assert chunks == 1 or (chunks - 1) / (chunks + nodes - 2) < share


@QUICK
@given(
    chunk_s=st.lists(st.floats(0.001, 10), min_size=1, max_size=12), nodes=st.integers(1, 6),
    handoff_s=st.floats(0, 1),
)
def test_laws_of_a_pipeline(chunk_s, nodes, handoff_s):  # L5
    made = run_pipeline(chunk_s, nodes, handoff_s)
    at = {(stage.node, stage.chunk): stage for stage in made.stages}
    assert len(at) == len(made.stages) == nodes * len(chunk_s)
    for (node, chunk), stage in at.items():
        assert stage.end_s - stage.start_s == pytest.approx(chunk_s[chunk] / nodes)
        if chunk:
            assert stage.start_s >= at[node, chunk - 1].end_s
        if node:
            assert stage.start_s >= at[node - 1, chunk].end_s + handoff_s
    total = math.fsum(chunk_s)
    # Between the ideal and one node plus all handoffs.
    assert total / nodes - 1e-9 <= made.prefill_s <= total + nodes * handoff_s * len(chunk_s) + 1e-9
    assert made.serial_s == total


def test_one_node_is_no_pipeline():
    made = chunked_pipeline(MODEL, GPU, FAST, 10_000, nodes=1, chunk_tokens=1000)
    assert made.speedup == pytest.approx(1.0)


def test_chunks_cover_the_prompt_in_order():
    chunks = cut(10_000, 3000)
    assert chunks == [(3000, 0), (3000, 3000), (3000, 6000), (1000, 9000)]
    made = chunked_pipeline(MODEL, GPU, FAST, 10_000, nodes=2, chunk_tokens=3000)
    serial = math.fsum(mixed_step_s(MODEL, GPU, [chunk], (), num_gpus=8) for chunk in chunks)
    assert made.serial_s == pytest.approx(serial)


def test_tiny_chunks_read_the_weights_in_vain():
    times = {c: chunked_pipeline(MODEL, GPU, FAST, 16_384, nodes=4, chunk_tokens=c).prefill_s for c in (16, 512, 16_384)}
    assert times[512] < times[16] and times[512] < times[16_384]


# --- rivals ---


def test_tensor_parallel_by_hand():
    # Two all-reduces in each of 80 layers; a ring over 4 nodes takes 6 steps of a quarter of n * 8192 * 2 bytes.
    n, link = 1000, LinkSpec("clean", 1e9)
    step = n * 8192 * 2 / 4
    run = tensor_parallel(MODEL, GPU, link, n, nodes=4)
    assert run.sent_bytes_per_node == 80 * 2 * 6 * step
    assert run.prefill_s == pytest.approx(prefill_s(MODEL, GPU, n, num_gpus=32) + 80 * 2 * 6 * step / 1e9)


def test_sequence_parallel_passes_every_other_nodes_kv():
    run = sequence_parallel(MODEL, GPU, FAST, 32_000, nodes=4)
    assert run.sent_bytes_per_node == pytest.approx(MODEL.shape.kv_bytes(32_000) * 3 / 4)
    # With a perfect network it is an even split.
    free = sequence_parallel(MODEL, GPU, LinkSpec("free", 1e18), 32_000, nodes=4)
    assert free.prefill_s == pytest.approx(prefill_s(MODEL, GPU, 32_000, num_gpus=32))


@pytest.mark.parametrize("nodes", [2, 4, 8])
@pytest.mark.parametrize("tokens", [8192, 131_072])
def test_the_pipeline_beats_tensor_parallelism_and_sends_least(nodes, tokens):  # MOON-3, signs only
    made = chunked_pipeline(MODEL, GPU, FAST, tokens, nodes=nodes, chunk_tokens=512)
    tensor = tensor_parallel(MODEL, GPU, FAST, tokens, nodes=nodes)
    ring = sequence_parallel(MODEL, GPU, FAST, tokens, nodes=nodes)
    assert made.prefill_s < tensor.prefill_s
    assert activation_bytes(MODEL, tokens) < ring.sent_bytes_per_node < tensor.sent_bytes_per_node


def test_one_node_sends_nothing():
    for way in (tensor_parallel, sequence_parallel):
        alone = way(MODEL, GPU, SLOW, 4096, nodes=1)
        assert alone.sent_bytes_per_node == 0
        assert alone.prefill_s == pytest.approx(prefill_s(MODEL, GPU, 4096, num_gpus=8))


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "4"])
def test_bad_sizes_are_refused_by_name(bad):
    with pytest.raises(ConfigError, match="nodes"):
        run_pipeline([1.0], nodes=bad)
    with pytest.raises(ConfigError, match="nodes"):
        tensor_parallel(MODEL, GPU, FAST, 100, nodes=bad)
    with pytest.raises(ConfigError, match="nodes"):
        sequence_parallel(MODEL, GPU, FAST, 100, nodes=bad)
    with pytest.raises(ConfigError, match="chunk_tokens"):
        cut(100, bad)
    with pytest.raises(ConfigError, match="num_tokens"):
        cut(bad, 100)


def test_bad_times_are_refused():
    for chunks in ([], [-1.0], [float("nan")], ["1"]):
        with pytest.raises(ConfigError, match="chunk_s"):
            run_pipeline(chunks, nodes=2)
    with pytest.raises(ConfigError, match="handoff_s"):
        run_pipeline([1.0], 2, handoff_s=[1.0, 2.0])
    with pytest.raises(ConfigError, match="handoff_s"):
        run_pipeline([1.0], 2, handoff_s=-1.0)
    for share in (0, 1, 1.5, float("nan"), "0.9"):
        with pytest.raises(ConfigError, match="share_of_ideal"):
            chunks_for_share(share, 4)


# --- the four steps of one request ---


@pytest.mark.parametrize("link", [FAST, SLOW])
def test_steps_come_in_order(link):  # L5
    steps = request_steps(MODEL, GPU, link, 4096, 4096)
    for load, compute, send in zip(steps.layers.loads, steps.layers.computes, steps.sends):
        assert load.end_s <= compute.start_s and compute.end_s <= send.start_s
    assert steps.sends[-1].end_s == steps.decodes[0].start_s >= steps.ttft_s
    assert steps.decodes[0].end_s - steps.decodes[0].start_s == pytest.approx(
        decode_step_s(MODEL, GPU, [8193], num_gpus=8)
    )


@QUICK
@given(new=st.integers(1, 20_000), cached=st.integers(0, 20_000), fast=st.booleans())
def test_streaming_changes_the_second_token_not_the_first(new, cached, fast):
    link = FAST if fast else SLOW
    streamed, at_once = (request_steps(MODEL, GPU, link, new, cached, stream=on) for on in (True, False))
    assert streamed.ttft_s == at_once.ttft_s
    assert streamed.first_gap_s <= at_once.first_gap_s + 1e-12
    everything = transfer_s(MODEL.shape.kv_bytes(new + cached), link)
    assert at_once.sends[-1].end_s - at_once.ttft_s == pytest.approx(everything)


def test_without_a_cached_prefix_nothing_is_loaded():
    steps = request_steps(MODEL, GPU, FAST, 1000, 0)
    assert steps.layers.loads[-1].end_s == 0.0
    assert steps.ttft_s == pytest.approx(prefill_s(MODEL, GPU, 1000, num_gpus=8))
    with pytest.raises(ConfigError, match="new_tokens"):
        request_steps(MODEL, GPU, FAST, 0, 1000)


# --- occupancy, S × T (MOON-4) ---


def test_occupancy_by_hand():
    # One chunk without decodes: all slots for the whole pass.
    alone = chunked_beside_decodes(MODEL, GPU, 4000, 4000, 0, 1, num_gpus=8)
    assert alone.byte_s == pytest.approx(MODEL.shape.kv_bytes(4000) * alone.prefill_s)
    # Two chunks of equal size: half the bytes during the first step, all of them during the second.
    first, second = (mixed_step_s(MODEL, GPU, [chunk], (), num_gpus=8) for chunk in ((2000, 0), (2000, 2000)))
    both = chunked_beside_decodes(MODEL, GPU, 4000, 2000, 0, 1, num_gpus=8)
    assert both.byte_s == pytest.approx(MODEL.shape.kv_bytes(2000) * first + MODEL.shape.kv_bytes(4000) * second)


def test_a_layer_that_leaves_at_once_stays_only_while_it_is_sent():
    run = layer_wise(MODEL, GPU, FAST, 16_000, 8)
    per_layer = MODEL.shape.kv_bytes(16_000) / 80
    send_s = transfer_s(MODEL.shape.kv_bytes(16_000), FAST) / 80
    assert run.byte_s == pytest.approx(80 * per_layer * send_s)


@pytest.mark.parametrize("tokens", [8192, 65_536])
def test_leaving_layer_by_layer_occupies_least(tokens):
    streamed, afterwards = layer_wise(MODEL, GPU, FAST, tokens, 8), whole_prefill(MODEL, GPU, FAST, tokens, 8)
    beside = chunked_beside_decodes(MODEL, GPU, tokens, 512, 32, 4000, num_gpus=8)
    assert streamed.byte_s < afterwards.byte_s < beside.byte_s
    assert streamed.prefill_s == pytest.approx(afterwards.prefill_s) and streamed.prefill_s < beside.prefill_s


def test_on_a_slow_network_layers_pile_up():
    assert layer_wise(MODEL, GPU, SLOW, 16_000, 8).byte_s > 20 * layer_wise(MODEL, GPU, FAST, 16_000, 8).byte_s
