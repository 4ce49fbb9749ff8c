"""The planner: its parts against the rooms they come from, its verdicts against hand calculations."""

import itertools
import math
from dataclasses import replace

import pytest

from kvlib.cost import decode_tokens_per_s, prefill_s, transfer_s
from kvlib.errors import ConfigError
from kvlib.planner import (
    LEVERS,
    LIST_PRICES,
    Price,
    Setting,
    Store,
    calls_to_pay,
    demand_of,
    enough_bytes,
    flips,
    kept_formats,
    outcome,
    plan,
    returning,
    sent_formats,
)
from kvlib.planner.choose import WORTH, is_better
from kvlib.planner.demand import BLOCK_SIZES
from kvlib.planner.flips import ASSUMPTIONS, MEMORY, MOST, PREFILL, holds, verdicts
from kvlib.planner.formats import smallest
from kvlib.planner.levers import available
from kvlib.planner.lines import lines
from kvlib.planner.outcome import overlapped_s
from kvlib.prefix import replay
from kvlib.specs import GPUS, MODELS, LinkSpec, get_gpu, get_link, get_model, kv_slots
from kvlib.tiers import host_link, overlap_layers
from kvlib.workloads import prefix_trace

LLAMA, H100 = get_model("llama-3-8b"), get_gpu("h100-80gb")
HOST = Store("host", 256e9, host_link(H100))
SSD = Store("ssd", 4e12, get_link("nvme-7gb"))
POOL = Store("network", 10e12, get_link("net-10g"))
EVERYTHING = (HOST, SSD, POOL)
DOCUMENTS = demand_of(prefix_trace("documents", n=400, rate=2.0, seed=3, block_size=64))
LONG = returning(prompt_tokens=30_000, new_tokens=100, output_tokens=100, contexts=40)


def setting(demand=DOCUMENTS, load_per_s=1.0, stores=EVERYTHING, **other):
    return Setting(**{"model": LLAMA, "gpu": H100, **other}, demand=demand, load_per_s=load_per_s, stores=stores)


# Demand.

