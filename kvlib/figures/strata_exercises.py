"""Chapter 9: the self-checked exercises."""

from __future__ import annotations

from kvlib.explore import Choice, Problem, Search, Slip, Verdict, exercise
from kvlib.explore.words import short
from kvlib.figures.strata import LAYOUT_WORDS, MODELS, cpu_rate, kv_geometry, size_words
from kvlib.figures.strata_queue import document_run
from kvlib.figures.strata_scheduling import CONTEXT, mixed_queue
from kvlib.specs import get_link
from kvlib.tiers import (
    Machine,
    Work,
    batches,
    copies_per_page,
    copy_bytes,
    littles_law,
    page_tokens_for_share,
)

PEAK = 64e9
GB = 1e9


@exercise(title="Copies under way")
def littles_law_rate(rng) -> Problem:
    kilobytes, latency_us, in_flight = (
        rng.choice((16, 32, 64, 128, 256)),
        rng.choice((2, 4, 5, 8, 10)),
        rng.choice((1, 2, 4)),
    )
    asked = in_flight * kilobytes * 1e3 / (latency_us * 1e-6)
    answer = littles_law(in_flight, kilobytes * 1e3, latency_us * 1e-6, PEAK) / GB
    capped = f" That is more than the link can do, so it delivers {PEAK / GB:.0f}." if asked > PEAK else ""
    under_way = (
        "they go one after the other" if in_flight == 1 else f"{in_flight} of them are under way at any time"
    )
    return Problem(
        f"Copies of {kilobytes} kB (1 kB = 1,000 bytes) take {latency_us} µs each, from start to end, and"
        f" {under_way}. The link's peak is {PEAK / GB:.0f} GB/s. How many GB/s does it deliver?",
        answer,
        "GB/s",
        f"{in_flight} × {kilobytes} kB ÷ {latency_us} µs = {asked / GB:g} GB/s.{capped}",
        tolerance=0.001,
        slips=(
            Slip(asked / GB, "No link delivers more than its peak."),
            Slip(asked / in_flight / GB, "That is one copy at a time."),
            Slip(asked * 8 / GB, "That is gigabits per second."),
            Slip(PEAK / GB, "That is the peak. These copies do not reach it."),
        ),
    )


@exercise(title="The share of the link that pages use")
def link_share(rng) -> Problem:
    model, page = rng.choice(MODELS[:4]), rng.choice((8, 16, 32, 64, 128))
    layout, words = rng.choice(LAYOUT_WORDS)
    link = rng.choice(("pcie4-x16", "pcie5-x16"))
    kv_bytes, layers, tensors = kv_geometry(model)
    peak, overhead_s = get_link(link).bytes_per_s, get_link(link).overhead_s
    size, copies = copy_bytes(page, kv_bytes, layers, layout, tensors), copies_per_page(
        layers, layout, tensors
    )

    def percent(num_bytes: float) -> float:
        return 100 * littles_law(1, num_bytes, overhead_s + num_bytes / peak, peak) / peak

    answer = 100 * cpu_rate(page, model, link, layout) / peak
    return Problem(
        f"{model} caches {kv_bytes:,} bytes per token in {layers} layers. The host keeps pages of {page}"
        f" tokens {words}, keys and values apart where it keeps layers apart. The CPU copies one piece after"
        f" the other; each costs {1e6 * overhead_s:.1f} µs and then moves at {peak / GB:.0f} GB/s. Which"
        " percentage of the peak is used?",
        answer,
        "%",
        f"A page is {page * kv_bytes:,} bytes in {copies} {'copy' if copies == 1 else 'copies'} of"
        f" {size_words(size)}. One takes {1e6 * overhead_s:.1f} + {short(1e6 * size / peak)} µs, of which the"
        f" bytes are {answer:.3g} %.",
        tolerance=0.02,
        slips=(
            Slip(percent(2 * size), "Keys and values are separate copies."),
            Slip(percent(page * kv_bytes), "That is the whole page as one copy."),
            Slip(
                percent(page * kv_bytes / copies_per_page(layers, "layer_first", tensors)),
                "This host keeps a page in one piece.",
            ),
            Slip(answer / 100, "That is the share itself. The question asks for a percentage."),
            Slip(100 - answer, "That is the share the overhead takes."),
        ),
    )


@exercise(title="How large a page would the link like?")
def page_for_share(rng) -> Problem:
    model, share = rng.choice(MODELS[:4]), rng.choice((0.5, 0.75, 0.8, 0.9))
    kv_bytes, layers, tensors = kv_geometry(model)
    link = get_link("pcie5-x16")
    answer = page_tokens_for_share(share, kv_bytes, layers, link, tensors=tensors)
    needed = link.overhead_s * link.bytes_per_s * share / (1 - share)
    each = kv_bytes / layers / tensors
    return Problem(
        f"{model} caches {each:,.0f} bytes per token in each of its {layers * tensors} K and V pools. Copies"
        f" cost {1e6 * link.overhead_s:.1f} µs each and then move at {PEAK / GB:.0f} GB/s. Which is the"
        f" smallest page, in tokens, that uses {100 * share:.0f} % of the link?",
        answer,
        "tokens",
        f"S ÷ (overhead + S ÷ peak) = {share:g} × peak gives S = overhead × peak × {share:g} ÷"
        f" {1 - share:.2g} = {size_words(needed)}. One token is {each:,.0f} bytes in each pool, so {answer:,}"
        " tokens.",
        tolerance=0.01,
        slips=(
            Slip(needed / kv_bytes, "That is the page if all pools were one piece."),
            Slip(link.overhead_s * link.bytes_per_s * share / each, "Divide by one minus the share as well."),
            Slip(answer / 2, "Keys and values are separate copies."),
        ),
    )


