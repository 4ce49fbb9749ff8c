"""Layer-wise overlap: causality, closed forms, the lecture's half-hit prompt, and where it stops hiding the load."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.cost import prefill_s, transfer_s
from kvlib.errors import ConfigError
from kvlib.specs import LinkSpec, get_gpu, get_link, get_model
from kvlib.tiers import PLACES, hidden_up_to, layer_times, link_to, overlap_layers, overlapped_prefill

steady = settings(derandomize=True, deadline=None, max_examples=60)
# Whole milliseconds, so that sums of a few dozen of them are exact in a float.
times = st.integers(0, 50)
layers_of_times = st.integers(1, 30).flatmap(
    lambda n: st.tuples(*(st.lists(times, min_size=n, max_size=n) for _ in range(3)))
)

LLAMA, H100 = get_model("llama-3-8b"), get_gpu("h100-80gb")
BIG, A800 = get_model("llama-2-70b"), get_gpu("a800-80gb")


@steady
@given(layers_of_times)
def test_no_layer_computes_before_its_kv_is_there_or_leaves_before_it_is_computed(parts):
    """L5, causality: and no worker does two layers at once."""
    run = overlap_layers(*parts)
    for load, compute, store in zip(run.loads, run.computes, run.stores):
        assert load.end_s <= compute.start_s and compute.end_s <= store.start_s
    for spans in (run.loads, run.computes, run.stores):
        assert all(earlier.end_s <= later.start_s for earlier, later in zip(spans, spans[1:]))


@steady
@given(layers_of_times)
def test_overlap_never_loses_and_never_beats_its_busiest_worker(parts):
    run = overlap_layers(*parts)
    assert max(sum(part) for part in parts) <= run.end_s <= run.serial_s == sum(map(sum, parts))
    assert run.stall_s == run.prefill_s - sum(parts[1])


@steady
@given(layers_of_times)
def test_some_worker_is_always_busy(parts):
    """L5, progress: the end is reached by a chain of spans without a gap, so nobody idles for nothing."""
    run = overlap_layers(*parts)
    spans = [span for span in (*run.loads, *run.computes, *run.stores) if span.end_s > span.start_s]
    start_of = {span.end_s: span.start_s for span in spans}
    moment = run.end_s
    while moment > 0:
        assert moment in start_of
        moment = start_of[moment]


@steady
@given(st.integers(1, 100), times, times, times)
def test_equal_layers_have_a_closed_form(layers, load, compute, store):
    """The first layer pays all its parts, every other one only the largest: a pipeline's fill and beat."""
    run = overlap_layers([load] * layers, [compute] * layers, [store] * layers)
    assert run.prefill_s == load + compute + (layers - 1) * max(load, compute)
    assert run.end_s == load + compute + store + (layers - 1) * max(load, compute, store)


def test_pedagogy_exercise_80_layers_at_2_and_3_ms():
    """pedagogy.md, chapter 8 ex. 3: 80 (2 + 3) = 400 serial; 2 + 80 * 3 = 242. Swapped: 3 * 80 + 2 = 242 as well."""
    for load, compute in ((2, 3), (3, 2)):
        run = overlap_layers([load] * 80, [compute] * 80, [0] * 80)
        assert (run.serial_s, run.prefill_s) == (400, 242)
    assert run.stall_s == 242 - 160          # loading is slower here, so the GPU waits


def test_lecture_7_half_hit_prompt():
    """L7.layerwise: 870 -> 454 ms and 60 ms more without overlap, each within 2%."""
    ssd = get_link("nvme-4x6gb")
    assert 1e3 * prefill_s(BIG, A800, 8704, 0, 8) == pytest.approx(870, rel=0.02)
    run = overlapped_prefill(BIG, A800, ssd, 4352, 4352, num_gpus=8)
    assert 1e3 * run.prefill_s == pytest.approx(454, rel=0.02)
    # 4,352 tokens * 327,680 B / 24e9 B/s = 59.4 ms
    assert 1e3 * transfer_s(BIG.shape.kv_bytes(4352), ssd) == pytest.approx(60, rel=0.02)
    # Only the first of 80 layers is waited for.
    assert run.stall_s == pytest.approx(transfer_s(BIG.shape.kv_bytes(4352), ssd) / 80)


def test_layer_times_add_up_to_the_whole():
    load, compute, store = layer_times(LLAMA, H100, get_link("net-10g"), 300, 5000)
    assert 32 * load == pytest.approx(transfer_s(5000 * 131072, get_link("net-10g")))
    assert 32 * compute == pytest.approx(prefill_s(LLAMA, H100, 300, 5000))
    assert 32 * store == pytest.approx(transfer_s(300 * 131072, get_link("net-10g")))


@steady
@given(st.integers(1, 2000), st.sampled_from(PLACES), st.sampled_from(["llama-3-8b", "llama-3-70b", "opt-13b"]))
def test_hidden_up_to_is_the_last_length_that_hides(new_tokens, place, name):
    model, link = get_model(name), link_to(place, H100)
    limit = hidden_up_to(model, H100, link, new_tokens)
    if limit is None:
        load, compute, _ = layer_times(model, H100, link, new_tokens, 10_000_000)
        assert load <= compute
        return
    for cached, hides in ((limit, True), (limit + 1, False)):
        load, compute, _ = layer_times(model, H100, link, new_tokens, cached)
        assert (load <= compute) is hides


def test_hiding_has_the_closed_form_of_two_straight_lines():
    """c B / W = a n + b (n c + n^2/2) solved for c, with B = 131,072, W = 51.2e9, a = 2 P / F and b = 4 L d / F."""
    rate, new = 727.5e12, 256
    a, b = 2 * LLAMA.active_params / rate, 4 * 32 * 4096 / rate
    link = LinkSpec("51.2 GB/s", 51.2e9)
    expected = (a * new + b * new**2 / 2) / (131072 / 51.2e9 - b * new)
    assert hidden_up_to(LLAMA, H100, link, new) == math.floor(expected)


def test_enough_new_tokens_hide_any_length():
    """Attention per cached token, b n, outgrows B / W once n > 131,072 / 51.2e9 * 727.5e12 / (4 * 32 * 4,096).

    That is 3,552 new tokens.
    """
    link = LinkSpec("51.2 GB/s", 51.2e9)
    assert hidden_up_to(LLAMA, H100, link, 3_500) is not None
    assert hidden_up_to(LLAMA, H100, link, 3_600) is None


@pytest.mark.parametrize("refused, words", [
    (lambda: overlap_layers([], [], []), "layers: got 0"),
    (lambda: overlap_layers([1.0], [1.0, 2.0], [0.0]), "expected as many"),
    (lambda: overlap_layers([1.0], [math.nan], [0.0]), "compute_s"),
    (lambda: overlap_layers([-1.0], [1.0], [0.0]), "load_s"),
    (lambda: overlap_layers([1.0], [1.0], ["0"]), "store_s"),
    (lambda: overlap_layers([True], [1.0], [0.0]), "load_s"),
    (lambda: layer_times(LLAMA, H100, get_link("net-3g"), -1, 5), "new_tokens"),
    (lambda: layer_times(LLAMA, H100, get_link("net-3g"), 5, 1.5), "cached_tokens"),
    (lambda: hidden_up_to(LLAMA, H100, get_link("net-3g"), 0), "new_tokens"),
])
def test_refusals_name_the_field(refused, words):
    with pytest.raises(ConfigError, match=words):
        refused()
