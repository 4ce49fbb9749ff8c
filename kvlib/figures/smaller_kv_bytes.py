"""Chapter 13: bytes stored against bytes read, and what the kind of attention does to both."""

from __future__ import annotations

from kvlib.cost import break_even_bytes_per_s
from kvlib.explore import COMPUTED, Choice, File, Option, Prediction, View, explorer
from kvlib.explore.palette import ATTENTION, LIMIT, SERIES, TRANSFER, USED
from kvlib.explore.words import short
from kvlib.figures.charts import Line, Mark, axis, line_chart, stacked_bars
from kvlib.figures.inputs import DTYPES, GPU_NAMES, MODEL_NAMES, assumed_note, model_controls, model_or_file
from kvlib.figures.smaller_kv import QUARTER, percent_text
from kvlib.figures.smaller_kv_data import context_tokens, find, measured, where_measured
from kvlib.specs import get_gpu, get_model
from kvlib.specs.attention_kinds import KINDS, with_attention
from kvlib.specs.capacity import kv_budget_bytes
from kvlib.specs.names import spoken
from kvlib.tensors.smaller import Footprint, dropped, everything, grouped, sparse
from kvlib.tiers import PLACES, link_to

GB = 1e9
SHARES = (5, 10, 25, 50, 100)
CONTEXTS = (2000, 4000, 8000, 16000, 32000, 64000, 128000)
PAGES = (1, 4, 8, 16, 32, 64)
# What was measured on the small model.
SPARSE_PAGES, SPARSE_BUDGETS = (4, 8, 16, 32), (192, 384, 768)
MODEL, GPU = "llama-3-8b", "h100-80gb"
# The index of sparse attention is made of keys, which a latent cache does not hold.
WITH_KEYS = [
    (name, words) for name, words in MODEL_NAMES if not any(g.latent for g in get_model(name).shape.groups)
]


