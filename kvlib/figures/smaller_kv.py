"""Chapter 13: how much of the cache did the model need? Tokens dropped, sinks kept, blocks freed."""

from __future__ import annotations

from kvlib.explore import Choice, Drawing, Option, Prediction, Range, View, explorer
from kvlib.explore.palette import LIMIT, SERIES, USED
from kvlib.explore.svg import WIDTH
from kvlib.figures.charts import Line, Mark, axis, line_chart
from kvlib.figures.smaller_kv_data import (
    BUDGETS, MEASURES, POLICIES, change, context_tokens, find, measured, methods, shown, where_measured,
)

SINK_COUNTS = (0, 1, 2, 4, 8, 16)
SINK_BUDGETS = (192, 384)
BLOCK_SIZES = (1, 4, 16, 64)
QUARTER = 384
# The drawing shows one cell for two blocks, so that a strip stays readable on a phone.
BLOCKS_PER_CELL = 2
KEEPS = {
    "window": "the newest tokens",
    "sinks + window": "four first tokens and the newest",
    "H2O": "what attention looked at most, and the newest",
    "SnapKV": "what the last 32 queries looked at",
    "random": "the same random tokens everywhere",
}


def percent_text(tokens: int) -> str:
    """Spell tokens as a share of the context.

    >>> percent_text(384)
    '25 %'
    """
    return f"{100 * tokens / context_tokens():.0f} %"


def budget_choice(label: str) -> Choice:
    return Choice("budget", label, [(budget, percent_text(budget)) for budget in BUDGETS], default=QUARTER)


def _predict_sinks() -> Prediction:
    window = find("dropping", policy="window", budget=QUARTER)
    sinks = find("dropping", policy="sinks + window", budget=QUARTER)
    left = sinks["perplexity_change"] / window["perplexity_change"]
    fact = f"It goes from {change(window)} to {change(sinks)}."
    return Prediction(
        f"You keep the newest quarter of a context, and perplexity rises by {change(window)[1:]}. Now spend "
        f"four of those {QUARTER} slots on the first four tokens of the text. The rise …",
        (
            Option(
                "stays: they are only four old tokens",
                f"Old, yet nearly every query looks at them. {fact}",
            ),
            Option("falls to about half", f"Further than that. {fact}"),
            Option(
                "almost vanishes",
                f"Those four are where attention goes when it has nothing to look for. {fact}",
            ),
        ),
        answer=0 if left > 0.75 else (1 if left > 0.3 else 2),
    )


@explorer(
    title="Every method on one pair of axes",
    controls=[
        budget_choice("Bytes you can afford"),
        Choice("measure", "Judged by", tuple(MEASURES), default="perplexity"),
    ],
    predict=_predict_sinks,
    expects={"budget": "falls:window_kl", "measure": "changes:window_shown"},
)
def every_method(budget, measure) -> View:
    """Bytes kept against what that does to the model's predictions."""
    affordable = budget / context_tokens()
    within = {name: _best(points, affordable) for name, points in methods().items()}
    within = {name: point for name, point in within.items() if point}
    winner = min(within, key=lambda name: within[name][1]["kl"])
    window = within["window"][1]
    lines = [
        Line(
            name, [100 * share for share, _ in points], [shown(row, measure) for _, row in points],
            SERIES[i], i, markers=True,
        )
        for i, (name, points) in enumerate(methods().items())
    ]
    figure = line_chart(
        lines,
        axis("bytes kept (% of bf16)", low=0, high=100),
        axis(MEASURES[measure][1], log=measure == "KL divergence"),
        walls=[(100 * affordable, "you can afford", LIMIT)],
    )
    return View(
        title=(
            f"With {percent_text(budget)} of the bytes: {change(within[winner][1])} perplexity with "
            f"{winner}, {change(window)} with a plain window"
        ),
        picture=figure,
        table=[
            ["method", "bytes kept (%)", "perplexity", "KL (nats)", "same top token (%)"],
            *(
                [name, 100 * share, change(row), row["kl"], 100 * row["top1"]]
                for name, (share, row) in within.items()
            ),
        ],
        source=where_measured(),
        note=(
            "The table shows each method's best point left of the dashed line. A change of perplexity below "
            "about 1 % is noise on this many predictions; the KL divergence is the sharper ruler."
        ),
        numbers={
            "window_kl": window["kl"], "window_shown": shown(window, measure),
            "best_kl": within[winner][1]["kl"],
        },
    )


