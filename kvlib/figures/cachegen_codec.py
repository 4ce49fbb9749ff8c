"""Chapter 14: how few bits the codec needs, what its ingredients buy, and what its lanes cost."""

from __future__ import annotations

from kvlib.cachegen.entropy_cost import lane_bits
from kvlib.cachegen.tradeoff import bits_at
from kvlib.explore import Choice, Range, View, explorer
from kvlib.explore.palette import LIMIT, SERIES
from kvlib.figures.cachegen_data import (
    CENTRED_FAMILY,
    PAPER_FAMILY,
    families,
    lane_measurements,
    where_measured,
)
from kvlib.figures.charts import Line, Mark, axis, line_chart, stacked_bars

LANE_TOKENS = (1, 2, 5, 10, 25, 60, 150)
LANE_CHANNELS = 192
DRAWN_FAMILIES = (
    ("uniform", SERIES[5], 2),
    ("uniform + entropy coding", SERIES[4], 3),
    ("KIVI axes", SERIES[3], 4),
    (PAPER_FAMILY, SERIES[0], 0),
    (CENTRED_FAMILY, SERIES[2], 1),
    ("H2O, half the tokens + CacheGen", SERIES[1], 5),
)
MEASURES = [
    ("kl", "KL divergence (nats)"),
    ("changed", "share of first choices that change"),
    ("perplexity_change", "perplexity change"),
]


@explorer(
    title="How few bits for how little damage?",
    controls=[
        Range("allowed", "KL you allow", 0.001, 0.04, 12, default=0.02, unit="nats", log=True),
        Choice("measure", "Measure of damage", MEASURES, default="kl"),
    ],
    expects={"allowed": "falls:centred_bits", "measure": "changes:worst"},
)
def rate_quality(allowed, measure) -> View:
    """Size against damage for the codec and its rivals, all as real bytes."""
    rows = families()

    def damage(row):
        return 1 - row["top1"] if measure == "changed" else row[measure]

    lines = [
        Line(
            name, [r["bits"] for r in rows[name]], [damage(r) for r in rows[name]], color, dash, markers=True
        )
        for name, color, dash in DRAWN_FAMILIES
    ]
    values = [y for line in lines for y in line.y]
    log = measure == "kl"
    y_axis = axis(
        dict(MEASURES)[measure],
        log=log,
        low=min(values) / 1.5 if log else min(values) - 0.02,
        high=max(values) * 1.1,
    )
    if log:
        lines.append(Line("KL you allow", [0, 9], [allowed, allowed], LIMIT, dash=2))
    needed = {
        name: bits_at([(r["bits"], r["kl"]) for r in rows[name]], allowed) for name, _, _ in DRAWN_FAMILIES
    }
    ours, paper = needed[CENTRED_FAMILY], needed[PAPER_FAMILY]
    return View(
        title=_rate_title(allowed, ours, paper),
        picture=_taller(
            line_chart(lines, axis("bits per number, everything included", low=0, high=9), y_axis)
        ),
        table=[["format", f"bits at KL {allowed:g}"]]
        + [[name, "not measured there" if bits is None else round(bits, 2)] for name, bits in needed.items()],
        source=where_measured(),
        note=(
            "A format that is lower and further left is better. 256 tokens of three texts are scored, so a"
            " perplexity change below 1 % is noise."
        ),
        numbers={"centred_bits": ours or 0.0, "paper_bits": paper or 0.0, "worst": max(values)},
    )


def _taller(figure: dict) -> dict:
    """Room for a legend that stands under the picture on a phone."""
    figure["layout"]["height"] = 500
    figure["layout"]["legend"]["y"] = -0.35
    return figure


def _rate_title(allowed: float, ours: float | None, paper: float | None) -> str:
    if ours is None or paper is None:
        return f"A KL of {allowed:g} lies outside what was measured for one of the two codecs"
    return f"For a KL of {allowed:g}, anchors need {paper:.1f} bits per number and channel means {ours:.1f}"


