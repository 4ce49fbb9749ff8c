"""Chapter 8, second half: loading and computing at the same time, by layers and by tokens."""

from __future__ import annotations

from kvlib.explore import COMPUTED, SIMULATED, Choice, Drawing, Range, View, explorer
from kvlib.explore.palette import DECODE, LIMIT, PREFILL, RESERVED, TRANSFER
from kvlib.explore.svg import WIDTH
from kvlib.figures.charts import Line, Mark, axis, line_chart
from kvlib.figures.inputs import GPU_NAMES, MODEL_NAMES
from kvlib.figures.load_or_recompute import CONTEXTS, DEFAULT_GPU, GB, time_words
from kvlib.specs import LinkSpec, get_gpu, get_model
from kvlib.specs.names import spoken
from kvlib.tiers import Overlap, best_split, hidden_up_to, layer_times, overlapped_prefill, split_s
from kvlib.tiers.overlap import LONGEST_TOKENS

LAYERS_DRAWN = 8
LANES = (("load", "loads", TRANSFER), ("compute", "computes", PREFILL), ("store", "stores", RESERVED))
LEFT = 68


def link_slider(default: float) -> Range:
    return Range("link", "The link delivers", 0.1, 200.0, 17, default=default, unit="GB/s", log=True)


@explorer(
    title="Layer-wise overlap",
    controls=[
        Choice("cached_percent", "Cached share of the prompt", [0, 25, 50, 75, 90, 95, 98, 99], default=50, unit="%"),
        link_slider(24.0),
        Choice("prompt", "Prompt", [2176, 4352, 8704, 17408, 34816], default=8704, unit="tokens"),
        Choice("model", "Model", MODEL_NAMES, default="llama-2-70b"),
        Choice("gpu", "Eight GPUs of this kind", GPU_NAMES, default="a800-80gb"),
    ],
    expects={
        "cached_percent": "changes:prefill_ms",
        "link": "falls:prefill_ms",
        "prompt": "rises:prefill_ms",
        "gpu": "changes:prefill_ms",
    },
)
def overlap(cached_percent, link, prompt, model, gpu) -> View:
    """Each layer's KV comes in while the layer before computes; the chart shows who waits for whom."""
    spec, device, channel = get_model(model), get_gpu(gpu), LinkSpec("your link", link * GB)
    cached = prompt * cached_percent // 100
    run = overlapped_prefill(spec, device, channel, prompt - cached, cached, num_gpus=8)
    limit = hidden_up_to(spec, device, channel, prompt - cached, num_gpus=8)
    load, compute, _ = layer_times(spec, device, channel, prompt - cached, cached, num_gpus=8)
    loads_s, computes_s = load * spec.layers, compute * spec.layers
    if not cached:
        verdict = "nothing to load"
    elif load <= compute:
        verdict = "all but the first layer's loading is hidden"
    else:
        verdict = f"the GPU waits {time_words(run.stall_s)}"
    return View(
        title=f"{cached:,} of {prompt:,} tokens cached: {verdict}, prefill ends after {time_words(run.prefill_s)}",
        picture=_gantt(run, loads_s, computes_s, spec.layers),
        table=[
            ["quantity", "value"],
            ["load, per layer (ms)", 1e3 * load],
            ["compute, per layer (ms)", 1e3 * compute],
            ["load everything, then compute (ms)", 1e3 * (loads_s + computes_s)],
            ["overlapped (ms)", 1e3 * run.prefill_s],
            ["of it, the GPU waits (ms)", 1e3 * run.stall_s],
            [f"cached tokens that {prompt - cached:,} new ones hide", "any number" if limit is None else limit],
        ],
        source=SIMULATED,
        note=f"{spoken(spec.name)} on eight {spoken(device.name)}. The upper rows show the first {LAYERS_DRAWN} of {spec.layers} "
        "layers, the bars below the whole prefill. Stores go the other way on the link and end later, but the first "
        "token does not wait for them.",
        numbers={"prefill_ms": 1e3 * run.prefill_s, "stall_ms": 1e3 * run.stall_s},
    )


def _gantt(run: Overlap, loads_s: float, computes_s: float, layers: int) -> str:
    serial_s = loads_s + computes_s
    drawing = Drawing(
        250, title="Layer-wise overlap as a Gantt chart",
        description=f"Loading, computing and storing of {layers} layers overlap. Serial {time_words(serial_s)}, "
        f"overlapped {time_words(run.prefill_s)}, of which the GPU waits {time_words(run.stall_s)}.",
    )
    drawn = min(LAYERS_DRAWN, layers)
    zoom_s = run.stores[drawn - 1].end_s
    drawing.text(0, 14, f"The first {drawn} layers (numbers are layers)", bold=True)
    for row, (name, lane, color) in enumerate(LANES):
        _lane(drawing, 24 + 34 * row, name, getattr(run, lane)[:drawn], color, zoom_s)
    drawing.text(LEFT, 140, "0")
    drawing.text(WIDTH, 140, time_words(zoom_s), anchor="end")

    whole_s = max(serial_s, run.prefill_s)
    drawing.text(0, 168, "The whole prefill", bold=True)
    _bar(drawing, 176, "serial", [("load", loads_s, TRANSFER), ("compute", computes_s, PREFILL)], whole_s)
    _bar(drawing, 208, "overlap", [("waits, in all", run.stall_s, "none"), ("compute", computes_s, PREFILL)], whole_s)
    drawing.text(LEFT, 249, "0")
    drawing.text(WIDTH, 249, time_words(whole_s), anchor="end")
    return drawing.render()


