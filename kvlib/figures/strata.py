"""Chapter 9: why copying from one's own host is slow, and what repairs it."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files

from kvlib.explore import (
    COMPUTED,
    SIMULATED,
    Choice,
    Drawing,
    Option,
    Prediction,
    Range,
    Toggle,
    View,
    explorer,
)
from kvlib.explore.palette import FREE, LIMIT, SERIES, TRANSFER, USED
from kvlib.explore.svg import WIDTH
from kvlib.explore.words import counted
from kvlib.figures.charts import Line, Mark, axis, line_chart
from kvlib.specs import get_link, get_model
from kvlib.tiers import (
    GpuCopies,
    PagePool,
    contiguous_copies,
    copies_per_page,
    copy_bytes,
    effective_bandwidth,
    hit_ratio,
    littles_law,
    moves,
    workload,
)
from kvlib.tiers.documents import WORKLOADS

GB = 1e9
PAGES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
LINKS = ("pcie3-x16", "pcie4-x16", "pcie5-x16", "gh200-host")
MODELS = ("llama-3-8b", "qwen2.5-14b", "llama-3-70b", "opt-13b", "deepseek-v3")
LAYOUT_WORDS = (("layer_first", "layer by layer"), ("page_first", "page by page"))
NUM_ASKS = 200
SEED = 1


def page_control() -> Choice:
    return Choice("page_tokens", "Page size", PAGES, default=32, unit="tokens")


def kv_geometry(name: str) -> tuple[int, int, int]:
    """KV bytes per token, layers, and tensors per layer (1 for an MLA latent)."""
    model = get_model(name)
    return model.shape.kv_bytes_per_token(), model.layers, 1 if model.shape.groups[0].latent else 2


def cpu_rate(page_tokens: int, model: str, link: str, layout: str = "layer_first") -> float:
    """Bytes/s of pages that the CPU copies one piece after the other."""
    kv_bytes, layers, tensors = kv_geometry(model)
    return effective_bandwidth(
        page_tokens, kv_bytes, layers, link, layout, get_link(link).overhead_s, tensors
    )


@lru_cache(maxsize=4)
def hit_percents(name: str) -> tuple[float, ...]:
    """Hit ratio of the workload at every page size, in percent."""
    asks = workload(name, NUM_ASKS, 2.0, SEED)
    return tuple(100 * hit_ratio(asks, page) for page in PAGES)


def _predict_faster_link() -> Prediction:
    fast, slow = cpu_rate(32, "llama-3-8b", "gh200-host"), cpu_rate(32, "llama-3-8b", "pcie5-x16")
    ratio = fast / slow
    fact = f"The model says {ratio:.2f} times: {slow / GB:.1f} GB/s become {fast / GB:.1f}, out of 384."
    return Prediction(
        "A link that is six times faster; the same pages of 32 tokens, one pool per layer, copied by the CPU."
        " Loading a context gets …",
        (
            Option("6 times faster", f"It would if the time went into moving bytes. {fact}"),
            Option(
                "3 times faster",
                f"Most of the time is spent starting copies, and those start no faster. {fact}",
            ),
            Option("1.2 times faster", fact),
        ),
        answer=min(range(3), key=lambda i: abs((6, 3, 1.2)[i] - ratio)),
    )


@explorer(
    title="Small pages hit, large pages move",
    controls=[
        page_control(),
        Toggle("gpu_assisted", "GPU-assisted copies"),
        Choice("workload_name", "Workload", WORKLOADS, default="short chat"),
        Choice("link", "Link", LINKS, default="pcie5-x16"),
        Choice("model", "Model", MODELS, default="llama-3-8b"),
    ],
    predict=_predict_faster_link,
    expects={
        "page_tokens": "rises:link_percent",
        "gpu_assisted": "rises:link_percent",
        "workload_name": "changes:hit_percent",
        "link": "falls:link_percent",
        "model": "changes:link_percent",
    },
)
def dilemma(page_tokens, gpu_assisted, workload_name, link, model) -> View:
    """Hit ratio falls with the page size, link efficiency rises; GPU-assisted copies make the second flat."""
    peak = get_link(link).bytes_per_s
    hits = hit_percents(workload_name)
    cpu = [100 * cpu_rate(page, model, link) / peak for page in PAGES]
    kernel = 100 * GpuCopies().bytes_per_s(link) / peak
    here = PAGES.index(page_tokens)
    used = kernel if gpu_assisted else cpu[here]
    lines = [
        Line("prompt tokens that hit", PAGES, hits, USED, markers=True),
        Line("link used, CPU copies", PAGES, cpu, TRANSFER, dash=1, markers=True),
    ]
    if gpu_assisted:
        lines.append(Line("link used, GPU-assisted", PAGES, [kernel] * len(PAGES), SERIES[2], dash=2))
    kv_bytes = kv_geometry(model)[0]
    load_ms = 1e3 * 8192 * kv_bytes / (used / 100 * peak)
    return View(
        title=(
            f"Pages of {counted(page_tokens, 'token')}: {hits[here]:.0f} % of the prompt hits, {used:.2g} % of the"
            " link is used"
        ),
        picture=line_chart(
            lines,
            axis("page size (tokens)", log=True, low=0.8, high=5000),
            axis("percent", low=0, high=100),
            marks=[
                Mark("your page", page_tokens, hits[here], LIMIT),
                Mark("your link", page_tokens, used, LIMIT),
            ],
        ),
        table=[
            ["quantity", "value"],
            ["prompt tokens that hit (%)", hits[here]],
            ["link used (% of its peak)", used],
            ["delivered (GB/s)", used / 100 * peak / GB],
            ["loading 8,192 tokens (ms)", load_ms],
        ],
        source=SIMULATED,
        note=(
            f"Hits: {NUM_ASKS} requests of the workload against a cache that forgets nothing. Link: Little's"
            " law with 3.6 µs per copy. GPU-assisted copies: two thread blocks, about 50 GB/s on PCIe 5 as"
            " Strata reports; a faster link needs more of them."
        ),
        numbers={"hit_percent": hits[here], "link_percent": used, "load_ms": load_ms},
    )


@lru_cache(maxsize=1)
def measured_copies() -> dict:
    """What `data/make_strata_copies.py` measured, with its provenance."""
    return json.loads(files("kvlib.figures").joinpath("data/strata_copies.json").read_text())


@explorer(
    title="How large must one copy be?",
    controls=[
        page_control(),
        Choice("layout", "The host keeps pages", LAYOUT_WORDS, default="layer_first"),
        Choice("in_flight", "Copies under way at a time", [1, 2, 4, 8, 16], default=1),
        Range("overhead_us", "Overhead per copy", 0.5, 20.0, 14, default=3.6, unit="µs", log=True),
        Choice("link", "Link", LINKS, default="pcie5-x16"),
        Choice("model", "Model", MODELS, default="llama-3-8b"),
    ],
    expects={
        "page_tokens": "rises:link_percent",
        "layout": "rises:link_percent",
        "in_flight": "rises:link_percent",
        "overhead_us": "falls:link_percent",
        "link": "falls:link_percent",
        "model": "changes:link_percent",
    },
)
def copy_size(page_tokens, layout, in_flight, overhead_us, link, model) -> View:
    """Little's law, with what scattered copies reach on a CPU beside it."""
    peak, overhead_s = get_link(link).bytes_per_s, overhead_us / 1e6
    kv_bytes, layers, tensors = kv_geometry(model)

    def percent(size: float) -> float:
        return 100 * littles_law(in_flight, size, overhead_s + size / peak, peak) / peak

    size = copy_bytes(page_tokens, kv_bytes, layers, layout, tensors)
    other = copy_bytes(
        page_tokens, kv_bytes, layers, "page_first" if layout == "layer_first" else "layer_first", tensors
    )
    other_words = dict(LAYOUT_WORDS)["page_first" if layout == "layer_first" else "layer_first"]
    sizes = [2.0**k for k in range(10, 25)]
    measured = measured_copies()["rows"]
    lines = [Line("Little's law", sizes, [percent(s) for s in sizes], TRANSFER)]
    for number, (backend, words) in enumerate(
        (("numpy", "measured: numpy"), ("torch", "measured: torch, CPU")), start=1
    ):
        rows = [row for row in measured if row["backend"] == backend]
        shares = [min(100.0, 100 * row["one_by_one_share"]) for row in rows]
        lines.append(
            Line(
                words,
                [row["piece_bytes"] for row in rows],
                shares,
                SERIES[1 + number],
                dash=number,
                markers=True,
            )
        )
    return View(
        title=(
            f"{size_words(size)} per copy: {percent(size):.3g} % of {link}'s peak,"
            f" {percent(size) / 100 * peak / GB:.3g} GB/s"
        ),
        picture=line_chart(
            lines,
            axis("bytes per copy", log=True, low=900, high=3e7),
            axis("percent of the peak", low=0, high=105),
            marks=[
                Mark("your pages", size, percent(size), LIMIT),
                Mark(f"kept {other_words}", other, percent(other), FREE),
            ],
        ),
        table=[
            ["quantity", "value"],
            ["copies per page", copies_per_page(layers, layout, tensors)],
            ["bytes per copy", size],
            ["one copy takes (µs)", 1e6 * (overhead_s + size / peak)],
            ["delivered (GB/s)", percent(size) / 100 * peak / GB],
            ["percent of the peak", percent(size)],
            [f"kept {other_words} (percent)", percent(other)],
        ],
        source=COMPUTED,
        note=(
            f"The measured lines (measured {measured_copies()['where']}) are pages gathered one by one in"
            " memory, against one contiguous copy of the same bytes. There the overhead is the"
            " interpreter's, not a driver's; the shape is the same."
        ),
        numbers={"link_percent": percent(size), "copy_bytes": size},
    )