@pytest.mark.parametrize("kind", ["chat", "documents", "rag", "agents"])
def test_hits_are_those_of_a_replay(kind):
    """One pass of stack distances finds what an LRU cache of that size finds, full blocks only."""
    trace = prefix_trace(kind, n=300, rate=2.0, seed=1, block_size=64)
    demand = demand_of(trace)
    whole = tuple(
        replace(r, block_ids=r.block_ids[: (r.num_input_tokens - 1) // 64]) for r in trace.requests
    )
    for blocks in (2**14, 2**20):           # a capacity of the grid, and one that holds everything
        found = replay(replace(trace, requests=whole), blocks).prefix_hits * 64
        tokens = sum(r.num_input_tokens for r in trace.requests)
        # Leaving out partial blocks moves other blocks up in the LRU list a little.
        assert demand.hit_ratio(blocks * 64, 64) == pytest.approx(found / tokens, abs=0.01)


def test_cells_keep_the_means_of_the_trace():
    trace = prefix_trace("rag", n=500, rate=2.0, seed=2, block_size=64)
    demand, n = demand_of(trace), len(trace.requests)
    assert demand.input_tokens == pytest.approx(sum(r.num_input_tokens for r in trace.requests) / n, rel=1e-3)
    assert demand.output_tokens == pytest.approx(sum(r.num_output_tokens for r in trace.requests) / n, rel=0.01)
    assert math.fsum(cell.share for cell in demand.cells) == pytest.approx(1)


@pytest.mark.parametrize("kind", ["chat", "documents", "rag", "agents"])
def test_a_dozen_cells_cost_what_all_requests_cost(kind):
    """Mean prefill time is exact for full attention (to rounding); its mean square, which queues ask for, nearly."""
    trace = prefix_trace(kind, n=400, rate=2.0, seed=3, block_size=16)
    demand, seen, exact = demand_of(trace), set(), []
    for r in trace.requests:
        full = r.block_ids[: (r.num_input_tokens - 1) // 16]
        found = 16 * next((i for i, block in enumerate(full) if block not in seen), len(full))
        seen.update(r.block_ids)
        exact.append(prefill_s(LLAMA, H100, r.num_input_tokens - found, found))
    times = [prefill_s(LLAMA, H100, *one) for one in demand.prefills(demand.found(math.inf, 16), math.inf)]
    weighed = [(cell.share, t, u) for cell, t, u in zip(demand.cells, times, demand.unevenness(math.inf))]
    mean, square = math.fsum(s * t for s, t, _ in weighed), math.fsum(s * t * t * u for s, t, u in weighed)
    assert mean == pytest.approx(math.fsum(exact) / len(exact), rel=0.01)
    assert square == pytest.approx(math.fsum(t * t for t in exact) / len(exact), rel=0.35)


def test_larger_caches_find_no_less_and_larger_blocks_no_more():
    sizes = [2**p for p in range(8, 28)]
    for block in BLOCK_SIZES:
        ratios = [DOCUMENTS.hit_ratio(tokens, block) for tokens in sizes]
        assert ratios == sorted(ratios)
    by_block = [DOCUMENTS.hit_ratio(2**22, block) for block in BLOCK_SIZES]
    assert by_block == sorted(by_block, reverse=True)


def test_a_trace_without_prefix_ids_is_refused():
    from kvlib.workloads import Trace, sharegpt_like

    with pytest.raises(ConfigError, match="block_ids"):
        demand_of(Trace("t", "azure", sharegpt_like(5, 1.0, 0), None))


# Outcomes, by hand.

def test_no_lever_is_a_plain_prefill():
    asks = returning(8000, 100, 100)
    assert outcome(setting(asks), frozenset()).ttft_s == pytest.approx(prefill_s(LLAMA, H100, 8100), rel=1e-12)


def test_one_tier_is_one_transfer_and_one_prefill():
    """30,000 tokens in whole blocks of 16 behind a copy kernel: 50 GB/s (chapter 9), then 100 tokens."""
    got = outcome(setting(LONG, stores=(HOST,)), frozenset({"prefix", "host", "copies"}))
    load = transfer_s(LLAMA.shape.kv_bytes(30_000), LinkSpec("kernel", 50e9))
    compute = prefill_s(LLAMA, H100, 100, 30_000)
    # Two thread blocks slow prefill by 5 % while they run (Strata, figure 5), here all the time.
    assert got.ttft_s == pytest.approx(load + 1.05 * compute, rel=1e-3)
    assert got.hit_ratio == pytest.approx(30_000 / 30_100)


def test_overlap_is_that_of_chapter_8():
    for load, compute in itertools.product((0.0, 0.01, 0.5), (0.02, 0.3)):
        run = overlap_layers([load / 32] * 32, [compute / 32] * 32, [0.0] * 32)
        assert overlapped_s(load, compute, 32) == pytest.approx(run.prefill_s, rel=1e-12)


def test_the_network_is_charged_in_bits():
    """10 Gb/s are 1.25 GB/s, of which 80 % arrive."""
    got = outcome(setting(LONG, stores=(POOL,)), frozenset({"prefix", "network", "copies"}), 512)
    rate = got.tiers[1].bytes_per_s
    assert rate == pytest.approx(1e9, rel=0.01)


def test_a_bitstream_makes_a_store_larger_and_a_load_shorter_by_its_bits():
    plain, coded = (
        outcome(setting(LONG, stores=(SSD,)), frozenset({"prefix", "ssd", "copies", *more}), 512)
        for more in ((), ("coded",))
    )
    share = smallest(sent_formats(), 0.003).bits / 16
    assert plain.tiers[1].tokens / coded.tiers[1].tokens == pytest.approx(share, rel=1e-3)
    # In blocks of 512 the 80 us of each read do not show: both loads run at 80 % of 7 GB/s.
    assert coded.load_s / plain.load_s == pytest.approx(share, rel=1e-3)


def test_fewer_bits_hold_more_requests():
    bare = setting(LONG, stores=())
    full, half = (outcome(bare, frozenset({"prefix", *more})) for more in ((), ("quantized",)))
    assert full.held == kv_slots(LLAMA, H100) // 30_200
    assert half.held == kv_slots(LLAMA, H100, "int8") // 30_200


def test_littles_law_fills_the_batch():
    """A batch that just keeps up: one request fewer would not."""
    from kvlib.cost import decode_tokens_per_s

    asks = returning(2000, 200, 300, contexts=5)
    got = outcome(setting(asks, load_per_s=8.0, stores=()), frozenset({"prefix"}))
    needed = 8.0 * 300 / (1 - got.busy)
    rates = [decode_tokens_per_s(LLAMA, H100, n, 2350) for n in (got.running - 1, got.running)]
    assert rates[0] < needed <= rates[1]


def test_waiting_is_pollaczek_khinchine_and_ends_at_overload():
    asks = returning(8000, 100, 100)
    got = outcome(setting(asks, load_per_s=3.0), frozenset())
    service = prefill_s(LLAMA, H100, 8100)          # all alike: M/D/1, as DistServe has it
    assert got.busy == pytest.approx(3.0 * service)
    assert got.wait_s == pytest.approx(3.0 * service**2 / (2 * (1 - 3.0 * service)))
    over = outcome(setting(asks, load_per_s=6.0), frozenset())
    assert over.busy > 1 and over.wait_s is None and over.running is None and not over.serves


def test_weights_that_leave_no_room_are_refused():
    with pytest.raises(ConfigError, match="llama-3-70b"):
        plan(setting(model=get_model("llama-3-70b")))


# Plans.

def test_short_reuse_needs_no_tier():
    asks = returning(500, 100, 100, contexts=100)           # 50,000 tokens: an eighth of the slots
    made = plan(setting(asks))
    assert made.levers == {"prefix"} and made.outcome.tiers[0].hit_share > 0.8


def test_nothing_that_returns_needs_nothing():
    demand = DOCUMENTS.with_hits(0)
    assert plan(setting(demand)).levers == frozenset()


def test_a_link_below_break_even_is_left_out_and_one_above_is_used():
    """30,000 tokens break even at about 4 GB/s: 1 GB/s loses even where loading hides behind computing."""
    for gigabits, used in ((10, False), (400, True)):
        pool = Store("network", 10e12, LinkSpec("net", gigabits * 1e9 / 8, 5e-6, 0.8))
        assert ("network" in plan(setting(LONG, stores=(pool,))).levers) is used


def test_every_lever_of_a_plan_is_missed_and_no_other_one_helps():
    for demand, load in itertools.product((DOCUMENTS, LONG), (0.5, 4.0)):
        made = plan(setting(demand, load))
        for lever in available(made.setting):
            assert holds(made, lever.key, made.setting) is (lever.key in made.levers), lever.key


def test_the_waterfall_adds_up():
    made = plan(setting(stores=(replace(HOST, num_bytes=32e9), SSD, POOL)))
    used = [step for step in made.steps if step.used]
    assert used[0].before_s == made.no_cache.ttft_s and used[-1].after_s == made.outcome.ttft_s
    assert all(a.after_s == b.before_s for a, b in zip(used, used[1:]))
    assert {s.lever.key for s in used} - {"blocks"} == made.levers


def test_memory_decides_where_time_does_not():
    """A lever is worth having when the load fits only with it, whatever it does to the first token."""
    fits, not_yet = (outcome(setting(returning(2000, 200, 300), load), frozenset()) for load in (1.0, 30.0))
    assert fits.serves and not not_yet.serves and is_better(fits, not_yet)
    slower = replace(fits, ttft_s=fits.ttft_s * (1 - WORTH / 2))
    assert not is_better(slower, fits)


def test_cpu_copies_ask_for_larger_blocks():
    """At block 16 the CPU reaches 8 of 64 GB/s (chapter 9); a kernel does not care."""
    one = setting(LONG, stores=(HOST,))
    assert plan(replace(one, copy_kernel=False)).block_size > plan(one).block_size


@pytest.mark.parametrize("name", MODELS)
def test_every_model_gets_a_plan_or_a_reason(name):
    for gpu, num_gpus in itertools.product(("h100-80gb", "b200", "l4"), (1, 8)):
        one = setting(LONG, model=get_model(name), gpu=GPUS[gpu], num_gpus=num_gpus)
        try:
            made = plan(one)
        except ConfigError as refusal:
            assert "got" in str(refusal) or "known" in str(refusal)
        else:
            assert 0 < made.outcome.ttft_s <= made.no_cache.ttft_s * 1.001
            assert len(lines(made)) == 12


def test_enough_is_enough_and_half_of_it_is_not():
    made = plan(setting(LONG, stores=(replace(HOST, num_bytes=1e12),)))
    enough = enough_bytes(made, "host")
    # 40 contexts of 30,000 tokens at 64 KiB each in INT8, less what GPU memory keeps beside one running request.
    assert enough < 40 * LLAMA.shape.kv_bytes(30_000, "int8")
    for share, does in ((1.0, True), (0.5, False)):
        less = setting(LONG, stores=(replace(HOST, num_bytes=share * enough),))
        assert is_better(made.outcome, outcome(less, made.levers, made.block_size)) is not does


# Flips.

def test_a_flip_is_where_the_verdict_turns():
    made = plan(setting(LONG, 0.5, (POOL,)))
    turning = {flip.assumption: flip.factor for flip in flips(made, "network")}
    today = holds(made, "network", made.setting)
    factor = turning["link bandwidth"]
    change = ASSUMPTIONS["link bandwidth"]
    assert holds(made, "network", change(made.setting, factor)) is not today
    assert holds(made, "network", change(made.setting, factor / 1.05)) is today
    # Both assumptions enter as their ratio: bytes per second against FLOPs per second.
    assert turning["prefill speed"] == pytest.approx(1 / factor, rel=0.1)


def test_memory_turns_with_the_length_of_the_outputs():
    made = plan(setting(returning(2000, 200, 300, contexts=20), 4.0, ()))
    turning = {flip.assumption: flip.factor for flip in flips(made, MEMORY)}
    assert 1 < turning["output length"] <= MOST and turning["link bandwidth"] is None


def test_prefill_turns_with_its_speed():
    """Without reuse, prefill keeps up until it is as slow as the load allows: factor = busy share."""
    made = plan(setting(DOCUMENTS.with_hits(0), 1.0, ()))
    turning = {flip.assumption: flip.factor for flip in flips(made, PREFILL)}
    assert turning["prefill speed"] == pytest.approx(made.outcome.busy, rel=0.03)


def test_an_unknown_verdict_is_refused():
    made = plan(setting(LONG, stores=()))
    assert "ssd" not in verdicts(made.setting)
    with pytest.raises(ConfigError, match="ssd"):
        flips(made, "ssd")


# Formats and prices.

def test_the_two_families_never_mix():
    assert all(f.dtype is not None for f in kept_formats()) and all(f.dtype is None for f in sent_formats())
    for form in kept_formats():
        # 1,024 numbers, a multiple of every group: the dtype is as large as the measurement says.
        assert form.dtype.bytes_for(1024) * 8 / 1024 == pytest.approx(form.bits)


def test_the_smallest_format_obeys_the_limit():
    for limit in (0.001, 0.003, 0.01, 0.05):
        assert smallest(kept_formats(), limit).kl <= limit and smallest(sent_formats(), limit).kl <= limit
    with pytest.raises(ConfigError, match="max_kl"):
        smallest(sent_formats(), 1e-9)


def test_calls_to_pay_is_the_first_cheaper_call():
    for write, read, late in itertools.product((1.0, 1.25, 2.0), (0.02, 0.1, 0.5), (0.0, 0.3, 0.6)):
        price = Price("p", write, read, "", "")
        first = calls_to_pay(price, late)
        cheaper = [n for n in range(1, 400) if price.cost(n, late) < n - 1e-9]
        assert first == (cheaper[0] if cheaper else None)


def test_list_prices_say_where_they_stood():
    assert all(price.source and "2026" in price.source for price in LIST_PRICES)


def test_bad_settings_are_refused_by_name():
    for changes, field in (
        ({"load_per_s": 0}, "load_per_s"), ({"num_gpus": 0}, "num_gpus"), ({"max_kl": -1}, "max_kl"),
        ({"stores": (HOST, HOST)}, "stores"),
    ):
        with pytest.raises(ConfigError, match=field):
            setting(**changes)
    for bad in (("tape", 1e9), ("ssd", 0)):
        with pytest.raises(ConfigError):
            Store(*bad, get_link("nvme-7gb"))


def test_levers_have_one_name_each():
    assert len({lever.key for lever in LEVERS}) == len(LEVERS) == len({lever.name for lever in LEVERS})


# Reasons and refusals.

def reasons(asks, load_per_s, **other):
    made = plan(setting(asks, load_per_s, stores=(), **other))
    return made, {line.topic: f"{line.choice}: {line.because}" for line in lines(made)}


def test_a_cache_without_room_is_not_called_useless():
    """40 contexts of 59,000 tokens are 309 GB of Llama-3-8B's KV."""
    made, said = reasons(returning(60_000, 1000, 10, contexts=40), 0.05)
    assert "prefix" not in made.levers and made.setting.demand.hit_ratio(math.inf) > 0.9
    assert "98 % of all tokens return, but too late" in said["gpu"]


def test_reasons_do_not_contradict_one_another():
    made, busy = reasons(LONG, 50.0)
    assert made.outcome.busy >= 1 and "no time to decode" in busy["memory"] and "turn requests away" in busy["queue"]
    made, full = reasons(returning(1000, 100, 2000), 20.0, gpu=get_gpu("l40s"))
    assert not made.outcome.fits and made.outcome.busy < 1
    assert "too few" in full["memory"] and "admit everything" not in full["queue"]


@pytest.mark.parametrize("output_tokens", [50, 300, 900])
def test_running_is_the_smallest_batch_that_keeps_up(output_tokens):
    """Tried one by one up to twice what fits; None is said only if none of them does."""
    here = setting(returning(2000, 100, output_tokens), 3.0, stores=(), gpu=get_gpu("l40s"))
    got = outcome(here, frozenset())
    context, needed = round(here.demand.input_tokens + output_tokens / 2), 3.0 * output_tokens / (1 - got.busy)
    enough = [
        batch for batch in range(1, 2 * got.held + 1)
        if decode_tokens_per_s(LLAMA, here.gpu, batch, context) >= needed
    ]
    assert got.running == (min(enough) if enough else None)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: outcome(setting(), {"prefx"}), "levers: got 'prefx'"),
        (lambda: outcome(setting(), "prefix"), "levers: got 'prefix', expected a set"),
        (lambda: outcome(setting(), frozenset(), 15), "block_size: got 15"),
        (lambda: DOCUMENTS.found(1, 15), "block_size: got 15"),
        (lambda: demand_of(None), "trace: got None"),
        (lambda: enough_bytes(plan(setting(LONG, stores=())), "ssd"), "kind: got 'ssd'"),
        (lambda: setting(gpu="h100-80gb"), "gpu: got 'h100-80gb', expected a GpuSpec"),
        (lambda: setting(None), "demand: got None"),
        (lambda: setting(stores=("host",)), r"stores\[0\]: got 'host'"),
        (lambda: setting(copy_kernel="no"), "copy_kernel: got 'no'"),
        (lambda: Store("host", 1e9, "pcie5-x16"), "link: got 'pcie5-x16'"),
    ],
)
def test_what_is_no_setting_is_refused_by_name(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
