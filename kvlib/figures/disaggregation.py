"""Chapter 10: should prefill and decode share a GPU?"""

from __future__ import annotations

from functools import lru_cache

from kvlib.cluster import (
    MODES, Hardware, Machine, Workload, decode_rate, long_prompt, prefill_rate, serve_coupled,
    serve_disaggregated,
)
from kvlib.cost import decode_step_s, prefill_s, transfer_s
from kvlib.explore import COMPUTED, SIMULATED, Choice, Drawing, Option, Prediction, View, explorer
from kvlib.explore.palette import DECODE, FREE, LIMIT, PREFILL, TRANSFER
from kvlib.explore.svg import WIDTH
from kvlib.figures.charts import Line, axis, line_chart, stacked_bars
from kvlib.ledger import GPU, LONG_DOCUMENT, MODEL, SHORT_CHAT
from kvlib.specs import get_gpu, get_link, get_model, kv_slots
from kvlib.workloads import fixed_lengths

USERS = {"chat": SHORT_CHAT, "document": LONG_DOCUMENT}
USER_WORDS = [("chat", "short chat, 161 in / 338 out"), ("document", "long document, 8,590 in / 182 out")]
MODE_WORDS = {"coupled": "coupled", "chunked": "chunked prefill", "disaggregated": "separate prefill GPU"}
LINKS = [
    ("nvlink3", "NVLink of an A100, 300 GB/s"), ("net-800g", "RDMA, 800 Gb/s"),
    ("net-100g", "RDMA, 100 Gb/s"),
    ("net-25g", "Ethernet, 25 Gb/s"), ("net-10g", "Ethernet, 10 Gb/s"),
]
NUM_GPUS = 8
ROWS_DRAWN, LEFT = 6, 74


def machine() -> Machine:
    """Eight GPUs in one node, with the book's running model."""
    return Machine(get_model(MODEL), get_gpu(GPU), 1, NUM_GPUS, get_link("nvlink3"), get_link("net-100g"))


def workload(user: str, tbt_ms: int) -> Workload:
    """The objectives: the first token within two seconds, the others within ``tbt_ms`` on average."""
    return Workload(USERS[user].num_input_tokens, USERS[user].num_output_tokens, 2.0, tbt_ms / 1e3)


@lru_cache(maxsize=64)
def pool_rates(user: str, tbt_ms: int) -> tuple[float, float]:
    """Requests/s of one prefill and of one decode GPU."""
    return prefill_rate(machine(), workload(user, tbt_ms)), decode_rate(machine(), workload(user, tbt_ms))


def best_split(user: str, tbt_ms: int = 50) -> int:
    """Prefill GPUs of the best split of eight."""
    prefill, decode = pool_rates(user, tbt_ms)
    return max(range(1, NUM_GPUS), key=lambda n: min(n * prefill, (NUM_GPUS - n) * decode))