def _lane(drawing: Drawing, y: float, name: str, spans, color: str, until_s: float) -> None:
    drawing.text(0, y + 19, name)
    drawing.line(LEFT, y + 28, WIDTH, y + 28, width=0.5)
    for layer, span in enumerate(spans, start=1):
        x, end = (LEFT + (WIDTH - LEFT) * moment / until_s for moment in (span.start_s, span.end_s))
        if end - x >= 0.1:
            drawing.box(x, y, end - x, 28, fill=color, text=str(layer) if end - x >= 14 else "")


def _bar(drawing: Drawing, y: float, name: str, parts, until_s: float) -> None:
    drawing.text(0, y + 19, name)
    x = LEFT
    for words, seconds, color in parts:
        wide = (WIDTH - LEFT) * seconds / until_s
        if wide >= 0.1:
            drawing.box(x, y, wide, 26, fill=color, text=words if wide >= 90 else "", dashed=color == "none")
        x += wide


@explorer(
    title="Where overlap stops hiding the load",
    controls=[
        Range("new_tokens", "New tokens", 16, 4096, 17, default=256, unit="tokens", log=True),
        link_slider(51.2),
        Choice("model", "Model", MODEL_NAMES, default="llama-3-8b"),
        Choice("gpu", "GPU", GPU_NAMES, default=DEFAULT_GPU),
    ],
    expects={
        "new_tokens": "rises:hidden_tokens",
        "link": "rises:hidden_tokens",
        "model": "changes:hidden_tokens",
        "gpu": "changes:hidden_tokens",
    },
)
def hiding(new_tokens, link, model, gpu) -> View:
    """Load and compute time of one layer against the cached length: hidden left of the crossing."""
    spec, device, channel = get_model(model), get_gpu(gpu), LinkSpec("your link", link * GB)
    limit = hidden_up_to(spec, device, channel, new_tokens)
    lengths = (250, *CONTEXTS)
    times = [layer_times(spec, device, channel, new_tokens, cached) for cached in lengths]
    loads, computes = ([1e3 * t[part] for t in times] for part in (0, 1))
    seen = limit is not None and lengths[0] <= limit <= lengths[-1]
    values = [*loads, *computes]
    figure = line_chart(
        [
            Line("load one layer", lengths, loads, TRANSFER, dash=1),
            Line("compute one layer", lengths, computes, PREFILL),
        ],
        axis("cached tokens", log=True, low=lengths[0] / 1.1, high=lengths[-1] * 1.1),
        axis("time per layer (ms)", log=True, low=min(values) / 1.5, high=max(values) * 1.5),
        walls=[(limit, "stops hiding", LIMIT)] if seen else [],
    )
    words = "at any length" if limit is None else f"up to {limit:,} cached tokens"
    return View(
        title=f"{new_tokens:,} new tokens hide the load {words}",
        picture=figure,
        table=[
            ["cached tokens", "load, per layer (ms)", "compute, per layer (ms)", "load ÷ compute"],
            *([n, a, b, a / b] for n, a, b in zip(lengths, loads, computes)),
        ],
        source=COMPUTED,
        note=f"{spoken(spec.name)} on one {spoken(device.name)}. Long document, short question: the load grows with the document, the "
        "work hardly does. Right of the crossing the GPU waits for every layer.",
        numbers={"hidden_tokens": LONGEST_TOKENS if limit is None else limit},
    )


@explorer(
    title="Load from the back, recompute from the front",
    controls=[
        link_slider(5.6),
        Choice("context", "Context", CONTEXTS, default=8000, unit="tokens"),
        Choice("model", "Model", MODEL_NAMES, default="llama-3-8b"),
        Choice("gpu", "GPU", GPU_NAMES, default=DEFAULT_GPU),
    ],
    expects={
        "link": "falls:recomputed_tokens",
        "context": "rises:total_ms",
        "model": "changes:recomputed_tokens",
        "gpu": "changes:recomputed_tokens",
    },
)
def split(link, context, model, gpu) -> View:
    """Finish time of every split, and the one where both workers meet."""
    spec, device, channel = get_model(model), get_gpu(gpu), LinkSpec("your link", link * GB)
    best = best_split(spec, device, channel, context)
    fronts = [context * i // 24 for i in range(25)]
    times = [split_s(spec, device, channel, context, front) for front in fronts]
    compute_ms, load_ms = ([1e3 * t[part] for t in times] for part in (0, 1))
    total_ms = 1e3 * best.total_s
    alone_ms = min(compute_ms[-1], load_ms[0])
    figure = line_chart(
        [
            Line("recompute the front", fronts, compute_ms, PREFILL),
            Line("load the back", fronts, load_ms, TRANSFER, dash=1),
        ],
        axis("tokens recomputed from the front", low=0, high=context),
        axis("finished after (ms)", low=0, high=1.1 * min(max(compute_ms[-1], load_ms[0]), 3 * alone_ms)),
        marks=[Mark("they meet", best.recomputed_tokens, total_ms, DECODE)],
    )
    return View(
        title=f"Recompute the first {best.recomputed_tokens:,} tokens and load {best.loaded_tokens:,}: "
        f"{time_words(best.total_s)} instead of {time_words(alone_ms / 1e3)}",
        picture=figure,
        table=[
            ["way", "tokens recomputed", "tokens loaded", "time (ms)"],
            ["load everything", 0, context, load_ms[0]],
            ["recompute everything", context, 0, compute_ms[-1]],
            ["both at once, best split", best.recomputed_tokens, best.loaded_tokens, total_ms],
        ],
        source=COMPUTED,
        note=f"{spoken(spec.name)} on one {spoken(device.name)}. The GPU has to start at the first token; the link may start "
        "anywhere, so it starts with the last token, which is the most expensive one to recompute.",
        numbers={"recomputed_tokens": best.recomputed_tokens, "total_ms": total_ms, "saved": alone_ms / total_ms},
    )
