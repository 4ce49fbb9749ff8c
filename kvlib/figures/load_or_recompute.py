"""Chapter 8: is it cheaper to fetch the KV of a prompt or to compute it again?"""

from __future__ import annotations

import math

from kvlib.cost import break_even_bytes_per_s, recompute_s, transfer_s
from kvlib.explore import COMPUTED, Choice, Option, Prediction, Range, Toggle, View, explorer
from kvlib.explore.palette import ATTENTION, DECODE, IDLE, LIMIT, PREFILL, SERIES, TRANSFER
from kvlib.explore.words import short
from kvlib.figures.charts import Line, Mark, axis, line_chart, stacked_bars
from kvlib.figures.inputs import AS_BUILT, DTYPES, GPU_NAMES, MODEL_NAMES, assumed_note, model_controls, model_or_file
from kvlib.specs import LinkSpec, ModelSpec, get_gpu, get_model
from kvlib.specs.attention_kinds import KINDS, with_attention
from kvlib.specs.names import spoken
from kvlib.tiers import PLACES, conversation, gpu_memory, link_to, machine_links

GB = 1e9
CONTEXTS = (500, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000)
DEFAULT_GPU = "h100-80gb"
SLOW_NETWORK = PLACES[-1]


def time_words(seconds: float) -> str:
    """Spell a time for a title: milliseconds below a second.

    >>> time_words(0.18812), time_words(4.983)
    ('188 ms', '4.98 s')
    """
    return f"{short(1e3 * seconds)} ms" if seconds < 0.9995 else f"{short(seconds)} s"


def gb_words(bytes_per_s: float) -> str:
    return f"{bytes_per_s / GB:.3g} GB/s"


def faster_words(ratio: float) -> str:
    """Spell how much faster loading is than recomputing.

    >>> faster_words(7.238), faster_words(0.5), faster_words(0.998)
    ('7.24 times faster', '2 times slower', 'barely slower')
    """
    times, side = (short(ratio), "faster") if ratio >= 1 else (short(1 / ratio), "slower")
    return f"barely {side}" if times == "1" else f"{times} times {side}"


def with_kind(spec: ModelSpec, attention: str) -> ModelSpec:
    return spec if attention == AS_BUILT else with_attention(spec, attention)


def _predict_longer_context() -> Prediction:
    model, gpu = get_model("llama-3-8b"), get_gpu(DEFAULT_GPU)
    short, long = (break_even_bytes_per_s(model, gpu, n) for n in (8000, 64000))
    fact = f"It goes from {gb_words(short)} to {gb_words(long)}."
    answer = 2 if long < 0.98 * short else (0 if long > 1.02 * short else 1)
    return Prediction(
        "Llama-3-8B on an H100. The context grows from 8,000 to 64,000 tokens. The bandwidth at which fetching "
        "the KV takes as long as computing it again …",
        (
            Option("rises: there are eight times as many bytes", f"There are, but the work grew even more. {fact}"),
            Option("stays: bytes and work grow alike", f"The linear layers do, but attention grows faster. {fact}"),
            Option("falls", f"Bytes grow with the length, attention with its square: each byte saves more work. {fact}"),
        ),
        answer=answer,
    )