def size_words(num_bytes: float) -> str:
    """
    >>> size_words(65536), size_words(4194304)
    ('65.5 kB', '4.19 MB')
    """
    return f"{num_bytes / 1e6:.3g} MB" if num_bytes >= 1e6 else f"{num_bytes / 1e3:.3g} kB"


@explorer(
    title="Two layouts, one kernel",
    controls=[
        Choice("host_layout", "The host keeps pages", LAYOUT_WORDS, default="layer_first"),
        Choice("page", "Page to load", [0, 1, 2, 3], default=1),
        Choice("layers", "Layers drawn", [2, 3, 4], default=3),
    ],
    expects={"host_layout": "falls:host_runs", "page": "changes:first_host_piece", "layers": "rises:pieces"},
)
def layouts(host_layout, page, layers) -> View:
    """Where the pieces of one page lie on both sides, and how many runs that makes."""
    host = PagePool(host_layout, 4, layers)
    gpu = PagePool("layer_first", 4, layers)
    to_page = 3 - page
    piece_moves = moves(host, gpu, {page: to_page})
    host_runs = contiguous_copies(moves(host, host, {page: page}))
    plain = contiguous_copies(piece_moves)
    runs = "one run" if host_runs == 1 else f"{host_runs} runs"
    return View(
        title=f"Page {page} lies in {runs} on the host and in {len(piece_moves)} pieces on the GPU",
        picture=_pools(host, gpu, page, to_page),
        table=[
            ["to load one page", "count"],
            ["pieces (layers × K and V)", len(piece_moves)],
            ["reads from an SSD with this layout", host_runs],
            ["plain copies to the GPU", plain],
            ["copy kernels", 1],
        ],
        source=COMPUTED,
        note=(
            "Attention reads one layer of many pages, so the GPU keeps layers together. A link and an SSD"
            " like long runs, so the host should keep pages together. A copy kernel computes every address"
            " anyway and so converts for free."
        ),
        numbers={
            "host_runs": host_runs,
            "pieces": len(piece_moves),
            "first_host_piece": host.pieces(page)[0],
        },
    )


