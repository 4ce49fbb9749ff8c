"""Chapter 1: the explorers that show why the KV cache is the scarce thing."""

from __future__ import annotations

from kvlib.blocks import BlockManager
from kvlib.cost import decode_step_s, decode_tokens_per_s
from kvlib.errors import ConfigError
from kvlib.explore import (
    COMPUTED, SIMULATED, Choice, Drawing, Option, Prediction, Range, Text, View, explorer,
)
from kvlib.explore.palette import ATTENTION, LIMIT, RESERVED, SERIES, USED
from kvlib.explore.svg import WIDTH
from kvlib.explore.words import counted, short
from kvlib.figures.charts import Line, Mark, axis, line_chart, stacked_bars
from kvlib.figures.inputs import AS_BUILT, DTYPES, GPU_NAMES, assumed_note, model_controls, model_or_file
from kvlib.specs import get_gpu, get_model, parse_engine_log
from kvlib.specs.attention_kinds import KINDS, with_attention
from kvlib.specs.capacity import kv_budget_bytes, requests_held
from kvlib.specs.models import ModelSpec
from kvlib.specs.names import spoken
from kvlib.specs.table import describe
from kvlib.workloads import sharegpt_like

GB = 1e9
KIB = 2**10
MOST_REQUESTS = 4096
# The drawing of one request's blocks: how many there are, and in which order earlier requests gave theirs back.
PHYSICAL_BLOCKS = 24
GONE = (9, 2, 14, 21, 5, 17, 11, 0, 19, 7, 23, 12, 4, 16, 3, 20)


def _predict_wall() -> Prediction:
    model, gpu = get_model("opt-13b"), get_gpu("a100-40gb")
    one, sixteen = (decode_step_s(model, gpu, [500] * n) for n in (1, 16))
    ratio = sixteen / one
    reply = f"The step takes {ratio:.1f} times as long: the weights are read once for everybody."
    return Prediction(
        "OPT-13B on an A100-40GB, 500 tokens of context each. You go from 1 sequence to 16. A decode step takes …",
        (
            Option("16 times as long", f"That would be so if each sequence read the weights for itself. {reply}"),
            Option("4 times as long", f"Sixteen KV caches are still far smaller than the weights. {reply}"),
            Option("about 1.2 times as long", reply),
        ),
        answer=2 if ratio < 2 else (1 if ratio < 8 else 0),
    )


@explorer(
    title="Decode throughput against requests held",
    controls=[
        Range("context", "Context per request", 100, 8000, 16, default=500, unit="tokens", log=True),
        Choice("attention", "Attention", (AS_BUILT, *KINDS), default=AS_BUILT),
        *model_controls("opt-13b"),
        Choice("gpu", "GPU", GPU_NAMES, default="a100-40gb"),
        Choice("num_gpus", "GPUs (tensor parallel)", [1, 2, 4, 8], default=1),
        Choice("kv_dtype", "KV dtype", DTYPES, default="bf16"),
    ],
    predict=_predict_wall,
    expects={"context": "falls:held", "attention": "changes:held", "kv_dtype": "changes:held", "gpu": "changes:held"},
)
def wall(context, attention, model, config, gpu, num_gpus, kv_dtype) -> View:
    """Throughput rises with requests held and stops at the memory wall."""
    spec, device = model_or_file(model, config), get_gpu(gpu)
    if attention != AS_BUILT:
        spec = with_attention(spec, attention)
    held = requests_held(spec, device, context, kv_dtype, num_gpus)
    if not held:
        raise ConfigError(_no_room(spec, device, context, kv_dtype, num_gpus))
    shown = min(held, MOST_REQUESTS)
    steps = sorted({1, *(max(1, round(shown * i / 24)) for i in range(25)), shown})
    rate = [decode_tokens_per_s(spec, device, n, context, kv_dtype, num_gpus) for n in steps]
    color = ATTENTION.get(attention, SERIES[0])
    last = rate[-1]
    figure = line_chart(
        [Line(attention, steps, rate, color, markers=True)],
        axis("requests held at once", low=0, high=shown * 1.15),
        axis("decoded tokens per second", low=0, high=last * 1.15),
        marks=[Mark("memory full", shown, last, LIMIT)],
        walls=[(shown, "memory full", LIMIT)],
    )
    step_ms = 1e3 * decode_step_s(spec, device, [context] * held, kv_dtype, num_gpus)
    return View(
        title=f"Memory is full at {counted(held, 'request')}, {last:,.0f} tokens per second",
        picture=figure,
        table=[
            ["quantity", "value"],
            ["requests held", held],
            ["tokens per second, one request", rate[0]],
            ["tokens per second, memory full", last],
            ["decode step, memory full (ms)", step_ms],
            ["KV per request (MB)", spec.shape.kv_bytes(context, kv_dtype) / 1e6],
            ["KV budget per GPU (GB)", kv_budget_bytes(spec, device, num_gpus) / GB],
        ],
        source=COMPUTED,
        note=f"{spoken(spec.name)} on {num_gpus} × {spoken(device.name)}. The slope is set by the weights, which one step reads once "
        f"for everybody; the wall by KV bytes.{_bend(steps, rate)}{assumed_note(spec)}",
        numbers={"held": held, "tokens_per_s": last},
    )


