"""Chapter 6: what a server gains when requests share blocks, found again or forked."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from kvlib.explore import Choice, Option, Prediction, View, explorer
from kvlib.explore.palette import LIMIT, POLICY, SERIES
from kvlib.figures.charts import Line, axis, level, line_chart, up_to

PRECOMPUTED = "simulated beforehand by kvlib (kvlib/figures/data/make_serving_sharing.py)"
# Mean latency per token: three to four times that of an idle server without caching.
LIMITS_MS = {"chat": 50, "agents": 2000, "documents": 200, "rag": 100}
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15)
KINDS = {
    "chat": "turns repeat what was said",
    "agents": "tools, many quick steps",
    "documents": "questions about popular texts",
    "rag": "chunks in an order of their own",
}


@cache
def precomputed() -> dict:
    """The whole file."""
    return json.loads(Path(__file__).with_name("data").joinpath("serving_sharing.json").read_text(encoding="utf-8"))


def best_rate(kind: str, is_on: bool) -> float:
    """The highest rate within the limit, with or without prefix caching."""
    return precomputed()["caching_rates"][f"{kind}|{is_on}"]


def caching_gain(kind: str) -> float:
    """How many times the rate prefix caching sustains.

    >>> caching_gain("agents") > caching_gain("rag") >= 1
    True
    """
    return best_rate(kind, True) / best_rate(kind, False)


def caching_curve(kind: str, is_on: bool) -> list[list[float]]:
    """Rows of rate (requests/s), mean latency per token (ms), mean TTFT (ms), hit ratio."""
    return precomputed()["caching_curves"][f"{kind}|{is_on}"]


def _num_requests(load: str) -> str:
    return f"{precomputed()['num_requests'][load]:,}"


def sampled_rate(load: str, way: str, size: int) -> float:
    """The highest rate of prompts that are each answered by ``size`` sequences."""
    return precomputed()["sampled_rates"][f"{load}|{way}|{size}"]


# ---------------------------------------------------------------- prefixes that are found


def _predict_caching() -> Prediction:
    chat, rag = caching_gain("chat"), caching_gain("rag")
    reply = f"Chat sustains {chat:.2f} times the rate, retrieval {rag:.2f} times."
    return Prediction(
        "You switch prefix caching on. One service is chat, where every turn repeats the conversation. The other retrieves six "
        "chunks for each question, from a pool that is used again and again. Who gains?",
        (
            Option("Both, about alike: both read the same text again and again", f"The same text behind another text is another prefix. {reply}"),
            Option("Chat gains, retrieval hardly", f"{reply} A chunk is found only where everything before it is the same."),
            Option("Retrieval gains, chat hardly", f"{reply} A turn of a chat begins with everything before it; a prompt of chunks seldom does."),
        ),
        answer=1 if chat > 1.2 * rag else 2 if rag > 1.2 * chat else 0,
    )


@explorer(
    title="Prefix caching, off and on",
    controls=[
        Choice("kind", "Workload", [(kind, f"{kind}: {words}") for kind, words in KINDS.items()], default="chat"),
        Choice("share", "Arrival rate", [(s, f"{100 * s:.0f} % of the best") for s in SHARES], default=0.7),
    ],
    predict=_predict_caching,
    expects={"kind": "changes:gain", "share": "rises:off_ms"},
)
def caching(kind, share) -> View:
    """Latency over the rate with a block cache under the engine, and without."""
    off, on = caching_curve(kind, False), caching_curve(kind, True)
    at = SHARES.index(share)
    rate, gain = on[at][0], caching_gain(kind)
    limit = LIMITS_MS[kind]
    ceiling = 4 * limit
    figure = line_chart(
        [
            Line("caching on", *up_to(*list(zip(*on))[:2], ceiling), POLICY["paged"], markers=True),
            Line("caching off", *up_to(*list(zip(*off))[:2], ceiling), SERIES[1], dash=1, markers=True),
        ],
        axis("arrival rate (requests/s)", low=0, high=1.02 * on[-1][0]),
        axis("mean latency (ms per output token)", low=0, high=ceiling),
        walls=[(rate, "your rate", LIMIT)],
    )
    figure["layout"]["shapes"].append(level(limit))
    return View(
        title=f"{kind}: {100 * on[at][3]:.0f} % of the prompt tokens are found, and the server sustains {gain:.2f} times the rate",
        picture=figure,
        table=[
            [f"at {rate:.3g} requests/s", "caching off", "caching on"],
            ["mean latency (ms/token)", off[at][1], on[at][1]],
            ["mean TTFT (ms)", off[at][2], on[at][2]],
            ["prompt tokens found (%)", 100 * off[at][3], 100 * on[at][3]],
            [f"highest rate in {limit} ms", best_rate(kind, False), best_rate(kind, True)],
        ],
        source=PRECOMPUTED,
        note=(
            f"Dotted: the limit of {limit:,} ms. Llama-3-8B on one A100-40GB, blocks of 16, {_num_requests(kind)} requests a run; the loads are "
            "ours (kvlib.workloads). A free block keeps its content until its place is needed, so a busier server finds less."
        ),
        numbers={"gain": gain, "off_ms": off[at][1], "on_ms": on[at][1], "hit_ratio": on[at][3]},
    )


# ---------------------------------------------------------------- several answers to one prompt

SIZES = (1, 2, 4, 6)
LOADS = {"Alpaca": "19 tokens in, 58 out", "ShareGPT": "161 in, 338 out"}
WAYS = {
    "beams": ("beam search", SERIES[2]),
    "samples": ("samples that share the prompt", POLICY["paged"]),
    "apart": ("as many separate requests, paged", SERIES[1]),
    "oracle": ("as many separate requests, Oracle", POLICY["oracle"]),
}


@explorer(
    title="Several answers to one prompt",
    controls=[
        Choice("size", "Answers per prompt", list(SIZES), default=4),
        Choice("load", "Workload", [(load, f"{load} ({words})") for load, words in LOADS.items()], default="ShareGPT"),
    ],
    expects={"size": "falls:samples", "load": "changes:samples_gain"},
)
def several(size, load) -> View:
    """The highest rate of prompts when each is answered several times, in four ways."""
    rates = {way: [sampled_rate(load, way, n) for n in SIZES] for way in WAYS}
    here = {way: rates[way][SIZES.index(size)] for way in WAYS}
    samples_gain, beams_gain = here["samples"] / here["apart"], here["beams"] / here["oracle"]
    answers = "1 answer a prompt: nothing is shared" if size == 1 else (
        f"{size} answers a prompt: sharing the prompt sustains {samples_gain:.2f} times the rate, "
        f"and beams {here['beams'] / here['apart']:.2f} times"
    )
    return View(
        title=answers,
        picture=line_chart(
            [Line(name, SIZES, rates[way], color, dash=i, markers=True) for i, (way, (name, color)) in enumerate(WAYS.items())],
            axis("answers per prompt"),
            axis("highest rate (prompts/s)", low=0, high=1.1 * max(map(max, rates.values()))),
            walls=[(size, "your choice", LIMIT)],
        ),
        table=[
            ["answers", *(name for name, _ in WAYS.values())],
            *([n, *(rates[way][i] for way in WAYS)] for i, n in enumerate(SIZES)),
        ],
        source=PRECOMPUTED,
        note=(
            f"Mean latency within 50 ms per token; OPT-13B on an A100-40GB, {_num_requests(load)} prompts a run. All answers to a prompt "
            "are equally long. The parent of each beam is drawn at random, which loses as many beams a step as a real search "
            "(chapter 4)."
        ),
        numbers={**here, "samples_gain": samples_gain, "beams_gain": beams_gain},
    )