def footprints(shape, context: int, share: int, page_tokens: int, number_bits: int) -> dict[str, Footprint]:
    """The four ways side by side; `share` in percent of the tokens."""
    budget = max(1, context * share // 100)
    return {
        "everything, bf16": everything(shape, context),
        f"quantized, {number_bits} bits": everything(shape, context, grouped(number_bits)),
        f"dropped, {share} % kept": dropped(shape, context, budget),
        f"sparse, {share} % read": sparse(shape, context, budget, page_tokens),
    }


def _predict_sparse() -> Prediction:
    ways = list(footprints(get_model(MODEL).shape, 32000, 25, 16, 4).values())
    ratio = ways[0].stored_bytes / ways[3].stored_bytes
    fact = (
        f"Sparse attention stores {ways[3].stored_bytes / ways[0].stored_bytes:.2f} times the bytes, its "
        "index included."
    )
    return Prediction(
        "Sparse attention reads a quarter of the tokens for each new one. How many requests fit into the "
        "same memory?",
        (
            Option(
                "four times as many",
                f"It reads a quarter. The next query may want another quarter, so all must stay. {fact}",
            ),
            Option("twice as many", f"Not even that: nothing is given back. {fact}"),
            Option("slightly fewer", f"All tokens stay, and an index comes on top. {fact}"),
        ),
        answer=2 if ratio < 1.2 else (1 if ratio < 3 else 0),
    )


@explorer(
    title="Bytes stored, bytes read",
    controls=[
        Choice("share", "Tokens kept, or read", SHARES, default=25, unit="%"),
        Choice("page_tokens", "Page of sparse attention", PAGES, default=16, unit="tokens"),
        Choice("number_bits", "Bits when quantized", (2, 3, 4, 8), default=4),
        Choice("context", "Context", CONTEXTS, default=32000, unit="tokens"),
        Choice("model", "Model", WITH_KEYS, default=MODEL),
        File("config", "Your model's config.json", accept=".json"),
        Choice("gpu", "GPU", GPU_NAMES, default=GPU),
    ],
    predict=_predict_sparse,
    expects={
        "share": "rises:sparse_read_gb",
        "page_tokens": "falls:sparse_stored_gb",
        "number_bits": "rises:quantized_gb",
        "context": "rises:everything_gb",
        "model": "changes:everything_gb",
        "gpu": "changes:read_ms",
    },
)
def stored_and_read(share, page_tokens, number_bits, context, model, config, gpu) -> View:
    """Two bars for each way: what memory holds, and what one new token reads."""
    spec, device = model_or_file(model, config), get_gpu(gpu)
    ways = footprints(spec.shape, context, share, page_tokens, number_bits)
    full, quantized, _, picked = ways.values()
    parts = [
        ("stored", [way.stored_bytes / GB for way in ways.values()], USED),
        ("read for each new token", [way.read_bytes / GB for way in ways.values()], TRANSFER),
    ]
    figure = stacked_bars(list(ways), parts, axis("GB of one request"))
    figure["layout"]["barmode"] = "group"
    budget = kv_budget_bytes(spec, device)
    read_ms = {name: 1e3 * way.read_bytes / device.bytes_per_s for name, way in ways.items()}
    return View(
        title=f"Sparse attention reads {100 * picked.read_bytes / full.read_bytes:.3g} % of the bytes "
        f"and stores {100 * picked.stored_bytes / full.stored_bytes:.4g} %",
        picture=figure,
        table=[
            ["way", "stored (GB)", "read (GB)", "requests that fit", "KV read (ms)"],
            *(
                [name, way.stored_bytes / GB, way.read_bytes / GB,
                 int(budget // way.stored_bytes), read_ms[name]]
                for name, way in ways.items()
            ),
        ],
        source=COMPUTED,
        note=(
            f"{spoken(spec.name)} on one {spoken(device.name)}, {context:,} tokens. A small page makes the "
            "index large, a large page makes it blunt. Times are bytes over peak bandwidth." + assumed_note(spec)
        ),
        numbers={
            "everything_gb": full.stored_bytes / GB, "quantized_gb": quantized.stored_bytes / GB,
            "read_ms": read_ms["everything, bf16"],
            "sparse_read_gb": picked.read_bytes / GB, "sparse_stored_gb": picked.stored_bytes / GB,
        },
    )


@explorer(
    title="Four kinds of attention",
    controls=[
        Choice("context", "Context", CONTEXTS, default=8000, unit="tokens"),
        Choice("kv_dtype", "KV dtype", DTYPES, default="bf16"),
        *model_controls(MODEL),
        Choice("gpu", "GPU", GPU_NAMES, default=GPU),
    ],
    expects={
        "context": "falls:gqa_gb_per_s",
        "kv_dtype": "falls:gqa_gb_per_s",
        "model": "changes:mha_kib",
        "gpu": "changes:gqa_gb_per_s",
    },
)
def attention_kinds(context, kv_dtype, model, config, gpu) -> View:
    """The same model with other attention: bytes per token, and the bandwidth above which fetching pays."""
    spec, device = model_or_file(model, config), get_gpu(gpu)
    variants = {kind: with_attention(spec, kind) for kind in KINDS}
    needed = {
        kind: break_even_bytes_per_s(made, device, context, kv_dtype) / GB for kind, made in variants.items()
    }
    per_token = {kind: made.shape.kv_bytes_per_token(kv_dtype) / 1024 for kind, made in variants.items()}
    links = {place: link_to(place, device).effective_bytes_per_s / GB for place in PLACES}
    low, high = min(*needed.values(), *links.values()) / 2, max(*needed.values(), *links.values()) * 2
    figure = stacked_bars(
        list(KINDS), [("break-even", list(needed.values()), [ATTENTION[kind] for kind in KINDS])],
        axis("break-even bandwidth (GB/s)", log=True, low=low, high=high),
        walls=[
            (links[place], place.removesuffix(" 7 GB/s"), LIMIT)
            for place in ("SSD 7 GB/s", "network 10 Gb/s")
        ],
    )
    figure["layout"]["showlegend"] = False
    pays = {kind: [place for place, rate in links.items() if rate > needed[kind]] for kind in KINDS}
    return View(
        title=(
            f"{spoken(spec.name)}, {context:,} tokens: fetching pays above {short(needed['MHA'], 2)} GB/s with "
            f"MHA, {short(needed['GQA'], 2)} with GQA, {short(needed['MLA'], 2)} with MLA"
        ),
        picture=figure,
        table=[
            ["attention", "KV per token (KiB)", "break-even (GB/s)", "fetching pays from"],
            *(
                [kind, per_token[kind], needed[kind], ", ".join(pays[kind]) or "none of these"]
                for kind in KINDS
            ),
        ],
        source=COMPUTED,
        note=(
            "Layers, heads and work stay; only the sharing of keys and values changes. Where a bar crosses "
            "a dashed line, that link is too slow and recomputing wins." + assumed_note(spec)
        ),
        numbers={"mha_kib": per_token["MHA"], **{f"{kind.lower()}_gb_per_s": needed[kind] for kind in KINDS}},
    )


@explorer(
    title="How sharp is the index?",
    controls=[
        Choice("page_tokens", "Page", SPARSE_PAGES, default=16, unit="tokens"),
        Choice("budget", "Tokens read", [(n, percent_text(n)) for n in SPARSE_BUDGETS], default=QUARTER),
    ],
    expects={"page_tokens": "changes:kl", "budget": "falls:kl"},
)
def sparse_pages(page_tokens, budget) -> View:
    """Bytes read, the index included, against what leaving the other pages unread does."""
    rows = {(row["page_tokens"], row["budget"]): row for row in measured()["sparse"]}

    def read_percent(page: int, tokens: int) -> float:
        # The index reads as much as one token for each page.
        return 100 * (tokens / context_tokens() + 1 / page)

    here, dropping = rows[page_tokens, budget], find("dropping", policy="H2O", budget=budget)
    lines = [
        Line(
            f"pages of {page}", [read_percent(page, n) for n in SPARSE_BUDGETS],
            [rows[page, n]["kl"] for n in SPARSE_BUDGETS], SERIES[i], i, markers=True,
        )
        for i, page in enumerate(SPARSE_PAGES)
    ]
    figure = line_chart(
        lines,
        axis("bytes read for each new token (% of bf16)", low=0, high=100),
        axis("KL divergence (nats)", log=True),
        marks=[Mark("your choice", read_percent(page_tokens, budget), here["kl"], LIMIT)],
    )
    return View(
        title=(
            f"Pages of {page_tokens}: {read_percent(page_tokens, budget):.3g} % of the bytes read, KL "
            f"divergence {here['kl']:.2g}"
        ),
        picture=figure,
        table=[
            ["page (tokens)", *(f"KL, {percent_text(n)} of the tokens" for n in SPARSE_BUDGETS)],
            *([page, *(rows[page, n]["kl"] for n in SPARSE_BUDGETS)] for page in SPARSE_PAGES),
        ],
        source=where_measured(),
        note=(
            "A bound over few keys is sharp, and its index is large. H2O, which forgets the other tokens "
            f"for good, has a KL divergence of {dropping['kl']:.2g} with {percent_text(budget)} of the "
            "tokens."
        ),
        numbers={"kl": here["kl"], "read_percent": read_percent(page_tokens, budget)},
    )