def _best(points, affordable: float):
    """The point of least divergence that can be paid for, or None."""
    paid = [point for point in points if point[0] <= affordable]
    return min(paid, key=lambda point: point[1]["kl"]) if paid else None


@explorer(
    title="How many first tokens are worth a slot?",
    controls=[
        Choice("sinks", "First tokens kept", SINK_COUNTS, default=4),
        Choice("budget", "Slots in all", SINK_BUDGETS, default=QUARTER),
    ],
    expects={"sinks": "changes:kl", "budget": "falls:kl"},
)
def how_many_sinks(sinks, budget) -> View:
    """A window gives up some of its slots to the first tokens of the text."""
    by_count = {count: find("sinks", sinks=count, budget=budget) for count in SINK_COUNTS}
    here, none = by_count[sinks], by_count[0]
    lines = [
        Line(
            f"{slots} slots", SINK_COUNTS, [find("sinks", sinks=n, budget=slots)["kl"] for n in SINK_COUNTS],
            SERIES[i], i, markers=True,
        )
        for i, slots in enumerate(SINK_BUDGETS)
    ]
    figure = line_chart(
        lines,
        axis("first tokens kept"),
        axis("KL divergence (nats)", log=True),
        marks=[Mark("your choice", sinks, here["kl"], LIMIT)],
    )
    return View(
        title=(
            f"{budget} slots, {sinks} of them for the first tokens: {change(here)} perplexity instead of "
            f"{change(none)}"
        ),
        picture=figure,
        table=[
            ["first tokens", "newest tokens", "perplexity", "KL (nats)", "same top token (%)"],
            *([n, budget - n, change(row), row["kl"], 100 * row["top1"]] for n, row in by_count.items()),
        ],
        source=where_measured(),
        note="StreamingLLM keeps four. More of them hardly help, and each takes a slot from the window.",
        numbers={"kl": here["kl"], "without": none["kl"]},
    )


@explorer(
    title="Where attention goes when it has nothing to look for",
    controls=[Range("layer", "Layer", 1, 30, 30, default=15)],
    expects={"layer": "changes:share_percent"},
)
def sink_mass(layer) -> View:
    """The share of all attention that the first four tokens get, layer by layer."""
    shares = [100 * share for share in measured()["sink_mass"]]
    here, fair = shares[layer - 1], 100 * 4 / context_tokens()
    figure = line_chart(
        [Line("first four tokens", list(range(1, len(shares) + 1)), shares, USED, markers=True)],
        axis("layer"),
        axis("share of attention (%)", low=0, high=100),
        marks=[Mark("your layer", layer, here, LIMIT)],
    )
    return View(
        title=f"In layer {layer}, {here:.2g} % of all attention goes to 4 of {context_tokens():,} tokens",
        picture=figure,
        table=[
            ["quantity", "value"],
            ["share in this layer (%)", here],
            ["mean over layers (%)", sum(shares) / len(shares)],
            ["most in a layer (%)", max(shares)],
            ["least in a layer (%)", min(shares)],
            ["their share of the tokens (%)", fair],
        ],
        source=where_measured(),
        note=(
            "Attention weights add up to 1 even when no token matters. The model has learned to leave the "
            "rest with its first token, which every later query can see."
        ),
        numbers={"share_percent": here, "times_fair": here / fair},
    )


