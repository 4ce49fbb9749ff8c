"""Chapter 8: the self-checked exercises."""

from __future__ import annotations

from kvlib.cost import attention_flops, linear_flops, recompute_s, transfer_s
from kvlib.explore import Choice, Problem, Search, Slip, Verdict, exercise
from kvlib.figures.inputs import AS_BUILT
from kvlib.figures.load_or_recompute import CONTEXTS, DEFAULT_GPU, faster_words, gb_words, time_words, with_kind
from kvlib.specs import get_gpu, get_model
from kvlib.specs.attention_kinds import KINDS
from kvlib.specs.names import spoken
from kvlib.tiers import link_to, meeting_point, overlap_layers

GPUS_ASKED = ("a100-80gb", "h100-80gb", "l40s", "h20")
MODELS_ASKED = ("llama-3-8b", "qwen2.5-14b", "mistral-7b", "llama-3-70b", "opt-13b")
LOAD_AND_COMPUTE_MS = ((2, 3), (3, 2), (1, 4), (4, 1), (2, 5), (5, 2), (3, 4), (5, 3))
SLOW = {"network 10 Gb/s": "a 10 Gb/s network", "SSD 7 GB/s": "a 7 GB/s SSD"}


@exercise(title="Break-even bandwidth")
def break_even_bandwidth(rng) -> Problem:
    model, gpu = get_model(rng.choice(MODELS_ASKED)), get_gpu(rng.choice(GPUS_ASKED))
    tokens = rng.choice((4000, 8000, 16000, 32000))
    kib = model.shape.kv_bytes_per_token() // 1024
    total_ms = round(1e3 * recompute_s(model, gpu, tokens))
    per_token_s = total_ms / 1e3 / tokens
    answer = kib * 1024 / per_token_s / 1e9
    return Problem(
        f"{spoken(model.name)} caches {kib} KiB per token. On one {spoken(gpu.name)} a prefill of {tokens:,} tokens takes {total_ms:,} ms. "
        "At which bandwidth, in GB/s (1 GB = 1e9 bytes), does loading those tokens take as long as recomputing them?",
        answer,
        "GB/s",
        f"Recomputing takes {total_ms:,} ms ÷ {tokens:,} = {1e6 * per_token_s:.1f} µs per token. {kib} KiB are "
        f"{kib * 1024:,} bytes, and {kib * 1024:,} bytes ÷ {1e6 * per_token_s:.1f} µs = {answer:.2f} GB/s.",
        tolerance=0.01,
        slips=(
            Slip(kib * 1000 / per_token_s / 1e9, "A KiB is 1,024 bytes, not 1,000."),
            Slip(answer * 1e9 / 2**30, "That is GiB/s. The question asks for GB/s."),
            Slip(answer * 8, "That is gigabits per second. The question asks for bytes."),
            Slip(answer / 8, "You divided by eight, but KiB and GB both count bytes already."),
            Slip(answer / 2, "You halved the bytes, but the KiB given count K and V together already."),
            Slip(answer * 2, "You let the bytes travel there and back. Loading is one way."),
        ),
    )


@exercise(title="KV bytes per FLOP")
def bytes_per_flop_ratio(rng) -> Problem:
    wide = get_model(rng.choice(("opt-13b", "opt-66b")))
    narrow = get_model(rng.choice(("llama-2-70b", "llama-3-8b", "qwen2.5-14b")))
    kv = {model: model.shape.kv_bytes_per_token() for model in (wide, narrow)}
    gflop = {model: round(linear_flops(model, 1) / 1e9, 1) for model in (wide, narrow)}
    answer = (kv[wide] / gflop[wide]) / (kv[narrow] / gflop[narrow])
    return Problem(
        f"{spoken(wide.name)} caches {kv[wide]:,} bytes per token and computes {gflop[wide]:g} GFLOP for it (matrix products "
        f"only). {spoken(narrow.name)} caches {kv[narrow]:,} bytes and computes {gflop[narrow]:g} GFLOP. On the same GPU, how many "
        f"times as much bandwidth does {spoken(wide.name)} need before loading beats recomputing?",
        answer,
        "times",
        f"Load ÷ recompute = (bytes ÷ FLOP) × (FLOP rate ÷ bandwidth), so what counts is bytes per FLOP: "
        f"{kv[wide] / gflop[wide] / 1e9:.2g} against {kv[narrow] / gflop[narrow] / 1e9:.2g}, a ratio of {answer:.3g}.",
        tolerance=0.01,
        slips=(
            Slip(1 / answer, "That is the other way round."),
            Slip(kv[wide] / kv[narrow], "That compares bytes only. The work per token differs too."),
            Slip(gflop[narrow] / gflop[wide], "That compares the work only. The bytes per token differ too."),
        ),
    )