def _bend(steps: list[int], rate: list[float]) -> str:
    """A sentence about where arithmetic or the reading of KV flattens the curve before memory is full, if it does."""
    flat = next((n for n, r in zip(steps, rate) if r > 0.9 * rate[-1]), steps[-1])
    if flat > 0.6 * steps[-1]:
        return ""
    return f" From about {counted(flat, 'request')} on more requests bring little: something else fills up before memory does."


def _no_room(spec, device, context, kv_dtype, num_gpus) -> str:
    budget = kv_budget_bytes(spec, device, num_gpus)
    if not budget:
        return f"{spoken(spec.name)}: its weights alone fill {num_gpus} × {spoken(device.name)}; take more or larger GPUs"
    need = spec.shape.per_gpu(num_gpus).kv_bytes(context, kv_dtype)
    return f"not one request of {context:,} tokens fits: it needs {need / GB:.1f} GB per GPU and {budget / GB:.1f} GB are free"


@explorer(
    title="How large is it?",
    controls=[
        *model_controls("llama-3-8b"),
        Range("context", "Context length", 512, 131072, 17, default=8192, unit="tokens", log=True),
        Choice("kv_dtype", "KV dtype", DTYPES, default="bf16"),
        Choice("gpu", "GPU", GPU_NAMES, default="a100-80gb"),
    ],
    expects={
        "context": "rises:request_bytes",
        "kv_dtype": "changes:bytes_per_token",
        "model": "changes:bytes_per_token",
        "gpu": "changes:held",
    },
)
def size(model, config, context, kv_dtype, gpu) -> View:
    """Bytes per token, bytes per request, and how many such requests fit."""
    spec, device = model_or_file(model, config), get_gpu(gpu)
    shape = spec.shape
    lengths = sorted({*(2**k for k in range(9, 18)), context})
    ideal = [shape.kv_bytes(n, kv_dtype) / GB for n in lengths]
    lines = [Line("grows as it should", lengths, ideal, SERIES[0], markers=True)]
    uniform = [shape.kv_bytes(n, kv_dtype, policy="uniform") / GB for n in lengths]
    if uniform != ideal:
        lines.append(Line("every layer keeps every token", lengths, uniform, SERIES[1], dash=1))
    request = shape.kv_bytes(context, kv_dtype)
    per_token = shape.kv_bytes_per_token(kv_dtype)
    held, fits = _held_words(spec, device, context, kv_dtype)
    highest = max(uniform[-1], ideal[-1])
    figure = line_chart(
        lines,
        axis("context length (tokens)", log=True, low=lengths[0] / 1.1, high=lengths[-1] * 1.1),
        axis("KV of one request (GB)", log=True, low=ideal[0] / 2, high=highest * 2),
        marks=[Mark("your request", context, request / GB, LIMIT)],
    )
    return View(
        title=f"One request of {context:,} tokens takes {request / GB:.3g} GB",
        picture=figure,
        table=[
            ["quantity", "value"],
            ["KV bytes per token", per_token],
            ["KV per token (KiB)", per_token / KIB],
            ["fixed state per request (bytes)", shape.state_bytes],
            ["KV of this request (GB)", request / GB],
            [f"such requests on one {spoken(device.name)}", fits],
        ],
        source=COMPUTED,
        note=f"{spoken(spec.name)}: {describe(shape)}.{assumed_note(spec)}",
        numbers={"bytes_per_token": per_token, "request_bytes": request, "held": held},
    )


