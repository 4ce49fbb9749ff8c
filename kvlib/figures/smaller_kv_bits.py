"""Chapter 13: fewer bits for each number. Where the scale lies, keys against values, and dropping on top."""

from __future__ import annotations

from kvlib.explore import Choice, Option, Prediction, View, explorer
from kvlib.explore.palette import LIMIT, SERIES
from kvlib.figures.charts import Line, Mark, axis, line_chart, stacked_bars
from kvlib.figures.smaller_kv import percent_text
from kvlib.figures.smaller_kv_data import FULL_BITS, change, context_tokens, find, measured, where_measured

GRID_BITS = (2, 3, 4, 8)
PER_TOKEN, PER_CHANNEL = "per token", "per channel"


def grid(key_bits: int, value_bits: int) -> dict:
    return find("key_value_grid", key_bits=key_bits, value_bits=value_bits)


def _predict_pair() -> Prediction:
    key_first, value_first = grid(4, 2)["kl"], grid(2, 4)["kl"]
    fact = (
        f"KL divergence: keys 4 and values 2 give {key_first:.2g}, keys 2 and values 4 give "
        f"{value_first:.2g}."
    )
    near = max(key_first, value_first) < 1.3 * min(key_first, value_first)
    return Prediction(
        "One of the two gets 4 bits a number, the other 2. Which way round disturbs the model less?",
        (
            Option("4 for keys, 2 for values", f"An error in a key moves attention to another token. {fact}"),
            Option("no difference: 6 bits are 6 bits", f"The two are used in very different ways. {fact}"),
            Option(
                "2 for keys, 4 for values: values are what is added up",
                f"They are added up with weights that keys decide. {fact}",
            ),
        ),
        answer=1 if near else (0 if key_first < value_first else 2),
    )


@explorer(
    title="Bits for keys, bits for values",
    controls=[
        Choice("key_bits", "Bits of a key number", GRID_BITS, default=4),
        Choice("value_bits", "Bits of a value number", GRID_BITS, default=2),
    ],
    predict=_predict_pair,
    expects={"key_bits": "falls:kl", "value_bits": "falls:kl"},
)
def key_value_bits(key_bits, value_bits) -> View:
    """Every pair of bit widths, keys per channel and values per token."""
    here, swapped = grid(key_bits, value_bits), grid(value_bits, key_bits)
    lines = [
        Line(
            f"keys at {bits} bits", GRID_BITS, [grid(bits, v)["kl"] for v in GRID_BITS],
            SERIES[i], i, markers=True,
        )
        for i, bits in enumerate(GRID_BITS)
    ]
    figure = line_chart(
        lines, axis("bits of a value number"), axis("KL divergence (nats)", log=True),
        marks=[Mark("your pair", value_bits, here["kl"], LIMIT)],
    )
    other = "" if key_bits == value_bits else f"; the other way round {swapped['kl']:.2g}"
    return View(
        title=f"Keys at {key_bits} bits, values at {value_bits}: KL divergence {here['kl']:.2g}{other}",
        picture=figure,
        table=[
            ["keys, values (bits)", "bits with scales", "KL (nats)", "perplexity", "same top token (%)"],
            *(
                [
                    f"{row['key_bits']}, {row['value_bits']}", row["bits"], row["kl"], change(row),
                    100 * row["top1"],
                ]
                for row in sorted(measured()["key_value_grid"], key=lambda row: (row["bits"], row["kl"]))
            ),
        ],
        source=where_measured(),
        note=(
            "Groups of 32 numbers with a 16-bit smallest number and a 16-bit step, which add one bit to "
            "each number."
        ),
        numbers={"kl": here["kl"], "swapped_kl": swapped["kl"], "bits": here["bits"]},
    )


def scale_rows(number_bits: int) -> dict[str, dict]:
    """Everything measured at this width: one scale for all, and groups on each choice of axes."""
    rows = {
        row["name"]: row for row in measured()["formats"]
        if row["name"].endswith("one scale") and row["bits"] == number_bits
    }
    for row in measured()["axes"]:
        if row["number_bits"] == number_bits:
            rows[f"K {row['key_axis']}, V {row['value_axis']}"] = row
    if number_bits == 8:
        rows[f"K {PER_CHANNEL}, V {PER_TOKEN}"] = grid(8, 8)
    return rows


