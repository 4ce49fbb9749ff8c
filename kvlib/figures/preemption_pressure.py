"""Chapter 5: pressure on the memory of a whole service, a little of it and a lot of it."""

from __future__ import annotations

import json
from functools import cache, lru_cache
from pathlib import Path

from kvlib.explore import SIMULATED, Choice, Option, Prediction, Range, View, explorer
from kvlib.explore.palette import LIMIT, POLICY, PREFILL, TRANSFER
from kvlib.figures.charts import Line, Mark, axis, line_chart, stacked_bars
from kvlib.serving import ServingResult, simulate
from kvlib.workloads import sharegpt_like

# A short run on about half an A100's KV memory, so that a slider answers at once.
NUM_REQUESTS, SEED, BLOCK_SIZE = 120, 0, 16
RECOVERY = {"recompute": 0, "swap, 500 host slots": 500, "swap, ample host": 100_000}


@lru_cache(maxsize=256)
def small_run(rate: float, blocks: int, watermark: float, cpu_slots: int) -> ServingResult:
    """120 ShareGPT-like requests on OPT-13B and an A100, with ``blocks`` blocks of 16."""
    return simulate(
        sharegpt_like(NUM_REQUESTS, rate=rate, seed=SEED),
        num_slots=blocks * BLOCK_SIZE, block_size=BLOCK_SIZE, watermark=watermark, cpu_slots=cpu_slots,
    )


def input_tokens() -> int:
    return sum(one.num_input_tokens for one in sharegpt_like(NUM_REQUESTS, rate=1.0, seed=SEED))


@explorer(
    title="What overload costs",
    controls=[
        Range("rate", "Load", 0.5, 3.0, 11, default=1.5, unit="requests/s"),
        Choice("watermark", "Watermark", [(0.0, "none"), (0.01, "1 %"), (0.05, "5 %"), (0.1, "10 %")], default=0.0),
        Choice("recovery", "Whoever gives way is brought back by", list(RECOVERY), default="recompute"),
        Choice("blocks", "Memory", [250, 300, 350, 400, 500, 600, 787], default=350, unit="blocks"),
    ],
    expects={
        "rate": "changes:preemptions", "watermark": "changes:recomputed", "recovery": "changes:swapped",
        "blocks": "falls:recomputed",
    },
)
def overload(rate, watermark, recovery, blocks) -> View:
    """Prompt tokens against tokens that were computed twice or moved, for one short run."""
    result = small_run(rate, blocks, watermark, RECOVERY[recovery])
    once, again, moved = input_tokens(), result.recomputed_tokens, result.swapped_tokens
    p99 = result.percentile("ttft_s", 99)
    figure = stacked_bars(
        ["prompts, once", "thrown out, computed again", "moved to the host and back"],
        [
            ("computed once", [once / 1e3, 0, 0], PREFILL),
            ("computed again", [0, again / 1e3, 0], PREFILL),
            ("moved", [0, 0, moved / 1e3], TRANSFER),
        ],
        axis("tokens (thousands)", low=0, high=1.1 * max(once, again, moved) / 1e3),
        walls=[(once / 1e3, "all prompts", LIMIT)],
    )
    figure["layout"]["showlegend"] = False
    lost = (again + moved) / once
    title = f"{rate:g} requests/s: nobody gives way"
    if result.preemptions:
        title = f"{rate:g} requests/s: {result.preemptions} preemptions, {lost:.2f} lost tokens per prompt token"
    return View(
        title=title,
        picture=figure,
        table=[
            ["quantity", "value"],
            ["preemptions", result.preemptions],
            ["tokens recomputed", again],
            ["tokens swapped", moved],
            ["tokens of all prompts", once],
            ["TTFT, median (s)", result.percentile("ttft_s", 50)],
            ["TTFT, P99 (s)", p99],
            ["latency per token, mean (ms)", 1e3 * result.normalized_latency_s],
            ["run (s)", result.duration_s],
        ],
        source=SIMULATED,
        note=(
            f"{NUM_REQUESTS} ShareGPT-like requests, OPT-13B on an A100, blocks of {BLOCK_SIZE}: a short run, so that the slider answers "
            "at once. The notebook runs the lecture's 1,500 requests."
        ),
        numbers={"preemptions": result.preemptions, "recomputed": again, "swapped": moved, "p99_ttft_s": p99},
    )