def _held_words(spec, device, context, kv_dtype) -> tuple[int, int | str]:
    if spec.weight_bytes is None:
        return 0, "unknown: this family's weights are not counted"
    held = requests_held(spec, device, context, kv_dtype)
    if held is None:
        return 0, "no limit: nothing grows"
    return held, held or ("0: the weights alone fill it" if not kv_budget_bytes(spec, device) else 0)


@explorer(
    title="What would each attention kind cost?",
    controls=[
        *model_controls("llama-3-70b"),
        Choice("kv_dtype", "KV dtype", DTYPES, default="bf16"),
    ],
    expects={"model": "changes:MHA", "kv_dtype": "changes:MHA"},
)
def attention_kinds(model, config, kv_dtype) -> View:
    """The same layers and head width with MHA, GQA, MQA and MLA."""
    spec = model_or_file(model, config)
    per_kind = {kind: with_attention(spec, kind).shape.kv_bytes_per_token(kv_dtype) for kind in KINDS}
    built = spec.shape.kv_bytes_per_token(kv_dtype)
    bars = {**per_kind, AS_BUILT: built}
    colors = [*(ATTENTION[kind] for kind in KINDS), SERIES[5]]
    figure = stacked_bars(list(bars), [("KiB per token", [b / KIB for b in bars.values()], colors)], axis("KV per token (KiB)"))
    figure["layout"]["showlegend"] = False
    ratio = short(per_kind["MHA"] / built)
    return View(
        title=f"{spoken(spec.name)} with MHA would cache {'just' if ratio == '1' else f'{ratio} times'} what it does",
        picture=figure,
        table=[["attention", "bytes per token", "share of MHA"]]
        + [[kind, size_bytes, size_bytes / per_kind["MHA"]] for kind, size_bytes in bars.items()],
        source=COMPUTED,
        note="GQA here means up to 8 KV heads, MLA a latent of 512 numbers and a rotary key of 64, as in DeepSeek-V3."
        + assumed_note(spec),
        numbers=per_kind,
    )


def _predict_tensor_parallel() -> Prediction:
    shape = get_model("llama-3-8b").shape
    eight, sixteen = (shape.per_gpu(n).kv_bytes_per_token() for n in (8, 16))
    fact = f"Eight GPUs hold {eight:,} bytes per token each; sixteen hold {sixteen:,} each."
    return Prediction(
        "Llama-3-8B has 8 KV heads. You go from 8 GPUs to 16. KV bytes per token on each GPU …",
        (
            Option("halve", f"A head cannot be cut in two, so from here on it is copied. {fact}"),
            Option("stay the same", f"There is one KV head left per GPU, and each is now kept twice. {fact}"),
            Option("double", f"Nothing grows on one GPU; it is the sum over GPUs that doubles. {fact}"),
        ),
        answer=1 if sixteen == eight else 0,
    )