@explorer(
    title="Where the scale lies",
    controls=[Choice("number_bits", "Bits of a number", (8, 4, 2), default=2)],
    expects={"number_bits": "changes:best_kl"},
)
def scales(number_bits) -> View:
    """The same bits with one scale for everything, or one for each group, along tokens or along channels."""
    rows = scale_rows(number_bits)
    best = min(rows, key=lambda name: rows[name]["kl"])
    worst = max(rows, key=lambda name: rows[name]["kl"])
    kls = [row["kl"] for row in rows.values()]
    figure = stacked_bars(
        list(rows), [("KL divergence", kls, SERIES[0])],
        axis("KL divergence (nats)", log=True, low=min(kls) / 3, high=max(kls) * 2),
    )
    figure["layout"]["showlegend"] = False
    return View(
        title=(
            f"{number_bits} bits: KL divergence {rows[best]['kl']:.2g} with {best}, {rows[worst]['kl']:.2g} "
            f"with {worst}"
        ),
        picture=figure,
        table=[
            ["format", "bits with scales", "KL (nats)", "perplexity", "same top token (%)"],
            *([name, row["bits"], row["kl"], change(row), 100 * row["top1"]] for name, row in rows.items()),
        ],
        source=where_measured(),
        note=(
            "Some channels of the keys lie far from zero for every token. A group along one channel spends "
            "its codes on what varies; a group across channels spends them on the distance between channels."
        ),
        numbers={"best_kl": rows[best]["kl"], "worst_kl": rows[worst]["kl"]},
    )


@explorer(
    title="Drop tokens, then quantize the rest",
    controls=[
        Choice("number_bits", "Bits of a number", (2, 4), default=4),
        Choice("policy", "Dropping", ("sinks + window", "H2O"), default="H2O"),
        Choice("budget", "Tokens kept", [(n, percent_text(n)) for n in (384, 768)], default=768),
    ],
    expects={"number_bits": "falls:kl", "policy": "changes:kl", "budget": "falls:kl"},
)
def stacked(number_bits, policy, budget) -> View:
    """Do the savings multiply, and do the losses add up?"""
    both = find("stacked", policy=policy, budget=budget, number_bits=number_bits)
    dropping, rounding = find("dropping", policy=policy, budget=budget), grid(number_bits, number_bits)
    share = budget / context_tokens()
    parts = {
        f"{policy}, {percent_text(budget)} of the tokens": (100 * share, dropping),
        f"KIVI axes, {number_bits} bits": (100 * both["bits"] / FULL_BITS, rounding),
        "both": (100 * share * both["bits"] / FULL_BITS, both),
    }
    added = dropping["kl"] + rounding["kl"]
    figure = line_chart(
        [],
        axis("bytes kept (% of bf16)", low=0, high=60),
        axis("KL divergence (nats)", low=0, high=1.25 * max(added, both["kl"])),
        marks=[
            *(Mark(name, x, row["kl"], SERIES[i]) for i, (name, (x, row)) in enumerate(parts.items())),
            Mark("the two losses added up", parts["both"][0], added, SERIES[5]),
        ],
    )
    for trace, symbol in zip(figure["data"], ("diamond", "square", "circle", "x")):
        trace["marker"]["symbol"] = symbol
    return View(
        title=(
            f"{parts['both'][0]:.3g} % of the bytes, KL divergence {both['kl']:.2g}; the two losses alone "
            f"add up to {added:.2g}"
        ),
        picture=figure,
        table=[
            ["what", "bytes kept (%)", "KL (nats)", "perplexity"],
            *([name, x, row["kl"], change(row)] for name, (x, row) in parts.items()),
            ["the two losses added up", "–", added, "–"],
        ],
        source=where_measured(),
        note="The savings multiply exactly. What the losses do together has to be measured.",
        numbers={"kl": both["kl"], "added_kl": added, "bytes_percent": parts["both"][0]},
    )
