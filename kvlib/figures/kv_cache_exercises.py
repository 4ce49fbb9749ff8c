"""Chapter 1: the self-checked exercises."""

from __future__ import annotations

import math

from kvlib.cost import weights_read_bytes
from kvlib.explore import Choice, Problem, Range, Search, Slip, Verdict, exercise
from kvlib.explore.words import counted
from kvlib.specs import GPUS, KvShape, get_gpu, get_model, kv_slots
from kvlib.specs.capacity import requests_held
from kvlib.specs.names import spoken

DENSE = ("opt-13b", "llama-3-8b", "llama-3-70b", "qwen2.5-14b", "qwen3-32b", "llama-2-70b")
SMALL = ("opt-13b", "llama-3-8b", "mistral-7b", "qwen2.5-14b")
LARGE_GPUS = ("a100-40gb", "a100-80gb", "h100-80gb", "h200", "l40s")


@exercise(title="Bytes per token")
def bytes_per_token(rng) -> Problem:
    model = get_model(rng.choice(DENSE))
    group = model.shape.groups[0]
    answer = model.shape.kv_bytes_per_token()
    full_heads = 2 * group.layers * model.query_heads * model.v_head_dim * 2
    return Problem(
        f"{spoken(model.name)} has {group.layers} layers, {model.query_heads} query heads, {group.kv_heads} KV heads and heads of "
        f"{model.v_head_dim} numbers. It keeps its cache in bf16. How many bytes does one token add?",
        answer,
        "bytes",
        f"Two tensors (K and V) × {group.layers} layers × {group.kv_heads} KV heads × {model.v_head_dim} numbers × 2 bytes "
        f"= {answer:,} bytes.",
        slips=(
            Slip(answer / 2, "You counted K without V, or one byte per number instead of two."),
            Slip(answer / 4, "You counted K without V, and one byte per number instead of two."),
            Slip(full_heads, "You used the query heads. Only KV heads are cached."),
            Slip(answer / 1024, "That is the number of KiB. The question asks for bytes."),
        ),
    )


@exercise(title="How many requests fit?")
def requests_that_fit(rng) -> Problem:
    model, gpu = get_model(rng.choice(SMALL)), get_gpu(rng.choice(LARGE_GPUS))
    context = rng.choice((500, 1000, 2048, 4096))
    answer = requests_held(model, gpu, context)
    per_request = model.shape.kv_bytes(context)
    no_share = math.floor((gpu.memory_bytes - model.weight_bytes) / per_request)
    return Problem(
        f"One {spoken(gpu.name)} has {gpu.memory_bytes / 1e9:.0f} GB (1 GB = 1e9 bytes), of which 90 % may be used. {spoken(model.name)} takes "
        f"{model.weight_bytes / 1e9:.2f} GB of weights and {model.shape.kv_bytes_per_token():,} bytes of KV per token. "
        f"How many requests of {context:,} tokens fit at once?",
        answer,
        "requests",
        f"0.9 × {gpu.memory_bytes / 1e9:.0f} GB − {model.weight_bytes / 1e9:.2f} GB leaves "
        f"{(0.9 * gpu.memory_bytes - model.weight_bytes) / 1e9:.2f} GB. One request takes {per_request / 1e9:.3f} GB. "
        f"Rounded down, {answer} fit.",
        slips=(
            Slip(no_share, "You gave the cache all of the memory. Ten percent stays for activations."),
            Slip(math.floor(0.9 * gpu.memory_bytes / per_request), "You forgot the weights."),
            Slip(answer + 1, "A request fits whole or not at all, so round down."),
        ),
    )


@exercise(title="The sum over tensor-parallel GPUs")
def tensor_parallel_sum(rng) -> Problem:
    model = get_model(rng.choice(("llama-3-8b", "llama-3-70b", "qwen2.5-14b", "llama-2-70b")))
    gpus = rng.choice((16, 32))
    heads = model.shape.groups[0].kv_heads
    whole = model.shape.kv_bytes_per_token()
    each = model.shape.per_gpu(gpus).kv_bytes_per_token()
    return Problem(
        f"{spoken(model.name)} has {heads} KV heads and caches {whole:,} bytes per token. It runs on {gpus} GPUs with tensor "
        "parallelism. Summed over all GPUs, how many bytes does one token take?",
        each * gpus,
        "bytes",
        f"A KV head cannot be split, so each of the {gpus} GPUs keeps one: {each:,} bytes. The sum is {each * gpus:,} bytes, "
        f"{gpus // heads} times the model's own {whole:,}.",
        slips=(
            Slip(whole, "That would need heads that can be cut. With fewer heads than GPUs, each head is kept more than once."),
            Slip(each, "That is one GPU. The question asks for the sum."),
            Slip(whole * gpus, "Every GPU keeps one head, not all of them."),
        ),
    )