@explorer(
    title="Tensor parallelism and the KV cache",
    controls=[
        Choice("num_gpus", "GPUs (tensor parallel)", [1, 2, 4, 8, 16, 32], default=8),
        *model_controls("llama-3-8b"),
    ],
    predict=_predict_tensor_parallel,
    expects={"num_gpus": "rises:summed", "model": "changes:summed"},
)
def tensor_parallel(num_gpus, model, config) -> View:
    """Per-GPU bytes stop falling once every GPU holds one KV head; then heads are copied."""
    spec = model_or_file(model, config)
    degrees = [n for n in (1, 2, 4, 8, 16, 32) if _divides(spec, n)]
    if num_gpus not in degrees:
        raise ConfigError(
            f"num_gpus: got {num_gpus}, which does not deal out the heads of {spoken(spec.name)} evenly; expected one of "
            + ", ".join(map(str, degrees))
        )
    per_gpu = [spec.shape.per_gpu(n).kv_bytes_per_token() for n in degrees]
    whole = spec.shape.kv_bytes_per_token()
    if not whole:
        raise ConfigError(
            f"config: got {spoken(spec.name)}, which caches nothing per token, expected a model with attention layers"
        )
    here = spec.shape.per_gpu(num_gpus).kv_bytes_per_token()
    figure = line_chart(
        [
            Line("on each GPU", degrees, [b / KIB for b in per_gpu], SERIES[0], markers=True),
            Line("if it always divided", degrees, [whole / n / KIB for n in degrees], SERIES[5], dash=2),
            Line("summed over GPUs", degrees, [b * n / KIB for b, n in zip(per_gpu, degrees)], SERIES[1], dash=1, markers=True),
        ],
        axis("GPUs (tensor parallel)", categories=[str(n) for n in degrees]),
        axis("KV per token (KiB)"),
        marks=[Mark("your choice", num_gpus, here / KIB, LIMIT)],
    )
    copies = here * num_gpus / whole
    kept = "once" if copies == 1 else f"{copies:.3g} times"
    return View(
        title=f"On {counted(num_gpus, 'GPU')} every KV byte is kept {kept}",
        picture=figure,
        table=[
            ["GPUs", "bytes per token on each", "summed", "copies"],
            *([n, b, b * n, b * n / whole] for n, b in zip(degrees, per_gpu)),
        ],
        source=COMPUTED,
        note="Data parallelism differs: each replica holds whole sequences of its own, so nothing is copied and nothing shrinks."
        + assumed_note(spec),
        numbers={"per_gpu": here, "summed": here * num_gpus},
    )


def _divides(spec: ModelSpec, num_gpus: int) -> bool:
    try:
        spec.shape.per_gpu(num_gpus)
    except ConfigError:
        return False
    return True