@explorer(
    title="What does each ingredient buy?",
    controls=[Choice("level", "Level", [("good", "good"), ("medium", "medium")], default="medium")],
    expects={"level": "changes:paper_bits"},
)
def ablation(level) -> View:
    """The paper's recipe with one ingredient changed at a time, at the same bin scale."""
    names = (
        PAPER_FAMILY,
        "one table per layer",
        "one table for everything",
        "same bin in all layers",
        "channel mean instead of anchors",
        "mean, K before RoPE",
        "mean, K before RoPE, equal bins",
        CENTRED_FAMILY,
    )
    rows = {name: next(r for r in families()[name] if r["level"] == level) for name in names}
    figure = stacked_bars(
        list(names), [("bits", [rows[n]["bits"] for n in names], SERIES[0])], axis("bits per number", low=0)
    )
    figure["data"][0] |= {"text": [f"KL {rows[n]['kl']:.2g}" for n in names], "textposition": "inside"}
    figure["layout"]["showlegend"] = False
    figure["layout"]["height"] = 420
    saved = rows["one table for everything"]["bits"] - rows[PAPER_FAMILY]["bits"]
    return View(
        title=f"Tables per layer and channel save {saved:.2f} bits against one table for everything",
        picture=figure,
        table=[["recipe", "bits per number", "KL (nats)", "first choice kept"]]
        + [[name, row["bits"], row["kl"], row["top1"]] for name, row in rows.items()],
        source=where_measured(),
        note=(
            "Fewer bits at more KL is no gain: read the bar and the KL in it. Tables change the size only,"
            " never the numbers."
        ),
        numbers={"paper_bits": rows[PAPER_FAMILY]["bits"], "centred_kl": rows[CENTRED_FAMILY]["kl"]},
    )


@explorer(
    title="What a lane costs and buys",
    controls=[
        Choice("lane_tokens", "Tokens per lane", LANE_TOKENS, default=10),
        Choice("direction", "Direction", ["decode", "encode"], default="decode"),
        Choice("backend", "Arrays", [("numpy", "numpy"), ("torch", "torch on the CPU")], default="numpy"),
    ],
    expects={"lane_tokens": "falls:overhead", "direction": "changes:speed", "backend": "changes:speed"},
)
def lanes(lane_tokens, direction, backend) -> View:
    """Speed of the entropy coder against what its lanes add to the stream."""
    rows = lane_measurements()["rows"]
    here = next(row for row in rows if row["lane_tokens"] == lane_tokens)
    speed, overhead = here[backend][direction], lane_bits(lane_tokens, LANE_CHANNELS)
    steps = LANE_CHANNELS * lane_tokens
    figure = line_chart(
        [
            Line(
                backend,
                [row["bits"] for row in rows],
                [row[backend][direction] for row in rows],
                SERIES[0],
                markers=True,
            )
        ],
        axis("bits per number, lanes included"),
        axis(
            f"million numbers a second ({direction})",
            low=0,
            high=1.2 * max(row[backend][direction] for row in rows),
        ),
        marks=[Mark(f"{lane_tokens} tokens per lane", here["bits"], speed, LIMIT)],
    )
    return View(
        title=(
            f"{here['lanes']:,} lanes {direction} {speed:.0f} million numbers a second and add {overhead:.2g}"
            " bits to each"
        ),
        picture=figure,
        table=[[
            "tokens per lane",
            "lanes",
            "steps in a row",
            "bits per number",
            "of that, lane states",
            "million numbers/s",
        ]]
        + [
            [
                r["lane_tokens"],
                r["lanes"],
                LANE_CHANNELS * r["lane_tokens"],
                r["bits"],
                r["state_bits"],
                r[backend][direction],
            ]
            for r in rows
        ],
        source=(
            "measured beforehand by make_cachegen_lanes.py, in CPU seconds of one thread; yours will differ"
        ),
        note=(
            f"All lanes take a step at once, {steps:,} steps in a row here. One stream of the library"
            f" constriction, under the same tables, takes {lane_measurements()['constriction_bits']:.3f}"
            " bits."
        ),
        numbers={"overhead": overhead, "speed": speed, "bits": here["bits"]},
    )