def _pools(host: PagePool, gpu: PagePool, page: int, to_page: int) -> str:
    drawing = Drawing(
        190,
        title="Memory of host and GPU, address by address",
        description=f"The pieces of page {page} on the host, and where they go on the GPU.",
    )
    step = (WIDTH - 2) / host.num_pieces
    host_top, gpu_top, height = 24, 112, 30
    for pool, chosen, top in ((host, page, host_top), (gpu, to_page, gpu_top)):
        mine = set(pool.pieces(chosen))
        for address in range(pool.num_pieces):
            color = USED if address in mine else "none"
            drawing.box(1 + address * step, top, step, height, fill=color, title=f"address {address}")
    for source, target in moves(host, gpu, {page: to_page}):
        drawing.arrow(
            1 + (source + 0.5) * step, host_top + height, 1 + (target + 0.5) * step, gpu_top, color=TRANSFER
        )
    drawing.text(0, host_top - 8, f"host memory, {dict(LAYOUT_WORDS)[host.layout]}", bold=True)
    drawing.text(0, gpu_top + height + 18, f"GPU memory, {dict(LAYOUT_WORDS)[gpu.layout]}", bold=True)
    drawing.text(0, gpu_top + height + 40, "each box: one page of K or V of one layer")
    return drawing.render()