@explorer(
    title="It is large, it grows, and nobody knows how far",
    controls=[
        Range("requests", "Requests started together", 1, 32, 16, default=8),
        Choice("limit", "Declared maximum length", [512, 1024, 2048, 4096], default=2048, unit="tokens"),
        Range("seed", "Another draw of lengths", 1, 8, 8, default=1),
    ],
    expects={"requests": "rises:reserved", "limit": "rises:reserved", "seed": "changes:peak"},
)
def growth(requests, limit, seed) -> View:
    """Slots that tokens fill, step by step, against the slots a reservation holds."""
    drawn = sharegpt_like(requests, rate=1.0, seed=seed)
    lengths = [(r.num_input_tokens, min(r.num_output_tokens, max(1, limit - r.num_input_tokens))) for r in drawn]
    last = max(output for _, output in lengths)
    steps = sorted({*range(0, last + 1, max(1, last // 60)), *(out for _, out in lengths), *(out + 1 for _, out in lengths)})
    filled = [sum(prompt + step for prompt, out in lengths if step <= out) for step in steps]
    reserved = [sum(limit for _, out in lengths if step <= out) for step in steps]
    share = sum(filled) / max(1, sum(reserved))
    return View(
        title=f"Reserving {limit:,} slots for everybody, tokens fill {100 * share:.0f} % of what is held",
        picture=line_chart(
            [
                Line("held by a reservation", steps, reserved, RESERVED, dash=1),
                Line("filled with tokens", steps, filled, USED),
            ],
            axis("decode step"),
            axis("token slots", low=0, high=requests * limit * 1.05),
        ),
        table=[
            ["quantity", "value"],
            ["requests", requests],
            ["slots reserved at the start", requests * limit],
            ["slots filled at the start", filled[0]],
            ["most slots filled at once", max(filled)],
            ["share of held slots that is filled", share],
        ],
        source=f"{SIMULATED}, lengths drawn ShareGPT-like",
        note="Every request adds a token per step and gives everything back at once when it ends, "
        "at a moment nobody could name in advance.",
        numbers={"reserved": requests * limit, "peak": max(filled)},
    )


@explorer(
    title="Request, tokens, blocks: the logical and the physical view",
    controls=[
        Range("tokens", "Tokens in the request", 1, 64, 64, default=53),
        Choice("block_size", "Block size", [4, 8, 16, 32], default=16, unit="tokens"),
    ],
    expects={"tokens": "rises:blocks", "block_size": "falls:blocks"},
)
def request_to_blocks(tokens, block_size) -> View:
    """A request is a row of tokens; memory sees ceil(L / B) blocks that lie anywhere."""
    manager = BlockManager(num_blocks=PHYSICAL_BLOCKS, block_size=block_size)
    # Other requests came and went: those that are gone left free blocks all over the place.
    for other in range(PHYSICAL_BLOCKS):
        manager.allocate(other, block_size)
    for other in GONE:
        manager.free(other)
    manager.allocate("request", tokens)
    table = manager.block_table("request")
    empty = len(table) * block_size - tokens
    return View(
        title=f"{counted(tokens, 'token')} make{'s' * (tokens == 1)} {counted(len(table), 'block')} of {block_size}, "
        f"with {counted(empty, 'empty slot')} in the last",
        picture=_two_views(tokens, block_size, table),
        table=[["logical block", "tokens", "physical block"]]
        + [[i, f"{i * block_size}…{min(tokens, (i + 1) * block_size) - 1}", b] for i, b in enumerate(table)],
        source=COMPUTED,
        note="The block table is all that ties the two rows together. A block here is what SGLang calls a page.",
        numbers={"blocks": len(table), "empty": empty},
    )


def _two_views(tokens: int, block_size: int, table: list[int]) -> str:
    drawing = Drawing(
        200, title="Logical and physical blocks",
        description=f"{counted(tokens, 'token')} in {counted(len(table), 'logical block')}, "
        f"kept in physical {'block' if len(table) == 1 else 'blocks'} {', '.join(map(str, table))} of {PHYSICAL_BLOCKS}.",
    )
    drawing.text(0, 14, "What the request sees: tokens in a row", bold=True)
    wide, cell = min(112.0, WIDTH / len(table)), WIDTH / PHYSICAL_BLOCKS
    for i, block in enumerate(table):
        filled = min(block_size, tokens - i * block_size)
        drawing.box(i * wide, 24, wide - 4, 40)
        drawing.box(i * wide, 24, (wide - 4) * filled / block_size, 40, fill=USED, text=str(i))
        drawing.arrow(i * wide + (wide - 4) / 2, 66, (block + 0.5) * cell, 140)
    for block in range(PHYSICAL_BLOCKS):
        mine, free = block in table, block in GONE
        drawing.box(block * cell, 142, cell - 3, 34, fill=USED if mine else "none", dashed=free, hatched=not free)
        if mine:
            drawing.text((block + 0.5) * cell - 1, 164, str(block), anchor="middle", size=11, color="#000")
    drawing.text(0, 196, f"What memory holds: {PHYSICAL_BLOCKS} physical blocks; hatched ones are others'", bold=True)
    return drawing.render()


SAMPLE_LOG = "GPU KV cache size: 290,864 tokens. Maximum concurrency for 32,768 tokens per request: 33.04x"


@explorer(
    title="Check vLLM's start-up log",
    controls=[Text("log", "Paste the two lines", default=SAMPLE_LOG, longest=2000)],
)
def engine_log(log) -> View:
    """Do the two lines agree, and which one counts?"""
    read = parse_engine_log(log)
    said = {True: "agree", False: "disagree", None: "cannot be compared: one is missing"}[read.agrees]
    by_line = [
        ("GPU KV cache size", read.cache_tokens),
        ("concurrency × length", read.concurrency and read.concurrency * read.request_tokens),
    ]
    shown = [(name, tokens) for name, tokens in by_line if tokens]
    figure = stacked_bars([name for name, _ in shown], [("tokens", [t for _, t in shown], SERIES[0])], axis("tokens of KV"))
    figure["layout"]["showlegend"] = False
    return View(
        title=f"The two lines {said}; {read.tokens:,.0f} tokens can be held",
        picture=figure,
        table=[["line", "tokens"], *([name, round(tokens)] for name, tokens in shown)],
        source=COMPUTED,
        note="For models that mix kinds of layers, older vLLM counted the first line in another unit; the second is right for all.",
        numbers={"tokens": read.tokens},
    )
