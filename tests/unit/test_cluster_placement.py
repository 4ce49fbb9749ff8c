"""The placement search: its formulas by hand, the search against brute force, and what DistServe concludes."""

import math
from dataclasses import replace

import pytest

from kvlib.cluster import Machine, Workload, best_placement, decode_rate, example_machine, placements, prefill_rate
from kvlib.cost import decode_step_s, prefill_s, transfer_s
from kvlib.errors import ConfigError
from kvlib.specs import get_gpu, get_link, get_model

WORK = Workload(512, 64, ttft_slo_s=0.4, tbt_slo_s=0.04)
SMALL = example_machine()
LARGE = Machine(
    get_model("llama-2-70b"), get_gpu("a100-80gb"), 2, 8, get_link("nvlink3"), get_link("net-25g"),
)


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (1, 2), (4, 2)])
def test_prefill_rate_meets_the_objective_exactly(tp, pp):
    """Put the rate back into the M/D/1 formula: queue + prefill + transfer is the objective."""
    rate = prefill_rate(SMALL, WORK, tp, pp)
    alone = prefill_s(SMALL.model, SMALL.gpu, 512, num_gpus=tp) / 0.85 ** math.log2(tp)
    every = alone / pp
    sent = transfer_s(512 * 819_200, SMALL.inside)
    waiting = rate * every**2 / (2 * (1 - rate * every))
    assert rate * every < 1
    assert waiting + alone + sent == pytest.approx(0.4, rel=1e-9)


def test_decode_rate_by_hand():
    # The largest batch whose step stays within 40 ms, at a context of 512 + 32 tokens; each request takes 63 steps.
    def step_s(n):
        return decode_step_s(SMALL.model, SMALL.gpu, [544] * n)

    slots = math.floor((0.9 * 80e9 - SMALL.model.weight_bytes) / 819_200)
    batch = max(n for n in range(1, slots // 576 + 1) if step_s(n) <= 0.04)
    assert decode_rate(SMALL, WORK) == pytest.approx(batch / (63 * step_s(batch)), rel=1e-12)
    assert SMALL.kv_slots(1, 1) == slots


def test_a_slow_link_is_a_limit():
    # 419 MB over 25 Gb/s at 80 %: 2.5 GB/s, 168 ms each, so under 6 requests/s whatever the GPUs do.
    strict = prefill_rate(LARGE, replace(WORK, ttft_slo_s=2.0), 8, 4, shares_node=False)
    sent = transfer_s(LARGE.model.shape.kv_bytes(512), LARGE.between)
    assert strict <= 1 / sent * (1 + 1e-12)
    slow = replace(SMALL, between=get_link("net-3g"))
    assert prefill_rate(slow, WORK, shares_node=False) == 0.0  # 419 MB at 0.3 GB/s take longer than the objective


def test_weights_must_fit():
    assert LARGE.kv_slots(1, 1) == 0 and LARGE.kv_slots(2, 1) > 0
    assert prefill_rate(LARGE, WORK, 1, 1) == decode_rate(LARGE, WORK, 1, 1) == 0.0


@pytest.mark.parametrize("shares_node", [True, False])
def test_every_placement_fits_the_cluster_and_the_best_is_best(shares_node):
    work = replace(WORK, tbt_slo_s=0.05)
    found = list(placements(LARGE, work, shares_node))
    best = best_placement(LARGE, work, shares_node)
    assert best in found and all(p.goodput_per_s <= best.goodput_per_s for p in found)
    for p in found:
        assert p.num_gpus <= 16 and p.prefill.num_gpus <= 8 and p.decode.num_gpus <= 8
        assert p.goodput_per_s == min(
            p.prefill_instances * p.prefill.requests_per_s, p.decode_instances * p.decode.requests_per_s,
        )
        if shares_node:
            per_node = p.prefill_instances // 2 * p.prefill.num_gpus + p.decode_instances // 2 * p.decode.num_gpus
            assert per_node <= 8
        else:
            assert p.prefill_instances * p.prefill.num_gpus <= 8 and p.decode_instances * p.decode.num_gpus <= 8


def test_a_strict_first_token_wants_tensor_and_a_loose_one_pipeline_parallelism():
    """DistServe, section 3.1: TP shortens a prefill, PP only makes room for more of them."""
    cuts = {}
    for ttft_s in (0.2, 1.0):
        prefill = best_placement(LARGE, Workload(512, 64, ttft_s, 0.05)).prefill
        cuts[ttft_s] = (prefill.tp, prefill.pp)
    assert cuts == {0.2: (4, 1), 1.0: (1, 2)}


def test_looser_objectives_never_serve_less():
    for shares_node in (True, False):
        by_ttft = [
            best_placement(LARGE, Workload(512, 64, t, 0.05), shares_node).goodput_per_s for t in (
                0.25, 0.5, 1.0, 2.0,
            )
        ]
        assert by_ttft == sorted(by_ttft)
    rates = [decode_rate(SMALL, replace(WORK, tbt_slo_s=t)) for t in (0.01, 0.02, 0.04)]
    assert rates == sorted(rates)


@pytest.mark.parametrize(("make", "words"), [
    (lambda: Workload(0, 64, 1.0, 1.0), "num_input_tokens: got 0"),
    (lambda: Workload(5, 1, 1.0, 1.0), "num_output_tokens: got 1"),
    (lambda: Workload(5, 2, 0, 1.0), "ttft_slo_s: got 0"),
    (lambda: Workload(5, 2, 1.0, math.nan), "tbt_slo_s: got nan"),
    (lambda: replace(SMALL, nodes=0), "nodes: got 0"),
    (lambda: replace(SMALL, tp_efficiency=1.5), "tp_efficiency: got 1.5"),
    (lambda: best_placement(SMALL, Workload(512, 64, 0.01, 0.04)), "some placement meets"),
])
def test_bad_input_is_named(make, words):
    with pytest.raises(ConfigError) as refusal:
        make()
    assert words in str(refusal.value)