@explorer(
    title="Thirty-two users and one long prompt",
    controls=[
        Choice(
            "prompt_tokens", "The long prompt has", [512, 1024, 2048, 4096, 8192], default=4096,
            unit="tokens",
        ),
        Choice("mode", "It is prefilled by", list(MODE_WORDS.items()), default="coupled"),
        Choice(
            "chunk_tokens", "Chunk, for chunked prefill", [64, 128, 256, 512, 1024], default=256,
            unit="tokens",
        ),
        Choice("users", "Users who are decoding", [1, 8, 32, 64], default=32),
    ],
    expects={
        "prompt_tokens": "rises:longest_gap_ms", "mode": "changes:longest_gap_ms",
        "chunk_tokens": "rises:chunked_gap_ms",
        "users": "rises:longest_gap_ms",
    },
)
def comb(prompt_tokens, mode, chunk_tokens, users) -> View:
    """Each tooth is a token of a user. All users of a batch get theirs at the same instant."""
    model, gpu = get_model(MODEL), get_gpu(GPU)
    runs = {
        m: long_prompt(model, gpu, prompt_tokens, m, users=users, chunk_tokens=chunk_tokens) for m in MODES
    }
    shown = runs[mode]
    gap_ms = {m: 1e3 * r.longest_gap_s for m, r in runs.items()}
    return View(
        title=(
            f"{MODE_WORDS[mode].capitalize()}: the longest wait for a token is {gap_ms[mode]:.0f} ms, the "
            "long prompt's first token "
            f"takes {1e3 * shown.first_token_s:.0f} ms"
        ),
        picture=_draw_comb(shown, max(r.token_times_s[-1] for r in runs.values()), min(users, ROWS_DRAWN)),
        table=[
            ["prefilled by", "longest wait of the users (ms)", "first token of the long prompt (ms)"],
            *([MODE_WORDS[m], gap_ms[m], 1e3 * r.first_token_s] for m, r in runs.items()),
        ],
        source=COMPUTED,
        note=(
            f"Llama-3-8B on an A100; the users hold 500 tokens each. Chunks are {chunk_tokens} tokens. At "
            "most six users are drawn. The separate GPU "
            "still has to send the KV; that comes later in the chapter."
        ),
        numbers={"longest_gap_ms": gap_ms[mode], "chunked_gap_ms": gap_ms["chunked"]},
    )


def _draw_comb(run, end_s: float, rows: int) -> str:
    drawing = Drawing(
        rows * 26 + 78, title="Token times of decoding users around a long prompt",
        description=f"{len(run.token_times_s)} steps; the longest takes {1e3 * run.longest_gap_s:.0f} ms.",
    )
    scale = (WIDTH - LEFT) / end_s
    for row in range(rows):
        y = 10 + row * 26
        drawing.text(0, y + 15, f"user {row + 1}")
        drawing.line(LEFT, y + 20, WIDTH, y + 20, width=0.6)
        for moment in run.token_times_s:
            drawing.line(LEFT + moment * scale, y, LEFT + moment * scale, y + 20, width=2, color=DECODE)
    y, start_s = 14 + rows * 26, 0.0
    drawing.text(0, y + 16, "prompt")
    for end, tokens in zip(run.token_times_s, run.prompt_tokens_in_step):
        if tokens:
            drawing.box(LEFT + start_s * scale, y, (end - start_s) * scale, 22, fill=PREFILL)
        start_s = end
    if not any(run.prompt_tokens_in_step):
        drawing.text(LEFT, y + 16, "on another GPU")
    drawing.text(LEFT, y + 44, "0")
    drawing.text(WIDTH, y + 44, f"{1e3 * end_s:,.0f} ms", anchor="end")
    return drawing.render()


def _predict_split() -> Prediction:
    chat, document = best_split("chat"), best_split("document")
    fact = (
        f"For short chats the best split is {chat} for prefill and {NUM_GPUS - chat} for decode; for long "
        f"documents it is {document} and {NUM_GPUS - document}."
    )
    return Prediction(
        "You have eight GPUs for short chats: 161 tokens in, 338 out. How many should prefill?",
        (
            Option(
                "one",
                "Prefill is one pass and decode 338 steps, but steps are shared by hundreds of users and "
                f"passes are not. {fact}",
            ),
            Option(
                "three",
                "Decode needs somewhat more GPU time here: hundreds of users share each step, so 338 steps "
                f"are not 338 times the work. {fact}",
            ),
            Option(
                "four: both phases matter",
                f"Both matter, but not equally, and the smaller pool decides. {fact}",
            ),
            Option(
                "six: prefill does the heavy arithmetic",
                "Per request the prompt is short here; reading weights and KV for 338 tokens takes longer. "
                f"{fact}",
            ),
        ),
        answer=min(range(4), key=lambda index: abs((1, 3, 4, 6)[index] - chat)),
    )