@explorer(
    title="Break-even bandwidth",
    controls=[
        Choice("context", "Context", CONTEXTS, default=8000, unit="tokens"),
        Choice("attention", "Attention", (AS_BUILT, *KINDS), default=AS_BUILT),
        *model_controls("llama-3-8b"),
        Choice("gpu", "GPU", GPU_NAMES, default=DEFAULT_GPU),
        Choice("kv_dtype", "KV dtype", DTYPES, default="bf16"),
    ],
    predict=_predict_longer_context,
    expects={
        "context": "falls:break_even_gb_per_s",
        "attention": "changes:break_even_gb_per_s",
        "kv_dtype": "falls:break_even_gb_per_s",
        "model": "changes:break_even_gb_per_s",
        "gpu": "changes:break_even_gb_per_s",
    },
)
def break_even(context, attention, model, config, gpu, kv_dtype) -> View:
    """The falling line: above it a link fetches faster than the GPU recomputes."""
    spec, device = with_kind(model_or_file(model, config), attention), get_gpu(gpu)
    needed = [break_even_bytes_per_s(spec, device, n, kv_dtype) for n in CONTEXTS]
    here = needed[CONTEXTS.index(context)]
    links = {place: link_to(place, device) for place in PLACES}
    color = ATTENTION.get(attention, SERIES[0])
    figure = line_chart(
        [Line("break-even: below it, recompute", CONTEXTS, [b / GB for b in needed], color)],
        axis("context (tokens)", log=True, low=CONTEXTS[0] / 1.1, high=CONTEXTS[-1] * 1.1),
        axis("bandwidth per GPU (GB/s)", log=True, low=min(0.1, needed[-1] / GB / 2), high=max(150, needed[0] / GB * 2)),
        marks=[Mark("your context", context, here / GB, LIMIT)],
    )
    figure["data"][0] |= {"fill": "tozeroy", "fillcolor": "rgba(42,127,196,0.14)"}     # PREFILL, thinned
    _add_bands(figure, links)
    figure["layout"]["annotations"] += [_words("fetch", 20.0, size=16), _words("recompute", 0.6, size=16)]
    per_token = recompute_s(spec, device, context) / context
    pays = [place for place, link in links.items() if link.effective_bytes_per_s > here]
    return View(
        title=f"{spoken(spec.name)}, {context:,} tokens: fetching pays on links that deliver more than {gb_words(here)}",
        picture=figure,
        table=[
            ["quantity", "value"],
            ["KV per token (KiB)", spec.shape.kv_bytes(context, kv_dtype) / context / 1024],
            ["recompute per token (µs)", 1e6 * per_token],
            ["break-even (GB/s)", here / GB],
            *([f"{place}: delivers (GB/s)", link.effective_bytes_per_s / GB] for place, link in links.items()),
            ["fetching pays from", ", ".join(pays) or "none of these"],
        ],
        source=COMPUTED,
        note="Each band runs from what a link delivers (80 % of its rate) up to its rate. Above the line, fetch; "
        "in the shaded part, recompute." + assumed_note(spec),
        numbers={"break_even_gb_per_s": here / GB, "places_that_pay": len(pays)},
    )


def _add_bands(figure: dict, links: dict[str, LinkSpec]) -> None:
    """Horizontal bands from delivered to rated bandwidth; names alternate sides, or neighbors would collide."""
    for i, (place, link) in enumerate(links.items()):
        low, high = link.effective_bytes_per_s / GB, link.bytes_per_s / GB
        figure["layout"]["shapes"].append({
            "type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": low, "y1": high, "layer": "below",
            "fillcolor": TRANSFER, "opacity": 0.35, "line": {"width": 0},
        })
        x, side = (0.01, "left") if i % 2 else (0.99, "right")
        figure["layout"]["annotations"].append(_words(place, math.sqrt(low * high), x=x, side=side))


def _words(text: str, gb_per_s: float, *, x: float = 0.5, side: str = "center", size: int = 12) -> dict:
    # Annotations on a logarithmic axis are placed by exponent.
    return {
        "xref": "paper", "x": x, "xanchor": side, "y": math.log10(gb_per_s),
        "text": text, "showarrow": False, "font": {"size": size},
    }


