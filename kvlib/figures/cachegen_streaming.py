"""Chapter 14: KV on the wire, and what a sender does when the bandwidth changes."""

from __future__ import annotations

import math
from functools import cache

from kvlib.cachegen.account import PAPER_BITS, tie_gbps, ways
from kvlib.cachegen.bandwidth import (
    NS_PER_S,
    Bandwidth,
    markov,
    read_bandwidth,
    square_wave,
    steady,
    uniform_steps,
)
from kvlib.cachegen.streaming import ADAPTIVE, ORACLE, TEXT, Context, Delivery, prepare, stream
from kvlib.cost import recompute_s
from kvlib.explore import COMPUTED, SIMULATED, Choice, File, Option, Prediction, Range, View, explorer
from kvlib.explore.palette import DECODE, LIMIT, PREFILL, SERIES, TRANSFER
from kvlib.explore.svg import WIDTH, Drawing
from kvlib.figures.cachegen_data import encodings
from kvlib.figures.charts import Line, Mark, axis, line_chart, stacked_bars
from kvlib.specs import get_gpu, get_model

MODEL, GPU = "mistral-7b", "a40"
TOKENS, NUMBERS_PER_TOKEN = 9600, 65536
# Ours: CacheGen reports decoding as small beside the transfer and prints no rate.
DECODE_NUMBERS_PER_S = 4e9
HIGH_GBPS, LOW_GBPS, STEP_S = 4.0, 0.6, 0.1
SEEDS = 20
FORMATS = {"FP16": 16.0, "8-bit": 8.0, "CacheGen (paper)": PAPER_BITS}
NETWORKS = [
    ("square", "high and low in turn"),
    ("markov", "stays for a while"),
    ("independent", "redrawn every 0.1 s"),
    ("steady", "steady"),
]
LETTERS = {"8-bit": "8", "fine": "f", "good": "g", "medium": "m", "coarse": "c", TEXT: "T"}
POLICIES = [
    (ADAPTIVE, "adaptive"),
    (ORACLE, "oracle (knows the future)"),
    *((name, f"always {name}") for name in (*LETTERS,)),
]


@cache
def context_of(chunk_tokens: int) -> Context:
    """9,600 tokens of Mistral-7B on an A40, in chunks; sizes and losses per number as measured on SmolLM2."""
    return prepare(get_model(MODEL), get_gpu(GPU), TOKENS, chunk_tokens, encodings(), DECODE_NUMBERS_PER_S)


@cache
def recompute_all_s() -> float:
    return recompute_s(get_model(MODEL), get_gpu(GPU), TOKENS)


def network(kind: str, period_s: float, seed: int = 1) -> Bandwidth:
    """A bandwidth trace between 0.6 and 4 Gb/s."""
    if kind == "square":
        return square_wave(HIGH_GBPS, LOW_GBPS, period_s)
    if kind == "markov":
        # The mean stay of a state is STEP_S / (1 - stay).
        return markov(HIGH_GBPS, LOW_GBPS, max(0.0, 1 - STEP_S / period_s), STEP_S, seed)
    if kind == "independent":
        return uniform_steps(LOW_GBPS, HIGH_GBPS, STEP_S, seed)
    return steady((HIGH_GBPS + LOW_GBPS) / 2)


def _predict_wire() -> Prediction:
    found = {
        way.name: way.seconds for way in ways(NUMBERS_PER_TOKEN, TOKENS, 3.0, FORMATS, recompute_all_s())
    }
    fact = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in found.items()) + "."
    return Prediction(
        "9,600 tokens of Mistral-7B are cached on another machine. The link does 3 Gb/s. Compared with"
        " computing the KV again on an A40, sending it with 8 bits per number is …",
        (
            Option(
                "several times faster",
                f"A cache hit feels like it must be faster, but the link is slow. {fact}",
            ),
            Option("slower", f"{fact}"),
            Option("exactly as fast", f"It is close, but there is an order. {fact}"),
        ),
        answer=1 if found["8-bit"] > found["recompute"] else 0,
    )