@explorer(
    title="Splitting eight GPUs",
    controls=[
        Choice("prefill_gpus", "GPUs for prefill", list(range(1, NUM_GPUS)), default=4),
        Choice("user", "Workload", USER_WORDS, default="chat"),
        Choice(
            "tbt_ms", "Objective for the time between tokens", [15, 20, 30, 50, 100], default=50, unit="ms",
        ),
    ],
    predict=_predict_split,
    expects={
        "prefill_gpus": "rises:prefill_per_s", "user": "changes:best_prefill_gpus",
        "tbt_ms": "rises:decode_per_s",
    },
)
def split(prefill_gpus, user, tbt_ms) -> View:
    """What each pool can serve within its objective; the cluster serves the smaller."""
    prefill, decode = pool_rates(user, tbt_ms)
    counts = list(range(1, NUM_GPUS))
    pools = {n: (n * prefill, (NUM_GPUS - n) * decode) for n in counts}
    best, mine = best_split(user, tbt_ms), pools[prefill_gpus]
    side = "prefill" if mine[0] < mine[1] else "decode"
    return View(
        title=(
            f"{prefill_gpus} for prefill, {NUM_GPUS - prefill_gpus} for decode: {min(mine):.1f} requests/s, "
            f"limited by {side}; the best split, "
            f"{best} and {NUM_GPUS - best}, serves {min(pools[best]):.1f}"
        ),
        picture=line_chart(
            [
                Line("prefill pool", counts, [pools[n][0] for n in counts], PREFILL, dash=1, markers=True),
                Line("decode pool", counts, [pools[n][1] for n in counts], DECODE, markers=True),
            ],
            axis("GPUs for prefill, of eight"),
            axis("requests/s within the objectives", low=0, high=1.1 * max(map(max, pools.values()))),
            walls=[(prefill_gpus, "your split", LIMIT)],
        ),
        table=[
            [
                "prefill + decode", "prefill pool (requests/s)", "decode pool (requests/s)",
                "cluster (requests/s)",
            ],
            *([f"{n} + {NUM_GPUS - n}", *pools[n], min(pools[n])] for n in counts),
        ],
        source=COMPUTED,
        note=(
            "Llama-3-8B, one A100 per instance, first token within 2 s on average, all requests of mean "
            "length. The closed form of "
            "kvlib.cluster.placement."
        ),
        numbers={
            "prefill_per_s": mine[0], "decode_per_s": mine[1], "goodput": min(mine),
            "best_prefill_gpus": best,
        },
    )


@explorer(
    title="What separating costs",
    controls=[
        Choice("link", "KV crosses", LINKS, default="nvlink3"),
        Choice("prompt_tokens", "Prompt", [256, 512, 1024, 2048], default=2048, unit="tokens"),
        Choice(
            "model", "Model", [("opt-13b", "OPT-13B (MHA)"), ("llama-3-8b", "Llama-3-8B (GQA)")],
            default="opt-13b",
        ),
    ],
    expects={
        "link": "changes:transfer_ms", "prompt_tokens": "rises:transfer_ms", "model": "falls:transfer_ms",
    },
)
def price(link, prompt_tokens, model) -> View:
    """Times of one request, and what two GPUs hold when both store the weights and one of them decodes."""
    spec, gpu = get_model(model), get_gpu(GPU)
    compute_ms = 1e3 * prefill_s(spec, gpu, prompt_tokens)
    moved_bytes = spec.shape.kv_bytes(prompt_tokens)
    send_ms = 1e3 * transfer_s(moved_bytes, get_link(link))
    step_ms = 1e3 * decode_step_s(spec, gpu, [500] * 32)
    slots = kv_slots(spec, gpu)
    together = kv_slots(spec, gpu, num_gpus=2)
    figure = stacked_bars(
        ["prefill", "send the KV", "one decode step"],
        [("time", [compute_ms, send_ms, step_ms], TRANSFER)],
        axis("time (ms)", log=True, low=1, high=2 * max(compute_ms, send_ms, step_ms)),
    )
    figure["data"][0]["marker"]["color"] = [PREFILL, TRANSFER, DECODE]
    figure["layout"]["showlegend"] = False
    verdict = "less than a decode step" if send_ms < step_ms else f"{send_ms / compute_ms:.0%} of the prefill"
    return View(
        title=f"Sending the KV of {prompt_tokens:,} tokens takes {send_ms:.1f} ms: {verdict}",
        picture=figure,
        table=[
            ["on two GPUs", "copies of the weights", "weights (GB)", "KV slots for decoding"],
            ["one instance over both (TP 2)", 1, spec.weight_bytes / 1e9, together],
            ["two coupled instances", 2, 2 * spec.weight_bytes / 1e9, 2 * slots],
            ["one prefill, one decode", 2, 2 * spec.weight_bytes / 1e9, slots],
        ],
        source=COMPUTED,
        note=(
            f"{moved_bytes / 1e9:.2f} GB of KV. Links deliver 80 % of their rate. Sent layer by layer, most "
            "of the transfer hides behind the prefill."
        ),
        numbers={"transfer_ms": send_ms, "prefill_ms": compute_ms, "step_ms": step_ms},
    )