@exercise(title="Ideal against uniform allocation")
def window_ratio(rng) -> Problem:
    window = rng.choice((1024, 2048, 4096))
    context = window * rng.choice((4, 8, 16))
    shape = KvShape.uniform(layers=32, kv_heads=8, head_dim=128, window=window)
    ratio = shape.kv_bytes(context, policy="uniform") / shape.kv_bytes(context)
    return Problem(
        f"Every layer of a model has a sliding window of {window:,} tokens. A request has {context:,} tokens. An engine that "
        "treats all layers alike keeps every token. How many times as much memory does it take as one that frees what "
        "has left the window?",
        ratio,
        "times",
        f"The ideal engine holds {window:,} tokens per layer, the uniform one {context:,}: {ratio:g} times as much.",
        slips=(Slip(1 / ratio, "That is the other way round."), Slip(ratio - 1, "That is how much more, not how many times as much.")),
    )


@exercise(title="When reading KV costs as much as reading weights")
def kv_equals_weights(rng) -> Problem:
    model, gpu = get_model("opt-13b"), get_gpu("a100-40gb")
    context = rng.choice((250, 500, 750, 1000))
    answer = round(weights_read_bytes(model, 1) / model.shape.kv_bytes(context))
    fit = requests_held(model, gpu, context)
    return Problem(
        f"OPT-13B has {model.weight_bytes / 1e9:.2f} GB of weights and {model.shape.kv_bytes_per_token():,} bytes of KV per "
        f"token. With {context} tokens per request, how many requests make one decode step read as many KV bytes as weight "
        "bytes? (Round to a whole number.)",
        answer,
        "requests",
        f"{model.weight_bytes / 1e9:.2f} GB ÷ ({context} × {model.shape.kv_bytes_per_token():,} bytes) ≈ {answer}. On one "
        f"{spoken(gpu.name)} only {fit} fit, so memory ends the party first.",
        tolerance=0.02,
        slips=(
            Slip(fit, "That is how many fit. The question asks when the two reads are equal."),
            Slip(2 * answer, "You counted K without V."),
        ),
    )


@exercise(title="Find a setting: move the wall")
def move_the_wall(rng) -> Search:
    model = get_model(rng.choice(SMALL))
    controls = (
        Choice("gpu", "GPU", [(name, spoken(name)) for name in GPUS], default="a100-40gb"),
        Range("context", "Context per request", 250, 8000, 32, default=4000, unit="tokens"),
        Choice("kv_dtype", "KV dtype", ("bf16", "fp8", "int4"), default="bf16"),
    )
    known = {"gpu": "a100-80gb", "context": 2000, "kv_dtype": "bf16"}
    target = requests_held(model, get_gpu(known["gpu"]), known["context"], known["kv_dtype"])
    low, high = math.floor(0.9 * target), math.ceil(1.1 * target)

    def judge(gpu, context, kv_dtype) -> Verdict:
        held = requests_held(model, get_gpu(gpu), context, kv_dtype)
        slots = kv_slots(model, get_gpu(gpu), kv_dtype) if held else 0
        said = f"This setting holds {counted(held, 'request')} ({slots:,} token slots; a request takes {context:,})."
        return Verdict(low <= held <= high, said if low <= held <= high else f"{said} Wanted: {low} to {high}.")

    return Search(
        f"Choose a GPU, a context length and a KV dtype so that {spoken(model.name)} holds between {low} and {high} requests at once.",
        controls,
        judge,
        known,
        f"One of many: {spoken(known['gpu'])}, {known['context']:,} tokens, {known['kv_dtype']} holds {target}. Halving the bytes per "
        "number or the context doubles what fits; weights decide how much of a small GPU is left at all.",
    )