@explorer(
    title="Every place against recompute",
    controls=[
        Range("your_link", "Your link delivers", 0.1, 200.0, 23, default=5.0, unit="GB/s", log=True),
        Choice("context", "Context", CONTEXTS, default=8000, unit="tokens"),
        *model_controls("llama-3-8b"),
        Choice("gpu", "GPU", GPU_NAMES, default=DEFAULT_GPU),
        Choice("kv_dtype", "KV dtype", DTYPES, default="bf16"),
    ],
    expects={
        "your_link": "falls:your_ms",
        "context": "rises:recompute_ms",
        "kv_dtype": "falls:your_ms",
        "gpu": "changes:recompute_ms",
    },
)
def every_place(your_link, context, model, config, gpu, kv_dtype) -> View:
    """One bar per place, and recompute as the line to beat."""
    spec, device = model_or_file(model, config), get_gpu(gpu)
    kv_bytes = spec.shape.kv_bytes(context, kv_dtype)
    links = {
        "GPU memory": gpu_memory(device),
        **{place: link_to(place, device) for place in PLACES},
        "your link": LinkSpec("your link", your_link * GB),
    }
    load_ms = {place: 1e3 * transfer_s(kv_bytes, link) for place, link in links.items()}
    recompute_ms = 1e3 * recompute_s(spec, device, context)
    bars = {**load_ms, "recompute": recompute_ms}
    colors = [*(DECODE if place == "your link" else TRANSFER for place in load_ms), PREFILL]
    low, high = min(bars.values()) / 2, max(bars.values()) * 2
    time_axis = axis("time until the KV is there (ms)", log=True, low=low, high=high)
    wall = (recompute_ms, "recompute", LIMIT)
    figure = stacked_bars(list(bars), [("time", list(bars.values()), colors)], time_axis, walls=[wall])
    figure["layout"]["showlegend"] = False
    yours_ms = load_ms["your link"]
    return View(
        title=f"Your link brings {context:,} tokens in {time_words(yours_ms / 1e3)}: "
        f"{faster_words(recompute_ms / yours_ms)} than recomputing",
        picture=figure,
        table=[
            ["place", "delivers (GB/s)", "time (ms)", "recompute ÷ load"],
            *(
                [place, link.effective_bytes_per_s / GB, load_ms[place], recompute_ms / load_ms[place]]
                for place, link in links.items()
            ),
            ["recompute", "–", recompute_ms, 1.0],
        ],
        source=COMPUTED,
        note=f"{spoken(spec.name)} on one {spoken(device.name)}: {kv_bytes / GB:.3g} GB of KV. The dashed line is recompute. "
        "A hit in GPU memory moves nothing; its bar is one read of the cache." + assumed_note(spec),
        numbers={"your_ms": yours_ms, "recompute_ms": recompute_ms},
    )


@explorer(
    title="A 70B model against a 13B model, place by place",
    controls=[
        Choice("attention", "Attention of LLaMA-2-70B", KINDS, default="GQA"),
        Choice("context", "Context", CONTEXTS, default=8000, unit="tokens"),
        Choice("gpu", "Eight GPUs of this kind", GPU_NAMES, default="a800-80gb"),
    ],
    expects={
        "attention": "changes:large_on_four_ssds",
        "context": "changes:large_on_four_ssds",
        "gpu": "changes:large_on_four_ssds",
    },
)
def two_models(attention, context, gpu) -> View:
    """Recompute time over load time, for each tier of one machine with eight GPUs."""
    device = get_gpu(gpu)
    # Built with GQA; every other kind is a "what if".
    large, small = with_attention(get_model("llama-2-70b"), attention), get_model("opt-13b")
    links = machine_links(device)

    def ratios(model):
        again = recompute_s(model, device, context, 8)
        return [again / transfer_s(model.shape.kv_bytes(context), link) for link in links.values()]

    of_large, of_small = ratios(large), ratios(small)
    values = [*of_large, *of_small, 1.0]
    figure = line_chart(
        [
            Line(f"LLaMA-2-70B, {attention}", of_large, list(links), ATTENTION[attention], markers=True),
            Line("OPT-13B, MHA", of_small, list(links), SERIES[5], dash=1, markers=True),
        ],
        axis("recompute time ÷ load time", log=True, low=min(values) / 2, high=max(values) * 2),
        {**axis("", categories=list(links)), "autorange": "reversed"},
        walls=[(1.0, "break-even", LIMIT)],
    )
    by_place = dict(zip(links, zip(of_large, of_small)))
    on_ssds = by_place["four SSDs"]
    per_flop = [_kv_bytes_per_flop(model, device, context) for model in (large, small)]
    return View(
        title=f"From four SSDs the 70B model loads {faster_words(on_ssds[0])} than it recomputes, "
        f"OPT-13B {faster_words(on_ssds[1])}",
        picture=figure,
        table=[
            ["place", "delivers (GB/s)", f"LLaMA-2-70B, {attention}", "OPT-13B, MHA"],
            *([place, link.effective_bytes_per_s / GB, *by_place[place]] for place, link in links.items()),
            ["KV bytes per FLOP of recompute", "–", *(f"{value:.2g}" for value in per_flop)],
        ],
        source=COMPUTED,
        note="Right of the dashed line loading is faster. The larger model is the better customer of slow storage "
        "as long as its KV heads are shared: it has more work and fewer bytes per token.",
        numbers={"large_on_four_ssds": on_ssds[0], "small_on_four_ssds": on_ssds[1]},
    )