# ---------------------------------------------------------------- the pressure cliff


@cache
def precomputed() -> dict:
    """``preemption.json``, as ``kvlib/figures/data/make_preemption.py`` wrote it."""
    path = Path(__file__).with_name("data").joinpath("preemption.json")
    return json.loads(path.read_text(encoding="utf-8"))


def runs(rate: float, watermark: float) -> dict[int, dict]:
    """Memory in per cent of the A100's 12,596 slots, and what the run came to."""
    made = precomputed()
    return dict(zip(made["memory_percent"], made["runs"][f"{rate:g} {watermark:g}"]))


DEFAULT_RATE = 2.0
SMALLER = 94


def _predict_cliff() -> Prediction:
    full, less = (runs(DEFAULT_RATE, 0.0)[percent]["p99_ttft_s"] for percent in (100, SMALLER))
    ratio = less / full
    reply = f"It goes from {full:.2f} to {less:.2f} s, {ratio:.1f} times as long."
    sizes = (1.06, 1.5, 5.0)
    return Prediction(
        f"A service runs at {DEFAULT_RATE:g} requests a second and everything is fine. You take away {100 - SMALLER} % of its blocks. "
        "The P99 time to first token grows …",
        (
            Option(f"by about {100 - SMALLER} %", f"Most requests never notice, but P99 is about those who do. {reply}"),
            Option("by about half", f"That is nearer, but the tail does not stretch; it changes its cause. {reply}"),
            Option("to several times as long", reply),
        ),
        answer=min(range(3), key=lambda i: abs(sizes[i] - ratio)),
    )


PERCENTS = (70, 75, 80, 84, 86, 88, 90, 92, 94, 96, 98, 100, 104, 108)


@explorer(
    title="The pressure cliff",
    controls=[
        Choice("percent", "Memory", [(p, f"{p} %") for p in PERCENTS], default=100),
        Choice("rate", "Load", [1.75, 2.0, 2.25, 2.5], default=DEFAULT_RATE, unit="requests/s"),
        Choice("watermark", "Watermark", [(0.0, "none"), (0.01, "1 %"), (0.05, "5 %")], default=0.0),
    ],
    predict=_predict_cliff,
    expects={"percent": "falls:waited_share", "rate": "rises:p99_ttft_s", "watermark": "falls:preemptions"},
)
def cliff(percent, rate, watermark) -> View:
    """P99 and median TTFT over the size of the memory."""
    made = runs(rate, watermark)
    here, full = made[percent], made[100]
    figure = line_chart(
        [
            Line("P99", PERCENTS, [made[p]["p99_ttft_s"] for p in PERCENTS], POLICY["paged"], markers=True),
            Line("median", PERCENTS, [made[p]["p50_ttft_s"] for p in PERCENTS], POLICY["static"], dash=1),
        ],
        axis("memory (% of the A100's 12,596 slots)"),
        axis("time to first token (s)", log=True, low=0.02, high=100),
        marks=[Mark("your setting", percent, here["p99_ttft_s"], LIMIT)],
    )
    ratio = here["p99_ttft_s"] / full["p99_ttft_s"]
    against = "" if percent == 100 else f", {ratio:.1f} times that of 100 %"
    return View(
        title=(
            f"At {percent} % of the memory P99 TTFT is {here['p99_ttft_s']:.2f} s{against}; "
            f"{100 * here['waited_share']:.1f} % of requests wait"
        ),
        picture=figure,
        table=[
            ["memory", "blocks", "waited", "P99 TTFT (s)", "median TTFT (s)", "preemptions"],
            *(
                [f"{p} %", r["blocks"], f"{100 * r['waited_share']:.1f} %", r["p99_ttft_s"], r["p50_ttft_s"], r["preemptions"]]
                for p, r in made.items()
                if p in (88, 92, 96, 100, 104, percent)
            ),
        ],
        source="simulated beforehand by kvlib (kvlib/figures/data/make_preemption.py)",
        note=(
            "1,500 ShareGPT-like requests a point. As long as fewer than 1 in 100 find the memory full, P99 is the time of a prefill. "
            "Beyond that it is the time until somebody leaves."
        ),
        numbers={
            "p99_ttft_s": here["p99_ttft_s"], "waited_share": here["waited_share"],
            "preemptions": here["preemptions"], "ratio": ratio,
        },
    )