@lru_cache(maxsize=256)
def attainments(rate: float, tbt_ms: int, chunk_tokens: int, link: str) -> dict[
    str, tuple[float, float, float],
]:
    """Attainment, P90 TTFT and P90 TBT of three ways to use three GPUs, on DistServe's first example."""
    requests = fixed_lengths(150, rate, 0, num_input_tokens=512, num_output_tokens=64)
    hardware = Hardware(link=link)
    runs = {
        "coupled [3M]": serve_coupled(requests, 3, hardware),
        "coupled, chunked [3M]": serve_coupled(requests, 3, hardware, chunk_tokens=chunk_tokens),
        "separate [2P+1D]": serve_disaggregated(requests, 2, 1, hardware),
    }
    return {
        name: (
            run.attainment(ttft_slo_s=0.4, tbt_slo_s=tbt_ms / 1e3), run.percentile("ttft_s", 90),
            run.percentile("tbt_s", 90)
        )
        for name, run in runs.items()
    }


@explorer(
    title="Three ways to use three GPUs",
    controls=[
        Choice("rate", "Load", [4, 8, 12, 16, 20, 24, 28, 32, 36], default=24, unit="requests/s"),
        Choice(
            "tbt_ms", "Objective for the time between tokens", [20, 25, 30, 40, 60], default=25, unit="ms",
        ),
        Choice(
            "chunk_tokens", "Largest step of chunked prefill", [128, 256, 512, 1024], default=256,
            unit="tokens",
        ),
        Choice("link", "KV crosses", LINKS, default="nvlink3"),
    ],
    expects={
        "rate": "falls:coupled_percent", "tbt_ms": "rises:coupled_percent",
        "chunk_tokens": "changes:chunked_percent",
        "link": "changes:separate_percent",
    },
)
def served(rate, tbt_ms, chunk_tokens, link) -> View:
    """Share of requests within both objectives: coupled, coupled with chunked prefill, separate."""
    ways = attainments(rate, tbt_ms, chunk_tokens, link)
    percents = {name: 100 * values[0] for name, values in ways.items()}
    best = max(percents, key=percents.get)
    figure = stacked_bars(
        list(percents), [("within both objectives", list(percents.values()), FREE)],
        axis("share of requests (%)", low=0, high=105),
        walls=[(90, "90 %", LIMIT)],
    )
    figure["layout"]["showlegend"] = False
    return View(
        title=(
            f"At {rate} requests/s and {tbt_ms} ms, {best} serves most within both objectives: "
            f"{percents[best]:.0f} %"
        ),
        picture=figure,
        table=[
            ["three GPUs", "within both (%)", "P90 TTFT (ms)", "P90 time between tokens (ms)"],
            *([name, 100 * met, 1e3 * ttft, 1e3 * tbt] for name, (met, ttft, tbt) in ways.items()),
        ],
        source=SIMULATED,
        note=(
            "OPT-13B on A100s of 80 GB, 150 requests of 512 tokens in and 64 out, first token within 0.4 s. "
            "The time between tokens is each "
            "request's mean, as in DistServe."
        ),
        numbers=dict(zip(("coupled_percent", "chunked_percent", "separate_percent"), percents.values())),
    )