def _kv_bytes_per_flop(model: ModelSpec, gpu, context: int) -> float:
    return model.shape.kv_bytes(context) / ((recompute_s(model, gpu, context) - gpu.fixed_s) * gpu.flops_per_s)


def _predict_hit_that_hurts() -> Prediction:
    last = conversation(get_model("llama-3-8b"), get_gpu(DEFAULT_GPU), link_to(SLOW_NETWORK, get_gpu(DEFAULT_GPU)))[-1]
    fact = f"The hit takes {time_words(last.loaded_s)}, reading everything again {time_words(last.no_cache_s)}."
    return Prediction(
        f"Turn 20 of a chat with Llama-3-8B on an H100. All {last.history_tokens:,} tokens of history are cached, at "
        "the far end of a 3 Gb/s network. Compared with no cache at all, the first token comes …",
        (
            Option("much sooner: only the question is computed", f"It is, but the history has to arrive first. {fact}"),
            Option("at about the same time", f"That is near the truth for an SSD, not for this link. {fact}"),
            Option("much later", f"Every hit on this link costs more than the miss would. {fact}"),
        ),
        answer=2 if last.loaded_s > 1.5 * last.no_cache_s else (0 if last.no_cache_s > 1.5 * last.loaded_s else 1),
    )


@explorer(
    title="A chat of 20 turns",
    controls=[
        Choice("place", "The history is kept in", PLACES, default=SLOW_NETWORK),
        Toggle("overlap", "Load layer by layer while computing", default=False),
        Range("question", "Each question", 50, 1000, 9, default=200, unit="tokens", log=True),
        Range("answer", "Each answer", 100, 2000, 9, default=400, unit="tokens", log=True),
        Choice("model", "Model", MODEL_NAMES, default="llama-3-8b"),
        Choice("gpu", "GPU", GPU_NAMES, default=DEFAULT_GPU),
    ],
    predict=_predict_hit_that_hurts,
    expects={
        "place": "rises:hit_ms",
        "overlap": "falls:hit_ms",
        "question": "rises:no_cache_ms",
        "answer": "rises:no_cache_ms",
    },
)
def chat(place, overlap, question, answer, model, gpu) -> View:
    """TTFT of every turn: without a cache, with a hit in GPU memory, and with a hit in a slower place."""
    spec, device = get_model(model), get_gpu(gpu)
    turns = conversation(spec, device, link_to(place, device), question_tokens=question, answer_tokens=answer)
    hit = [1e3 * (turn.overlapped_s if overlap else turn.loaded_s) for turn in turns]
    no_cache = [1e3 * turn.no_cache_s for turn in turns]
    gpu_hit = [1e3 * turn.gpu_hit_s for turn in turns]
    numbers = [turn.number for turn in turns]
    values = [*hit, *no_cache, *gpu_hit]
    figure = line_chart(
        [
            Line("no cache", numbers, no_cache, PREFILL),
            Line(f"hit: {place}", numbers, hit, TRANSFER, dash=1, markers=True),
            Line("hit: GPU memory", numbers, gpu_hit, IDLE, dash=2),
        ],
        axis("turn", low=0.5, high=len(turns) + 0.5),
        axis("time to first token (ms)", log=True, low=min(values) / 1.5, high=max(values) * 1.5),
    )
    shown = (0, 1, 4, 9, 19)
    return View(
        title=f"Turn 20: first token after {time_words(hit[-1] / 1e3)} with a hit ({place}), "
        f"after {time_words(no_cache[-1] / 1e3)} with no cache",
        picture=figure,
        table=[
            ["turn", "history (tokens)", "no cache (ms)", "GPU memory (ms)", f"{place} (ms)"],
            *([numbers[i], turns[i].history_tokens, no_cache[i], gpu_hit[i], hit[i]] for i in shown),
        ],
        source=COMPUTED,
        note=f"{spoken(spec.name)} on one {spoken(device.name)}, alone on the machine. "
        f"{sum(h > n for h, n in zip(hit, no_cache))} of 20 turns are slower with the hit than without a cache.",
        numbers={"hit_ms": hit[-1], "no_cache_ms": no_cache[-1], "gpu_hit_ms": gpu_hit[-1]},
    )