@explorer(
    title="Send it, shrink it, or compute it again?",
    controls=[
        Range("gbps", "Link speed", 0.5, 100.0, 24, default=3.0, unit="Gb/s", log=True),
        Range("tokens", "Context", 1000, 32000, 12, default=TOKENS, unit="tokens", log=True),
        Range("bits", "Bits per number, compressed", 1.5, 6.0, 10, default=2.5),
    ],
    predict=_predict_wire,
    expects={"gbps": "falls:sent_8bit_s", "tokens": "rises:recompute_s", "bits": "rises:compressed_s"},
)
def wire(gbps, tokens, bits) -> View:
    """Seconds until the KV is on the GPU, for each way to get it there."""
    again = recompute_s(get_model(MODEL), get_gpu(GPU), tokens)
    formats = {"FP16": 16.0, "8-bit": 8.0, f"compressed, {bits:g} bits": bits}
    found = ways(NUMBERS_PER_TOKEN, tokens, gbps, formats, again)
    grid = [0.5 * 200 ** (i / 24) for i in range(25)]
    by_speed = [ways(NUMBERS_PER_TOKEN, tokens, speed, formats, again) for speed in grid]
    lines = [
        Line(
            way.name,
            grid,
            [at_speed[i].seconds for at_speed in by_speed],
            (SERIES[5], SERIES[1], SERIES[0], PREFILL)[i],
            i,
        )
        for i, way in enumerate(found)
    ]
    best = min(found, key=lambda way: way.seconds)
    seconds = {way.name: way.seconds for way in found}
    return View(
        title=f"At {gbps:g} Gb/s, {best.name} is fastest: {best.seconds:.2g} s",
        picture=line_chart(
            lines,
            axis("link speed (Gb/s)", log=True, low=0.5, high=100),
            axis("seconds until the KV is there", log=True, low=0.005, high=60),
            marks=[Mark("here", gbps, best.seconds, LIMIT)],
        ),
        table=[["way", "GB", "seconds", "ties with recompute at (Gb/s)"]]
        + [
            [
                way.name,
                way.num_bytes / 1e9,
                way.seconds,
                tie_gbps(NUMBERS_PER_TOKEN, tokens, formats[way.name], again) if way.name in formats else "–",
            ]
            for way in found
        ],
        source=COMPUTED,
        note=(
            "Mistral-7B on an A40 whose efficiency is fitted to the lecture's 1.51 s for 9,600 tokens."
            " Decoding is not counted here."
        ),
        numbers={"sent_8bit_s": seconds["8-bit"], "recompute_s": again, "compressed_s": found[2].seconds},
    )


@explorer(
    title="A sender that adapts",
    controls=[
        Choice("policy", "Sender", POLICIES, default=ADAPTIVE),
        Choice("kind", "Network between 0.6 and 4 Gb/s", NETWORKS, default="square"),
        Range("period_s", "How long a state lasts", 0.1, 2.0, 20, default=0.5, unit="s"),
        Choice("chunk_tokens", "Chunk", [300, 600, 1500, 3000, 9600], default=1500, unit="tokens"),
        Range("slo_s", "The context must be ready within", 0.5, 2.5, 11, default=1.3, unit="s"),
        File("trace", "Your own trace: seconds,gbps per line", accept=".csv,.txt"),
    ],
    expects={
        "policy": "changes:ready_s",
        "kind": "changes:ready_s",
        "chunk_tokens": "changes:ready_s",
        "slo_s": "changes:loss",
    },
)
def sending(policy, kind, period_s, chunk_tokens, slo_s, trace) -> View:
    """Link and GPU over time, chunk by chunk, under a bandwidth that changes."""
    link = read_bandwidth(trace) if trace else network(kind, period_s)
    sent = stream(context_of(chunk_tokens), link, policy, slo_s)
    in_time = sent.ready_s <= slo_s
    words = dict(POLICIES)[policy]
    return View(
        title=(
            f"{words.capitalize()}: ready after {sent.ready_s:.2f} s, {'in time' if in_time else 'too late'} for"
            f" {slo_s:g} s"
        ),
        picture=_timeline(sent, link, slo_s, words),
        table=[["chunk", "sent as", "sent (s)", "arrived (s)", "ready (s)"]]
        + [
            [
                i + 1,
                chunk.choice,
                *(round(ns / NS_PER_S, 3) for ns in (chunk.sent_ns, chunk.arrived_ns, chunk.ready_ns)),
            ]
            for i, chunk in enumerate(sent.chunks[:12])
        ],
        source=SIMULATED,
        note=(
            f"Mean KL {sent.loss:.2g}. Letters: 8 = 8-bit, f, g, m, c = fine to coarse, T = text, computed"
            " again. Sizes and KL per number are those measured on SmolLM2, for Mistral-7B's count of"
            " numbers."
        ),
        numbers={"ready_s": sent.ready_s, "loss": sent.loss, "in_time": int(in_time)},
    )