@exercise(title="Serial and overlapped")
def overlapped_time(rng) -> Problem:
    layers = rng.choice((32, 48, 64, 80))
    load, compute = rng.choice(LOAD_AND_COMPUTE_MS)
    run = overlap_layers([load] * layers, [compute] * layers, [0] * layers)
    slower, faster = max(load, compute), min(load, compute)
    return Problem(
        f"A model has {layers} layers. Loading the cached KV of one layer takes {load} ms, computing one layer "
        f"{compute} ms. While a layer computes, the next ones load. After how many milliseconds has the last layer computed?",
        run.prefill_s,
        "ms",
        f"The beat is the slower of the two, {slower} ms, once per layer. The faster one shows once, at the start or "
        f"at the end: {layers} × {slower} + {faster} = {run.prefill_s:g} ms. Serially it would be {run.serial_s:g} ms. "
        "Swap the two numbers and the time is the same, but then the other worker waits.",
        slips=(
            Slip(run.serial_s, "That is one after the other, without overlap."),
            Slip(layers * slower, "The first layer has nothing to hide behind: its faster part counts once."),
            Slip(layers * faster, "The slower of the two sets the beat."),
        ),
    )


@exercise(title="Where do they meet?")
def where_they_meet(rng) -> Problem:
    tokens = rng.choice((8000, 16000, 32000))
    model, gpu = get_model("llama-3-8b"), get_gpu(DEFAULT_GPU)
    rate = rng.choice((2, 4, 6, 10, 15)) * 10**9
    # Two coefficients a reader can type: microseconds per token, and nanoseconds per pair of tokens.
    linear_us = round(1e6 * linear_flops(model, 1) / gpu.flops_per_s, 1)
    square_ns = round(1e9 * attention_flops(model, 1) / gpu.flops_per_s, 2)
    load_us = round(1e6 * model.shape.kv_bytes_per_token() / rate, 1)

    def compute_s(n: int) -> float:
        return linear_us * 1e-6 * n + square_ns * 1e-9 * n * n

    def load_s(n: int) -> float:
        return load_us * 1e-6 * n

    best = meeting_point(tokens, compute_s, load_s)
    per_token = compute_s(tokens) / tokens
    return Problem(
        f"All {tokens:,} tokens of a prompt are cached behind a link that brings one token in {load_us} µs. Recomputing "
        f"the first n tokens takes {linear_us} µs × n + {square_ns} ns × n². The GPU works from the front while the link "
        "works from the back. How many tokens should the GPU recompute, so that both finish together?",
        best.recomputed_tokens,
        "tokens",
        f"Solve {linear_us} µs × n + {square_ns} ns × n² = {load_us} µs × ({tokens:,} − n). The minimum over all whole n "
        f"is at n = {best.recomputed_tokens:,}: {time_words(best.total_s)}, against {time_words(load_s(tokens))} for "
        f"loading alone and {time_words(compute_s(tokens))} for recomputing alone.",
        tolerance=0.01,
        slips=(
            Slip(tokens - best.recomputed_tokens, "That is how many tokens the link should bring."),
            Slip(tokens / 2, "Half and half is right only where both work at the same speed."),
            Slip(
                round(tokens * load_us * 1e-6 / (load_us * 1e-6 + per_token)),
                "You used the average time per token. The front of the prompt is cheaper than that.",
            ),
            Slip(
                round(tokens * load_us / (load_us + linear_us)),
                "You left out the attention, the part that grows with n².",
            ),
        ),
    )


@exercise(title="Find a setting: make the slow link pay")
def make_it_pay(rng) -> Search:
    place = rng.choice(tuple(SLOW))
    wanted = rng.choice((1.2, 1.5, 2.0))
    gpu = get_gpu(DEFAULT_GPU)
    link = link_to(place, gpu)
    controls = (
        Choice("model", "Model", MODELS_ASKED, default="opt-13b"),
        Choice("context", "Context", CONTEXTS, default=2000, unit="tokens"),
        Choice("attention", "Attention", (AS_BUILT, *KINDS), default=AS_BUILT),
    )

    def judge(model, context, attention) -> Verdict:
        spec = with_kind(get_model(model), attention)
        again, load = recompute_s(spec, gpu, context), transfer_s(spec.shape.kv_bytes(context), link)
        said = f"Loading takes {time_words(load)}, recomputing {time_words(again)}: {faster_words(again / load)}."
        pays = again / load >= wanted
        return Verdict(pays, said if pays else f"{said} Wanted: at least {wanted:g} times faster.")

    return Search(
        f"Somebody says: \"KV behind {SLOW[place]} is never worth loading.\" With OPT-13B and 2,000 tokens on an H100 "
        "they are right. Find a model, a context and an attention kind for which loading is at least "
        f"{wanted:g} times faster than recomputing.",
        controls,
        judge,
        {"model": "llama-3-70b", "context": 128000, "attention": "MLA"},
        "Three levers lower the break-even bandwidth: a longer context, a larger model with the same KV heads, and an "
        f"attention kind that stores less. The link delivers {gb_words(link.effective_bytes_per_s)}, so the break-even "
        f"has to fall below {gb_words(link.effective_bytes_per_s / wanted)}.",
    )
