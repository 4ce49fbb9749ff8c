"""The cost model: laws, then every number of the lectures it can reach (ids of ../shared/oracles.yaml)."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.cost import (
    attention_flops,
    attention_pairs,
    break_even_bytes_per_s,
    decode_step_s,
    decode_tokens_per_s,
    linear_flops,
    mixed_step_s,
    prefill_s,
    recompute_s,
    swap_s,
    transfer_s,
    weights_read_bytes,
)
from kvlib.errors import ConfigError
from kvlib.specs import GPUS, MODELS, LinkSpec, ModelSpec, get_gpu, get_link, get_model, requests_held

LAW = settings(derandomize=True, deadline=None, max_examples=150)
models = st.sampled_from(sorted(MODELS)).map(get_model)
gpus = st.sampled_from(sorted(GPUS)).map(get_gpu)
links = st.sampled_from(["pcie5-x16", "net-3g", "nvme-7gb", "pcie-lecture7"]).map(get_link)
tokens = st.integers(0, 50_000)
windows = st.none() | st.integers(1, 10_000)

OPT, LLAMA2_70B, LLAMA3_8B, LLAMA3_70B = (
    get_model(n) for n in ("opt-13b", "llama-2-70b", "llama-3-8b", "llama-3-70b")
)
A100, A800, H100 = (get_gpu(n) for n in ("a100-40gb", "a800-80gb", "h100-80gb"))


# --- laws ---------------------------------------------------------------------------------------------------


@LAW
@given(first=tokens, second=tokens, window=windows)
def test_attention_in_two_chunks_is_attention_in_one(first, second, window):
    whole = attention_pairs(first + second, 0, window)
    assert attention_pairs(first, 0, window) + attention_pairs(second, first, window) == whole
    assert attention_pairs(second, first, window) <= attention_pairs(second, first)
    assert attention_pairs(second, first) == second * first + second**2 / 2


@LAW
@given(model=models, gpu=gpus, new=tokens, cached=tokens, more=tokens)
def test_prefill_grows_with_new_and_with_cached_tokens(model, gpu, new, cached, more):
    base = prefill_s(model, gpu, new, cached)
    assert gpu.fixed_s <= base <= prefill_s(model, gpu, new + more, cached)
    assert base <= prefill_s(model, gpu, new, cached + more)
    assert prefill_s(model, gpu, new, cached, num_gpus=8) - gpu.fixed_s == pytest.approx(
        (base - gpu.fixed_s) / 8
    )


@LAW
@given(model=models, gpu=gpus, new=st.integers(1, 20_000), cached=tokens)
def test_a_cached_prefix_never_costs_more_than_computing_it(model, gpu, new, cached):
    assert prefill_s(model, gpu, new, cached) <= recompute_s(model, gpu, new + cached) * (1 + 1e-12)


@LAW
@given(model=models, gpu=gpus, contexts=st.lists(tokens, max_size=40), extra=tokens)
def test_a_decode_step_grows_with_every_sequence_and_less_than_proportionally(model, gpu, contexts, extra):
    base, bigger = decode_step_s(model, gpu, contexts), decode_step_s(model, gpu, [*contexts, extra])
    assert 0 <= base <= bigger and (extra == 0 or base < bigger)
    assert bigger <= base + decode_step_s(model, gpu, [extra]) + 1e-15


@LAW
@given(
    model=models, gpu=gpus, contexts=st.lists(tokens, max_size=10), new=st.integers(1, 5000), cached=tokens
)
def test_a_mixed_step_is_between_its_larger_part_and_their_sum(model, gpu, contexts, new, cached):
    mixed = mixed_step_s(model, gpu, [(new, cached)], contexts)
    chunk_alone = mixed_step_s(model, gpu, [(new, cached)], [])
    decode_alone = decode_step_s(model, gpu, contexts)
    assert max(chunk_alone, decode_alone) * (1 - 1e-12) <= mixed <= (chunk_alone + decode_alone) * (1 + 1e-12)
    assert chunk_alone >= prefill_s(model, gpu, new, cached) * (1 - 1e-12)


@LAW
@given(link=links, size=st.floats(0, 1e12), more=st.floats(0, 1e12), copies=st.integers(1, 5000))
def test_transfers_are_never_negative_and_grow(link, size, more, copies):  # case F03
    time = transfer_s(size, link, copies)
    assert 0 <= time <= transfer_s(size + more, link, copies) <= transfer_s(size + more, link, copies + 1)
    if size:
        assert time >= size / link.bytes_per_s + copies * link.overhead_s


@LAW
@given(link=links, first=st.floats(1, 1e12), second=st.floats(1, 1e12), copies=st.integers(1, 100))
def test_two_transfers_on_one_link_share_it(link, first, second, copies):  # case F03
    # side by side the link moves no more bytes per second than one after the other
    both = max(transfer_s(first, link, copies, sharing=2), transfer_s(second, link, copies, sharing=2))
    assert both >= (first + second) / link.effective_bytes_per_s * (1 - 1e-12)
    # one after the other, the copies and the bytes add up
    in_a_row = transfer_s(first, link, copies) + transfer_s(second, link, copies)
    assert in_a_row == pytest.approx(transfer_s(first + second, link, 2 * copies))
    alone = transfer_s(first, link, copies) - copies * link.overhead_s
    assert transfer_s(first, link, copies, sharing=2) - copies * link.overhead_s == pytest.approx(
        2 * alone, abs=1e-12
    )


@LAW
@given(model=models, gpu=gpus, n=st.integers(1, 30_000))
def test_above_the_break_even_bandwidth_loading_wins_and_below_it_recomputing(model, gpu, n):
    rate = break_even_bytes_per_s(model, gpu, n)
    size, recompute = model.shape.kv_bytes(n), recompute_s(model, gpu, n)
    assert (
        transfer_s(size, LinkSpec("faster", rate * 1.01))
        < recompute
        < transfer_s(size, LinkSpec("slower", rate * 0.99))
    )


def test_no_work_takes_no_time_beyond_the_fixed_term():
    assert transfer_s(0, get_link("net-3g"), copies=7) == 0
    assert decode_step_s(OPT, A100, []) == 0 and mixed_step_s(OPT, A100, [], []) == 0
    assert prefill_s(OPT, A100, 0) == A100.fixed_s


def test_windowed_layers_cap_attention_and_reading():
    gemma = get_model("gemma-3-27b")
    # 10 of 62 layers see all of 10,000 tokens, 52 at most 1,024: 10^8 / 2 and 1024 * (10^4 - 512) pairs
    expected = 2 * 32 * 256 * (10 * 1e8 / 2 + 52 * 1024 * (10_000 - 512))
    assert attention_flops(gemma, 10_000) == expected
    near, far = (decode_step_s(gemma, H100, [n]) for n in (20_000, 20_001))
    assert far - near == pytest.approx(10 * 16 * 256 * 2 / H100.bytes_per_s, rel=1e-6)


def test_mla_attends_with_its_own_head_sizes():
    # 61 layers, 128 heads, 128 + 64 for scores and 128 for values
    assert attention_flops(get_model("deepseek-v3"), 1000) == 2 * 61 * 128 * (192 + 128) * 1000**2 / 2


def test_mla_reads_its_whole_latent_on_every_gpu():
    model, h200 = get_model("deepseek-v3"), get_gpu("h200")
    one_more = decode_step_s(model, h200, [5001], num_gpus=8) - decode_step_s(model, h200, [5000], num_gpus=8)
    assert one_more == pytest.approx(70_272 / h200.bytes_per_s, rel=1e-6)


def test_few_tokens_do_not_read_every_expert():
    model = get_model("deepseek-v3")
    assert weights_read_bytes(model, 1) == pytest.approx(model.active_params)  # fp8: one byte each
    assert weights_read_bytes(model, 10_000) == model.weight_bytes
    assert weights_read_bytes(OPT, 1) == weights_read_bytes(OPT, 999) == OPT.weight_bytes


@pytest.mark.parametrize(
    "call, field",
    [
        (lambda: prefill_s(OPT, A100, -1), "new_tokens|tokens"),
        (lambda: prefill_s(OPT, A100, 1.5), "tokens"),
        (lambda: prefill_s(OPT, A100, 1, True), "cached_tokens"),
        (lambda: prefill_s(OPT, A100, 1, num_gpus=0), "num_gpus"),
        (lambda: decode_step_s(OPT, A100, [-1]), "num_tokens"),
        (lambda: mixed_step_s(OPT, A100, [("512", 0)], []), "new_tokens"),
        (lambda: decode_step_s(OPT, A100, [1], "fp7"), "kv_dtype"),
        (lambda: transfer_s(-1, get_link("net-3g")), "num_bytes"),
        (lambda: transfer_s(math.nan, get_link("net-3g")), "num_bytes"),
        (lambda: transfer_s(1, get_link("net-3g"), copies=0), "copies"),
        (lambda: transfer_s(1, get_link("net-3g"), sharing=0), "sharing"),
        (lambda: swap_s(OPT, get_link("net-3g"), 10, 0), "block_size"),
        (lambda: break_even_bytes_per_s(OPT, A100, 0), "num_tokens"),
        (lambda: decode_tokens_per_s(OPT, A100, 0, 10), "requests"),
        (
            lambda: prefill_s(ModelSpec.from_hf_config({"model_type": "mixtral"}), A100, 10),
            "layer_matmul_params: not known",
        ),
    ],
)
def test_bad_arguments_are_named(call, field):
    with pytest.raises(ConfigError, match=field):
        call()


# --- the lectures' numbers ----------------------------------------------------------------------------------


def ms(seconds: float) -> float:
    return 1000 * seconds


def test_recompute_of_opt_13b():  # L7.recompute.143.77: 142.77 ms + a fixed 1.00 ms
    assert round(ms(recompute_s(OPT, A100, 1024)), 2) == 143.77
    assert round(ms(recompute_s(OPT, A100, 1024) - A100.fixed_s), 2) == 142.77


@pytest.mark.parametrize(
    "model, n, expected",
    [  # L9.recomp188, L9.chat20
        ("llama-3-8b", 8000, 188),
        ("llama-3-8b", 11_400, 282),
        ("qwen2.5-14b", 8000, 351),
    ],
)
def test_recompute_on_an_h100(model, n, expected):
    assert round(ms(recompute_s(get_model(model), H100, n))) == expected


def test_recompute_on_an_a40():  # L9.a40.151, within 3%
    assert recompute_s(get_model("mistral-7b"), get_gpu("a40"), 9600) == pytest.approx(1.51, rel=0.03)


def test_flops_and_time_per_token_of_llama_2_70b():
    assert round(linear_flops(LLAMA2_70B, 1) / 1e9) == 137  # L7.flops137
    rate = 8 * A800.flops_per_s
    assert 1e6 * 137e9 / rate == pytest.approx(91, rel=0.006)  # L7.recomp70
    per_token = (recompute_s(LLAMA2_70B, A800, 8700, num_gpus=8) - A800.fixed_s) / 8700
    assert 98e-6 <= per_token <= 100e-6  # L7.recomp70.99us


def test_layerwise_prefill_of_a_half_cached_request():  # L7.layerwise, within 2%
    assert ms(prefill_s(LLAMA2_70B, A800, 8704, num_gpus=8)) == pytest.approx(870, rel=0.02)
    assert ms(prefill_s(LLAMA2_70B, A800, 4352, 4352, num_gpus=8)) == pytest.approx(454, rel=0.02)
    ssd = get_link("nvme-4x6gb")
    assert ms(transfer_s(LLAMA2_70B.shape.kv_bytes(4352), ssd)) == pytest.approx(60, rel=0.02)


@pytest.mark.parametrize(
    "block_size, out_and_in_ms",
    [  # L7.swap.table
        (1, 1705.51),
        (2, 886.309),
        (4, 476.709),
        (8, 271.909),
        (16, 169.509),
        (32, 118.309),
        (64, 92.7089),
        (128, 79.9089),
        (256, 73.5089),
    ],
)
def test_swapping_opt_13b(block_size, out_and_in_ms):
    assert ms(2 * swap_s(OPT, get_link("pcie-lecture7"), 1024, block_size)) == pytest.approx(
        out_and_in_ms, rel=1e-5
    )


def test_swap_and_recompute_cross_between_blocks_of_16_and_32():  # L7.swap.cross, L7.swap.ex6
    link, recompute = get_link("pcie-lecture7"), recompute_s(OPT, A100, 1024)
    assert 2 * swap_s(OPT, link, 1024, 32) < recompute < 2 * swap_s(OPT, link, 1024, 16)
    assert 1e6 * transfer_s(327_680, link) == pytest.approx(23.1, rel=0.002)


def test_a_swap_moves_whole_blocks_and_one_tensor_where_there_is_one():
    link = LinkSpec("l", 1e9, overhead_s=1e-5)
    assert swap_s(OPT, link, 17, 16) == swap_s(OPT, link, 32, 16)
    # 61 latents per block, not 122 tensors
    assert swap_s(get_model("deepseek-v3"), link, 16, 16) == pytest.approx(61 * 1e-5 + 16 * 70_272 / 1e9)


def test_reading_back_is_faster_than_recomputing_llama_2_70b():  # L7.read.rdma, L7.read.ssd
    size = LLAMA2_70B.shape.kv_bytes(1)
    rdma, ssd = get_link("net-800g"), get_link("nvme-6gb")
    assert 1e6 * size / rdma.bytes_per_s == pytest.approx(3.3, rel=0.01)
    assert 1e6 * size / ssd.effective_bytes_per_s == pytest.approx(54.6, rel=0.001)


def test_the_ssd_tier_helps_70b_and_hurts_opt_13b():  # L7.ssd7x: 7x +- 0.5, and below 1
    def recompute_over_load(model):
        recompute = recompute_s(model, A800, 8700, num_gpus=8) - A800.fixed_s
        return recompute / (model.shape.kv_bytes(8700) / get_link("nvme-4x6gb").effective_bytes_per_s)

    assert 6.5 <= recompute_over_load(LLAMA2_70B) <= 7.5 and recompute_over_load(OPT) < 1


@pytest.mark.parametrize(
    "link, times_faster",
    [  # L9.load.cpu (3%), L9.load.3gb: 18x slower (4%)
        ("pcie5-x16", 9),
        ("net-400g", 7),
        ("nvme-7gb", 1),
        ("net-3g", 1 / 18),
    ],
)
def test_loading_8000_tokens_of_llama_3_8b(link, times_faster):
    rate = get_link(link).effective_bytes_per_s
    ratio = recompute_s(LLAMA3_8B, H100, 8000) / (LLAMA3_8B.shape.kv_bytes(8000) / rate)
    assert ratio == pytest.approx(times_faster, rel=0.04)


def test_break_even_bandwidths():
    assert break_even_bytes_per_s(LLAMA3_8B, H100, 8000) / 1e9 == pytest.approx(6, rel=0.08)  # L9.breakeven8b
    assert break_even_bytes_per_s(get_model("qwen2.5-14b"), H100, 8000) / 1e9 == pytest.approx(
        4.5, rel=0.006
    )  # L9.breakeven.qwen
    assert break_even_bytes_per_s(LLAMA3_70B, H100, 8000) / 1e9 == pytest.approx(
        1.6, rel=0.03
    )  # L9.breakeven70
    # the same exercise with 70 KB per token instead of 192 KiB
    qwen_us = recompute_s(get_model("qwen2.5-14b"), H100, 8000) / 8000
    assert 70_272 / qwen_us / 1e9 == pytest.approx(1.6, rel=0.006)


def test_70b_against_8b():  # L9.70b.ratio: compute about 9x, KV 2.5x
    assert LLAMA3_70B.active_params / LLAMA3_8B.active_params == pytest.approx(9, rel=0.035)
    assert LLAMA3_70B.shape.kv_bytes_per_token() / LLAMA3_8B.shape.kv_bytes_per_token() == 2.5


def test_a_gibibyte_over_400_gigabits():  # case F02
    link = get_link("net-400g")
    assert round(2**30 / link.bytes_per_s, 5) == 0.02147
    assert transfer_s(2**30, link) > 2**30 / link.bytes_per_s


def test_a_decode_step_hardly_slows_with_the_batch():
    # pedagogy.md, primer 2: from 1 to 16 sequences of 500 tokens, about 1.2 times as long
    assert decode_step_s(OPT, A100, [500] * 16) / decode_step_s(OPT, A100, [500]) == pytest.approx(
        1.2, abs=0.05
    )


def test_throughput_rises_with_the_requests_held_up_to_the_wall():
    wall = requests_held(OPT, A100, 500)
    rates = [decode_tokens_per_s(OPT, A100, n, 500) for n in range(1, wall + 1)]
    assert wall == 25 and rates == sorted(rates)  # 12,596 slots / 500
    assert requests_held(OPT, A100, 500, "fp8") == 50