def _timeline(sent: Delivery, link: Bandwidth, slo_s: float, words: str) -> str:
    left, right = 58, WIDTH - 8
    end_s = max(sent.ready_s, slo_s) * 1.04

    def x(seconds):
        return left + (right - left) * seconds / end_s

    summary = ", ".join(f"chunk {i + 1} as {chunk.choice}" for i, chunk in enumerate(sent.chunks[:12]))
    drawing = Drawing(
        232, title=f"Sending, {words}", description=f"{summary}; ready after {sent.ready_s:.2f} s."
    )
    _draw_bandwidth(drawing, link, end_s, x)
    drawing.text(2, 112, "link")
    drawing.text(2, 162, "GPU")
    for chunk in sent.chunks:
        begin, arrived, ready = (ns / NS_PER_S for ns in (chunk.sent_ns, chunk.arrived_ns, chunk.ready_ns))
        _draw_box(drawing, x(begin), x(arrived), 90, TRANSFER, chunk.choice)
    free = 0
    for chunk in sent.chunks:
        start = max(free, chunk.arrived_ns)
        color = PREFILL if chunk.choice == TEXT else DECODE
        _draw_box(
            drawing,
            x(start / NS_PER_S),
            x(chunk.ready_ns / NS_PER_S),
            140,
            color,
            chunk.choice,
            hatched=chunk.choice == TEXT,
        )
        free = chunk.ready_ns
    drawing.line(x(slo_s), 8, x(slo_s), 190, color=LIMIT, dashed=True, width=2)
    drawing.text(x(slo_s) - 4, 206, f"limit {slo_s:g} s", anchor="end", color=LIMIT)
    drawing.text(left, 224, "0 s")
    drawing.text(right, 224, f"{end_s:.2f} s", anchor="end")
    return drawing.render()


def _draw_box(
    drawing: Drawing, x1: float, x2: float, y: float, color: str, choice: str, hatched: bool = False
) -> None:
    wide = x2 - x1 >= 11
    drawing.box(
        x1,
        y,
        max(x2 - x1, 0.6),
        32,
        fill=color,
        text=LETTERS[choice] if wide else "",
        hatched=hatched,
        title=choice,
    )


def _draw_bandwidth(drawing: Drawing, link: Bandwidth, end_s: float, x) -> None:
    """The bandwidth as a staircase, 60 units high."""
    peak = max(link.bytes_per_s)
    drawing.text(2, 30, "Gb/s")
    drawing.text(54, 24, f"{peak / 125e6:g}", anchor="end", size=12)
    ends = [*link.starts_ns[1:], math.inf]
    for start, end, speed in zip(link.starts_ns, ends, link.bytes_per_s):
        begin_s, stop_s = start / NS_PER_S, min(end / NS_PER_S, end_s)
        if begin_s < end_s:
            height = 60 * speed / peak
            drawing.box(x(begin_s), 76 - height, x(stop_s) - x(begin_s), height, fill="none")


def late_shares(period_s: float, chunk_tokens: int, slo_s: float) -> dict[str, tuple[float, float]]:
    """Share of contexts that are late, and their mean KL, for each sender over the same `SEEDS` networks."""
    context = context_of(chunk_tokens)
    networks = [network("markov", period_s, seed) for seed in range(1, SEEDS + 1)]
    found = {}
    for policy in ("8-bit", "good", "medium", "coarse", ADAPTIVE, ORACLE):
        sent = [stream(context, link, policy, slo_s) for link in networks]
        late = len([delivery for delivery in sent if delivery.ready_s > slo_s])
        found[policy] = (late / SEEDS, math.fsum(delivery.loss for delivery in sent) / SEEDS)
    return found


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _predict_late() -> Prediction:
    found = late_shares(2 * STEP_S, 1500, 1.3)
    fixed, adaptive = found["medium"][0], found[ADAPTIVE][0]
    fact = f"Late: adaptive {percent(adaptive)}, always medium {percent(fixed)}."
    return Prediction(
        "Every tenth of a second a coin decides whether the link does 4 or 0.6 Gb/s. Compared with a sender"
        " that always uses the level 'medium', one that adapts to the last chunk's bandwidth is late …",
        (
            Option("less often", f"It would be, if the last chunk said anything about the next. {fact}"),
            Option("as often", f"Chasing noise is not free. {fact}"),
            Option("more often", f"{fact} It spends all the slack that one lucky chunk promised."),
        ),
        answer=0 if adaptive < fixed else (1 if adaptive == fixed else 2),
    )