@exercise(title="Two questions and two new prompts")
def mixed_total(rng) -> Problem:
    load, light = rng.choice((80, 100, 120, 150, 200)), rng.choice((5, 10, 15, 20))
    little, heavy = rng.choice((0, 5, 10)), rng.choice((60, 80, 90, 100))
    queue = [
        Work("q1", load, light),
        Work("q2", load, light),
        Work("n1", little, heavy),
        Work("n2", little, heavy),
    ]
    fcfs, mixed = (sum(b.duration_ns for b in batches(queue, 2, policy)) for policy in ("fcfs", "balanced"))
    return Problem(
        f"Two questions wait, each loads for {load} ms and computes for {light} ms; behind them two new"
        f" prompts, each loads for {little} ms and computes for {heavy} ms. Batches hold two, a batch lasts"
        " as long as the longer of its loading and its computing. How many milliseconds does the whole queue"
        " take in balanced batches?",
        mixed,
        "ms",
        f"Each batch has a question and a prompt: max({load} + {little}, {light} + {heavy}) ="
        f" {max(load + little, light + heavy)} ms, twice. First come, first served takes max({2 * load},"
        f" {2 * light}) + max({2 * little}, {2 * heavy}) = {fcfs} ms.",
        slips=(
            Slip(fcfs, "That is first come, first served."),
            Slip(mixed / 2, "There are two batches."),
            Slip(2 * (load + light + little + heavy), "Loading and computing overlap."),
            Slip(2 * (light + heavy), "The batch also has to wait for its loads."),
        ),
    )


@exercise(title="What deferral saves")
def deferral_saves(rng) -> Problem:
    askers, tokens = rng.choice((2, 3, 4)), rng.choice((10_000, 15_000, 20_000, 30_000))
    together, once = (document_run(askers, 1_000_000, defer, askers, tokens) for defer in (False, True))
    one_s = once.batches[0].compute_ns / 1e9
    answer = (together.busy_ns - once.busy_ns) / 1e9
    return Problem(
        f"{askers} questions about one new document of {tokens:,} tokens arrive within a few milliseconds."
        f" Prefilling the document takes {one_s:.2f} s. Without deferral none of them finds the KV of"
        " another. How many seconds of GPU time does deferral save?",
        answer,
        "s",
        f"Without it the document is computed {askers} times, with it once: {askers - 1} × {one_s:.2f} s. The"
        f" run says {answer:.2f} s; the price is that the others wait for the first.",
        tolerance=0.02,
        slips=(
            Slip(askers * one_s, "One computation is needed in any case."),
            Slip(one_s, "That is what one computation costs."),
        ),
    )


@exercise(title="Find an order that needs no scheduler")
def nothing_to_gain(rng) -> Search:
    cached = rng.choice((16_000, 31_000, 64_000))
    prompt = rng.choice((1_000, 2_000, 3_400))
    controls = (
        Choice("burst", "Requests of one kind in a row", [1, 2, 4, 8, 16], default=8),
        Choice("batch_size", "Requests per batch", [2, 4], default=2),
        CONTEXT,
    )

    def judge(burst: int, batch_size: int, cached: int) -> Verdict:
        queue = mixed_queue(cached, prompt, burst)
        fcfs, balanced = (
            sum(b.duration_ns for b in batches(queue, batch_size, policy)) for policy in ("fcfs", "balanced")
        )
        saved = 100 * (1 - balanced / fcfs)
        wait = 100 * Machine().stall_share(256, cached)
        fact = (
            f"Balancing {'saves' if saved >= 0 else 'costs'} {abs(saved):.1f} % here, "
            f"and a question alone would wait {wait:.0f} % of its time."
        )
        return Verdict(saved < 1 and wait > 50, fact)

    return Search(
        f"16 questions of 256 new tokens and 16 new prompts of {prompt:,} tokens wait, Qwen2.5-14B on an H200"
        " with GPU-assisted copies. Find a setting in which balanced batches save less than 1 % although a"
        " question alone would wait for the link more than half of its time.",
        controls,
        judge,
        known={"burst": 1, "batch_size": 2, "cached": cached},
        solution=(
            "With bursts of one the queue alternates, so first come, first served already pairs a question"
            " with a prompt. The scheduler earns its keep when requests of one kind come together."
        ),
    )
