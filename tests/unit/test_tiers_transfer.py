"""Little's law for page copies, GPU-assisted copies, layouts and the measured companion."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.errors import ConfigError
from kvlib.specs import LinkSpec, get_link, get_model
from kvlib.tiers import (
    GpuCopies,
    Machine,
    PagePool,
    contiguous_copies,
    convert,
    copies_per_page,
    copy_bytes,
    effective_bandwidth,
    littles_law,
    measure_copies,
    moves,
    page_tokens_for_share,
)
from kvlib.tiers.measured import _numpy_ways, _torch_ways

LLAMA_8B = dict(kv_bytes_per_token=131072, layers=32)
laws = settings(derandomize=True, deadline=None, max_examples=60)

sizes = st.integers(min_value=1, max_value=4096)
layouts = st.sampled_from(["layer_first", "page_first"])
peaks = st.floats(min_value=1e8, max_value=1e12)
overheads = st.floats(min_value=0, max_value=1e-3)


# Laws


@laws
@given(page=sizes, layout=layouts, peak=peaks, overhead=overheads)
def test_bandwidth_lies_between_nothing_and_the_peak_and_rises_with_the_page(page, layout, peak, overhead):
    small = effective_bandwidth(page, link=peak, layout=layout, overhead_s=overhead, **LLAMA_8B)
    large = effective_bandwidth(2 * page, link=peak, layout=layout, overhead_s=overhead, **LLAMA_8B)
    assert 0 < small <= large <= peak


@laws
@given(page=sizes, peak=peaks, overhead=overheads)
def test_one_copy_a_page_is_never_slower_than_many(page, peak, overhead):
    by_layout = {
        layout: effective_bandwidth(page, link=peak, layout=layout, overhead_s=overhead, **LLAMA_8B)
        for layout in ("layer_first", "page_first")
    }
    assert by_layout["page_first"] >= by_layout["layer_first"]


@laws
@given(page=sizes, layout=layouts, peak=peaks, overhead=overheads, tensors=st.sampled_from([1, 2]))
def test_bandwidth_is_bytes_over_the_time_of_all_copies(page, layout, peak, overhead, tensors):
    # A page takes copies * overhead + bytes / peak (design.md, cost model), so its rate must be bytes over
    # that.
    copies = copies_per_page(32, layout, tensors)
    page_bytes = page * LLAMA_8B["kv_bytes_per_token"]
    expected = page_bytes / (copies * overhead + page_bytes / peak)
    got = effective_bandwidth(
        page, link=peak, layout=layout, overhead_s=overhead, tensors=tensors, **LLAMA_8B
    )
    assert math.isclose(got, expected, rel_tol=1e-9)


@laws
@given(share=st.floats(min_value=0.01, max_value=0.99), layout=layouts)
def test_page_for_a_share_is_the_smallest_that_reaches_it(share, layout):
    page = page_tokens_for_share(share, link="pcie5-x16", layout=layout, **LLAMA_8B)

    def reached(tokens):
        return effective_bandwidth(tokens, link="pcie5-x16", layout=layout, **LLAMA_8B) / 64e9

    assert reached(page) >= share * (1 - 1e-12)
    assert page == 1 or reached(page - 1) < share


@laws
@given(copies=st.integers(1, 4096), size=st.floats(1, 1e7), latency=st.floats(1e-9, 1e-3), peak=peaks)
def test_littles_law_is_capped_and_monotone(copies, size, latency, peak):
    rate = littles_law(copies, size, latency, peak)
    assert 0 < rate <= peak
    assert littles_law(copies + 1, size, latency, peak) >= rate


# Oracles


def test_page_32_uses_22_percent_of_pcie5():
    # L9.pcie22: S = 32 * 8 * 128 * 2 = 65,536 B; 65,536 / (3.6 us + 65,536 / 64e9) / 64e9 = 0.221453
    assert effective_bandwidth(32, 131072, 32, "pcie5-x16") / 64e9 == pytest.approx(0.221453, abs=1e-6)


def test_page_32_uses_under_5_percent_of_a_gh200():
    # L9.gh200: the same with 384 GB/s
    assert effective_bandwidth(32, 131072, 32, 384e9) / 384e9 == pytest.approx(0.0452617, abs=1e-7)


def test_page_1_uses_under_1_percent():
    # L9.page1: S = 2,048 B
    assert effective_bandwidth(1, 131072, 32, get_link("pcie5-x16")) / 64e9 == pytest.approx(
        0.00881057, abs=1e-8
    )


def test_copies_of_1_and_2_MB_reach_81_and_90_percent():
    # L9.pcie.75: 0.812744 and 0.8967. One layer, one tensor, 1 byte a token makes a page of S tokens a copy
    # of S bytes.
    shares = [effective_bandwidth(10**6 * mb, 1, 1, 64e9, tensors=1) / 64e9 for mb in (1, 2)]
    assert shares == pytest.approx([0.812744, 0.8967], abs=1e-6)


def test_page_first_page_of_32_reaches_95_percent():
    # pedagogy.md, chapter 9, exercise 2: one copy of 64 * 65,536 B = 4.19 MB
    assert effective_bandwidth(32, 131072, 32, "pcie5-x16", layout="page_first") / 64e9 == pytest.approx(
        0.948, abs=5e-4
    )


def test_a_link_six_times_faster_moves_small_pages_a_fifth_faster():
    # pedagogy.md, chapter 9, prediction: 384 * 0.0452617 / (64 * 0.221453) = 1.226
    fast, slow = (effective_bandwidth(32, 131072, 32, link) for link in ("gh200-host", "pcie5-x16"))
    assert fast / slow == pytest.approx(1.226, abs=1e-3)


def test_littles_law_cases_of_lecture_9():
    # L9.little.a, L9.little.bc; the third is 128 GB/s before the link caps it
    assert littles_law(1, 64e3, 4e-6, 64e9) == pytest.approx(16e9)
    assert littles_law(2, 64e3, 4e-6, 64e9) == pytest.approx(32e9)
    assert littles_law(1000, 128, 1e-6, 1e12) == pytest.approx(128e9)
    assert littles_law(1000, 128, 1e-6, 64e9) == 64e9


def test_an_mla_latent_is_one_tensor():
    # One pool per layer instead of two: half as many copies of twice the size.
    assert copies_per_page(61, tensors=1) == 61
    assert copy_bytes(32, 70_272, layers=61, tensors=1) == 32 * 70_272 / 61


def test_no_overhead_means_the_peak():
    assert effective_bandwidth(1, 131072, 32, 64e9, overhead_s=0.0) == pytest.approx(64e9)


# GPU-assisted copies


def test_two_thread_blocks_reach_50_gb_per_s():
    # P.strata: "~50 GB/s with 2x1024 threads, <5% prefill and ~10% decode interference"
    kernel = GpuCopies()
    assert (kernel.threads, kernel.bytes_per_s("pcie5-x16")) == (2048, pytest.approx(50e9))
    assert (kernel.prefill_factor, kernel.decode_factor) == (pytest.approx(1.05), pytest.approx(1.10))


def test_more_blocks_stop_helping_at_what_the_link_delivers():
    rates = [GpuCopies(blocks).bytes_per_s("pcie5-x16") for blocks in (1, 2, 3, 8)]
    assert rates == pytest.approx([25e9, 50e9, 51.2e9, 51.2e9])  # L9.bw.derate: 0.8 * 64 = 51.2


def test_page_size_matters_to_cpu_copies_only():
    def rate(io, page):
        return Machine(io=io, page_tokens=page).host_bytes_per_s

    assert rate("cpu", 1) < rate("cpu", 32) < rate("cpu", 512)
    assert rate("gpu", 1) == rate("gpu", 512)


def test_machine_loads_at_the_links_rate():
    # Qwen2.5-14B: 196,608 B a token (L9.breakeven.qwen); at 50 GB/s 3,932 ns. The SSD delivers 5.6 GB/s:
    # 35,109 ns.
    machine = Machine()
    assert machine.load_ns(1000) == 3_932_000
    assert machine.load_ns(0, ssd_tokens=1000) == 35_109_000
    assert machine.load_ns(0) == 0  # F03: nothing takes no time


def test_copy_kernel_slows_prefill_only_while_it_runs():
    machine = Machine()
    assert machine.slowed_ns(load_ns=0, compute_ns=1000) == 1000
    assert machine.slowed_ns(load_ns=400, compute_ns=1000) == 1020  # 5% of the 400 ns beside it
    assert machine.slowed_ns(load_ns=10**6, compute_ns=1000) == 1050
    assert Machine(io="cpu").slowed_ns(load_ns=400, compute_ns=1000) == 1000


# Layouts

pool_sizes = dict(num_pages=st.integers(1, 6), layers=st.integers(1, 5), tensors=st.sampled_from([1, 2]))


@laws
@given(layout=layouts, **pool_sizes)
def test_every_piece_has_an_address_of_its_own(layout, num_pages, layers, tensors):
    pool = PagePool(layout, num_pages, layers, tensors)
    addresses = [address for page in range(num_pages) for address in pool.pieces(page)]
    assert sorted(addresses) == list(range(pool.num_pieces))


@laws
@given(first=layouts, second=layouts, data=st.data(), **pool_sizes)
def test_there_and_back_is_the_same_memory(first, second, data, num_pages, layers, tensors):
    source = PagePool(first, num_pages, layers, tensors)
    target = PagePool(second, num_pages, layers, tensors)
    places = data.draw(st.permutations(range(num_pages)))
    there = dict(enumerate(places))
    memory = list(range(source.num_pieces))
    moved = convert(memory, source, target, there)
    assert convert(moved, target, source, {new: old for old, new in there.items()}) == memory


@laws
@given(layers=st.integers(1, 5), tensors=st.sampled_from([1, 2]), page=st.integers(0, 3))
def test_copies_of_one_page_agree_with_the_formula(layers, tensors, page):
    for layout in ("layer_first", "page_first"):
        pool = PagePool(layout, 4, layers, tensors)
        other = PagePool(layout, 4, layers, tensors)
        assert contiguous_copies(moves(pool, other, {page: 3 - page})) == copies_per_page(
            layers, layout, tensors
        )


def test_a_plain_copy_between_layouts_goes_piece_by_piece():
    gpu, host = PagePool("layer_first", 4, layers=3), PagePool("page_first", 4, layers=3)
    assert contiguous_copies(moves(host, gpu, {0: 2})) == 6


# Measured


def test_measured_rates_are_rates():
    measured = measure_copies(4096, "numpy", total_bytes=2**18, repeats=2)
    assert min(measured.contiguous, measured.one_by_one, measured.gathered) > 0
    assert measured.one_by_one_share == measured.one_by_one / measured.contiguous


@pytest.mark.parametrize("ways, backend", [(_numpy_ways, "numpy"), (_torch_ways, "torch")])
def test_measuring_moves_what_it_says(ways, backend):
    # Slot i of a pool of four-word slots holds the words 4i … 4i + 3.
    order = [5, 0, 3]
    expected = {"contiguous": [0, 1, 2], "one_by_one": order, "gathered": order}
    for way in ways(order, slots=6, words=4, backend=backend):
        assert way().tolist() == [[4 * slot + word for word in range(4)] for slot in expected[way.__name__]]


# Refusals


@pytest.mark.parametrize(
    "field, value",
    [
        ("page_tokens", 0),
        ("page_tokens", True),
        ("page_tokens", 1.5),
        ("kv_bytes_per_token", 0),
        ("kv_bytes_per_token", float("nan")),
        ("layers", "32"),
        ("link", "pcie9"),
        ("link", None),
        ("link", 0),
        ("layout", "token_first"),
        ("overhead_s", -1e-6),
        ("overhead_s", float("inf")),
        ("tensors", 0),
    ],
)
def test_bad_input_is_refused_by_name(field, value):
    good = dict(page_tokens=32, kv_bytes_per_token=131072, layers=32, link="pcie5-x16")
    with pytest.raises(ConfigError, match="bytes_per_s" if (field, value) == ("link", 0) else field):
        effective_bandwidth(**{**good, field: value})


def test_a_link_can_be_named_given_or_a_rate():
    rates = {
        effective_bandwidth(32, 131072, 32, link)
        for link in ("pcie5-x16", get_link("pcie5-x16"), 64e9, 64 * 10**9)
    }
    assert len(rates) == 1
    # The overhead stands against the peak, whatever the link's own losses are.
    assert effective_bandwidth(32, 131072, 32, LinkSpec("lossy", 64e9, efficiency=0.5)) in rates


@pytest.mark.parametrize("share", [0, 1, 1.5, float("nan")])
def test_impossible_shares_are_refused(share):
    with pytest.raises(ConfigError, match="share"):
        page_tokens_for_share(share, 131072, 32, "pcie5-x16")


@pytest.mark.parametrize(
    "bad",
    [
        dict(piece_bytes=12),
        dict(piece_bytes=0),
        dict(piece_bytes=2**20, total_bytes=2**19),
        dict(piece_bytes=8, backend="jax"),
    ],
)
def test_measuring_refuses_what_it_cannot_cut(bad):
    with pytest.raises(ConfigError):
        measure_copies(**bad)


def test_models_and_machines_are_known():
    with pytest.raises(ConfigError, match="link"):
        Machine(link="floppy")
    assert get_model(Machine().model).layers == 48