@explorer(
    title="When does adapting pay?",
    controls=[
        Range(
            "period_s", "Mean time in a state", 2 * STEP_S, 6.0, 12, default=2 * STEP_S, unit="s", log=True
        ),
        Choice("chunk_tokens", "Chunk", [300, 600, 1500, 3000], default=1500, unit="tokens"),
        Range("slo_s", "The context must be ready within", 0.7, 2.2, 6, default=1.3, unit="s"),
    ],
    predict=_predict_late,
    expects={
        "period_s": "changes:adaptive_late",
        "chunk_tokens": "changes:adaptive_loss",
        "slo_s": "changes:adaptive_late",
    },
)
def adapting(period_s, chunk_tokens, slo_s) -> View:
    """Share of contexts that come too late, for fixed levels, the adaptive sender and the oracle."""
    found = late_shares(period_s, chunk_tokens, slo_s)
    names = [f"always {name}" if name not in (ADAPTIVE, ORACLE) else name for name in found]
    late_percent = [100 * late for late, _ in found.values()]
    figure = stacked_bars(
        names, [("late", late_percent, SERIES[0])], axis("contexts too late (%)", low=0, high=100)
    )
    figure["layout"]["showlegend"] = False
    late, loss = found[ADAPTIVE]
    rivals = [
        name
        for name, (its_late, its_loss) in found.items()
        if name not in (ADAPTIVE, ORACLE) and its_late <= late and its_loss <= loss
    ]
    verdict = (
        f"always {rivals[0]} is as good or better on both counts"
        if rivals
        else "no fixed level beats it on both counts"
    )
    return View(
        title=f"The adaptive sender is late {percent(late)} of the time; {verdict}",
        picture=figure,
        table=[["sender", "late (%)", "mean KL (nats)"]]
        + [
            [name, 100 * its_late, float(f"{its_loss:.2g}")]
            for name, (its_late, its_loss) in zip(names, found.values())
        ],
        source=SIMULATED,
        note=(
            f"{SEEDS} networks that switch between 4 and 0.6 Gb/s, the same for every sender. At a mean stay"
            " of 0.2 s each tenth of a second is a coin toss. The oracle uses the sender's rule with the"
            " bandwidth to come."
        ),
        numbers={"adaptive_late": late, "adaptive_loss": loss, "oracle_late": found[ORACLE][0]},
    )


@explorer(
    title="How long should a chunk be?",
    controls=[
        Range("period_s", "How long a state lasts", 0.1, 2.0, 20, default=0.5, unit="s"),
        Range("slo_s", "The context must be ready within", 0.7, 2.2, 16, default=1.3, unit="s"),
    ],
    expects={"period_s": "changes:best_chunk", "slo_s": "changes:best_s"},
)
def chunk_length(period_s, slo_s) -> View:
    """Short chunks react sooner; long ones use the GPU better when text has to be computed again."""
    lengths = (200, 300, 600, 960, 1500, 2400, 3200, 4800, 9600)
    link = network("square", period_s)
    ready = {length: stream(context_of(length), link, ADAPTIVE, slo_s).ready_s for length in lengths}
    text = {length: stream(context_of(length), link, TEXT, slo_s).ready_s for length in lengths}
    best = min(lengths, key=lambda length: (ready[length] > slo_s, ready[length]))
    in_time = [length for length in lengths if ready[length] <= slo_s]
    return View(
        title=f"In time with {len(in_time)} of {len(lengths)} chunk lengths"
        + (f", the longest {max(in_time):,} tokens" if in_time else ""),
        picture=line_chart(
            [
                Line("adaptive sender", lengths, list(ready.values()), SERIES[0], markers=True),
                Line(
                    "all text, computed again", lengths, list(text.values()), SERIES[1], dash=1, markers=True
                ),
                Line("limit", [lengths[0], lengths[-1]], [slo_s, slo_s], LIMIT, dash=2),
            ],
            axis("tokens per chunk", log=True, low=90, high=10000),
            axis("seconds until ready", low=0, high=max(*ready.values(), *text.values()) * 1.1),
        ),
        table=[["tokens per chunk", "adaptive (s)", "all text (s)"]]
        + [[n, ready[n], text[n]] for n in lengths],
        source=SIMULATED,
        note=(
            "The network alternates between 4 and 0.6 Gb/s. Text in chunks below about 150 tokens would make"
            " the GPU read all weights for little work."
        ),
        numbers={
            "best_chunk": best,
            "best_s": ready[best],
            "text_200_s": text[200],
            "text_1500_s": text[1500],
        },
    )