def _predict_blocks() -> Prediction:
    freed = find("places", "freed", policy="H2O", budget=QUARTER, block_size=16)["freed"]
    fact = f"Of the blocks of 16 tokens, {100 * freed:.0f} % are empty in all layers and heads."
    return Prediction(
        "H2O keeps a quarter of the tokens, chosen for each layer and head. One block table of 16-token "
        "blocks serves all of them, as in vLLM. How many blocks can be given back?",
        (
            Option(
                "75 %: what is gone is gone",
                f"The slots are empty, but a block is free only when all its slots are. {fact}",
            ),
            Option("about 40 %", f"Too hopeful still. {fact}"),
            Option(
                "none, or nearly none",
                f"Some head somewhere still wants something of every block. {fact}",
            ),
        ),
        answer=0 if freed > 0.6 else (1 if freed > 0.2 else 2),
    )


@explorer(
    title="Which tokens stay, and which blocks that frees",
    controls=[
        Choice("policy", "Policy", POLICIES, default="H2O"),
        budget_choice("Tokens kept"),
        Choice("block_size", "Block size", BLOCK_SIZES, default=16, unit="tokens"),
    ],
    predict=_predict_blocks,
    expects={
        "policy": "changes:freed_percent", "budget": "changes:kept_percent",
        "block_size": "changes:block_size",
    },
)
def kept_blocks(policy, budget, block_size) -> View:
    """Three layers of one text, and the blocks that no layer and no head needs any more."""
    def freed_percent(name, size):
        return 100 * find("places", "freed", policy=name, budget=budget, block_size=size)["freed"]

    freed = freed_percent(policy, block_size)
    kept = 100 * budget / context_tokens()
    strips = find("places", "kept_per_block", policy=policy, budget=budget)["by_layer"]
    return View(
        title=(
            f"{policy}: {100 - kept:.0f} % of the tokens are gone, {freed:.3g} % of the blocks of "
            f"{block_size} are free"
        ),
        picture=_strips(policy, strips),
        table=[
            ["policy", "tokens dropped (%)", *(f"blocks of {size} freed (%)" for size in BLOCK_SIZES)],
            *([name, 100 - kept, *(freed_percent(name, size) for size in BLOCK_SIZES)] for name in POLICIES),
        ],
        source=where_measured().replace("mean of", "first of"),
        note=(
            "One block table serves all layers and heads. To free memory, per-head policies must pack the "
            "kept tokens into fewer blocks, and packed blocks are no longer the prefix's own."
        ),
        numbers={"freed_percent": freed, "kept_percent": kept, "block_size": block_size},
    )


def _strips(policy: str, by_layer: dict[str, list[float]]) -> str:
    """One strip for each layer; a cell is filled as far as its slots are in use, mean over heads."""
    block_tokens = measured()["provenance"]["block_tokens"]
    drawing = Drawing(
        58 * len(by_layer) + 20, title=f"Tokens kept by {policy}",
        description=(
            f"{policy} keeps {KEEPS[policy]}. Each strip is one layer from the first token on the left to "
            "the newest on the right."
        ),
    )
    for i, (layer, slots) in enumerate(by_layer.items()):
        cells = [slots[at:at + BLOCKS_PER_CELL] for at in range(0, len(slots), BLOCKS_PER_CELL)]
        wide, top = WIDTH / len(cells), 58 * i + 20
        drawing.text(0, top - 5, f"layer {int(layer) + 1}")
        drawing.box(0, top, WIDTH, 30)
        for at, cell in enumerate(cells):
            full = sum(cell) / (BLOCKS_PER_CELL * block_tokens)
            if full:
                drawing.box(at * wide, top + 30 * (1 - full), wide, 30 * full, fill=USED)
    drawing.text(0, 58 * len(by_layer) + 14, "first token")
    drawing.text(WIDTH, 58 * len(by_layer) + 14, "newest token", anchor="end")
    return drawing.render()