@explorer(
    title="How many threads should copy?",
    controls=[
        Choice("thread_blocks", "Thread blocks for loading", [1, 2, 3, 4, 6, 8, 12, 16], default=2),
        Choice("link", "Link", LINKS, default="pcie5-x16"),
    ],
    expects={"thread_blocks": "rises:threads", "link": "changes:gb_per_s"},
)
def thread_blocks(thread_blocks, link) -> View:
    """Little's law for threads: bandwidth rises until the link is full, interference goes on rising."""
    counts = [1, 2, 3, 4, 6, 8, 12, 16]
    rates = [GpuCopies(count).bytes_per_s(link) / GB for count in counts]
    kernel = GpuCopies(thread_blocks)
    here, ceiling = kernel.bytes_per_s(link) / GB, get_link(link).effective_bytes_per_s / GB
    full = " and the link is full" if here >= ceiling * (1 - 1e-9) else ""
    return View(
        title=f"{counted(thread_blocks, 'block')} of {kernel.threads_per_block:,} threads load{'s' * (thread_blocks == 1)} at "
        f"{here:.3g} GB/s{full}",
        picture=line_chart(
            [
                Line("GPU-assisted copies", counts, rates, TRANSFER, markers=True),
                Line("one large copy", counts, [ceiling] * len(counts), LIMIT, dash=1),
            ],
            axis("thread blocks", low=0, high=17),
            axis("GB/s", low=0, high=1.15 * ceiling),
            marks=[Mark("your choice", thread_blocks, here, LIMIT)],
        ),
        table=[
            ["quantity", "value"],
            ["threads", kernel.threads],
            ["delivered (GB/s)", here],
            ["prefill slowed while it runs (%)", 100 * (kernel.prefill_factor - 1)],
            ["decode slowed while it runs (%)", 100 * (kernel.decode_factor - 1)],
        ],
        source=COMPUTED,
        note=(
            "One point is Strata's (two blocks on an H200: about 50 GB/s, prefill under 5 %, decode about 10"
            " % slower); the rest extends it in proportion, which is our assumption. Strata gives loading two"
            " blocks and backing up one."
        ),
        numbers={"threads": kernel.threads, "gb_per_s": here},
    )
