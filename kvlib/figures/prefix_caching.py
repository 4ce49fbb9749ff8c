"""Chapter 7: hit ratio against capacity for every policy, what hits are worth, and the reader's own trace."""

from __future__ import annotations

from math import log10

from kvlib.explore import SIMULATED, Choice, File, Option, Prediction, View, explorer
from kvlib.explore.palette import IDLE, LIMIT, SERIES
from kvlib.explore.words import counted
from kvlib.figures.charts import Line, axis, line_chart
from kvlib.figures.inputs import assumed_note, model_controls, model_or_file
from kvlib.figures.prefix_caching_sweeps import (
    BLOCK_SIZE,
    KINDS,
    hit_curves,
    hit_facts,
    prefill_hours,
    stored_sweeps,
)
from kvlib.specs import GPUS, get_gpu
from kvlib.specs.names import spoken
from kvlib.workloads import read_trace

TB = 1e12
NUM_GPUS = 8
CAPACITIES = tuple(stored_sweeps()["capacities"])
# In the order of legend and table; Belady's optimum, the ceiling, comes last.
POLICY_NAMES = {
    "lru": "LRU",
    "lfu_kept": "LFU, counts kept",
    "lfu": "LFU, counts lost",
    "length_aware": "LengthAware",
    "fifo": "FIFO",
    "belady": "Belady (knows the future)",
}
POLICY_COLOURS = dict(zip(POLICY_NAMES, (SERIES[0], SERIES[1], SERIES[4], SERIES[3], SERIES[5], SERIES[2])))
TALL = 440
ONLINE = tuple(policy for policy in POLICY_NAMES if policy != "belady")
# The same replay of Mooncake's own conversation trace, which this book does not ship.
REAL_AT_1000 = {"lru": 0.0445, "lfu_kept": 0.0811}


def _predict_policies() -> Prediction:
    curves = stored_sweeps()["kinds"]["conversation"]["curves"]
    lru, lfu = (curves[policy][CAPACITIES.index(1000)] for policy in ("lru", "lfu_kept"))
    fact = (
        f"Here LFU with kept counts hits {lfu:.4f} and LRU {lru:.4f}; on Mooncake's own trace it is "
        f"{REAL_AT_1000['lfu_kept']} against {REAL_AT_1000['lru']}."
    )
    return Prediction(
        "With room for 10,000 blocks LRU beats LFU: most reuse follows soon after. And with room for 1,000"
        " blocks?",
        (
            Option(
                "LRU wins there too",
                "A conversation returns after minutes. In so small a cache its blocks are gone by then."
                f" {fact}",
            ),
            Option(
                "LFU, if it keeps its counts",
                f"It holds on to what was used twice while the rest rushes through. {fact}",
            ),
            Option("They are equal", f"They keep different blocks. {fact}"),
        ),
        answer=1 if lfu > lru else (0 if lru > lfu else 2),
    )


@explorer(
    title="Hit ratio against capacity",
    controls=[
        Choice("capacity", "Room in the cache", CAPACITIES, default=10_000, unit="blocks"),
        Choice("workload", "Workload", tuple(KINDS.items()), default="conversation"),
    ],
    predict=_predict_policies,
    expects={"capacity": "rises:lru", "workload": "changes:never_seen"},
)
def policies(capacity, workload) -> View:
    """Every policy between a floor and Belady's ceiling, below the blocks that nobody has seen before."""
    kind = stored_sweeps()["kinds"][workload]
    at = CAPACITIES.index(capacity)
    here = {policy: ratios[at] for policy, ratios in kind["curves"].items()}
    reusable = kind["facts"]["reusable_share"]
    return View(
        title=f"At {capacity:,} blocks {_winner(here)}",
        picture=_curves_chart(
            CAPACITIES, kind["curves"], reusable, walls=[(capacity, f"{capacity:,} blocks", LIMIT)]
        ),
        table=_policy_table(here, reusable),
        source=SIMULATED,
        note=(
            f"A synthetic trace of {kind['facts']['requests']:,} requests in blocks of {BLOCK_SIZE} tokens."
            f" The shaded band holds first references, {1 - reusable:.0%} of all: no cache of any size can"
            " hit them."
        ),
        numbers={**here, "never_seen": 1 - reusable},
    )


def _winner(here: dict[str, float]) -> str:
    best = max(ONLINE, key=here.get)  # the first of equals, so LRU wherever it is among them
    if best != "lru":
        return f"{POLICY_NAMES[best]} beats LRU: {here[best]:.3f} against {here['lru']:.3f}"
    rival = max((policy for policy in ONLINE if policy != "lru"), key=here.get)
    if here[rival] == here["lru"]:
        return f"no policy beats LRU: {here['lru']:.3f}, like {POLICY_NAMES[rival]}"
    return f"LRU is best: {here['lru']:.3f}, next {POLICY_NAMES[rival]} with {here[rival]:.3f}"


def _policy_table(here: dict[str, float], reusable: float) -> list[list]:
    rows = [
        [POLICY_NAMES[policy], round(here[policy], 4), f"{here[policy] / here['belady']:.0%}"]
        for policy in POLICY_NAMES
    ]
    return [
        ["policy", "hit ratio", "of Belady's"],
        *rows,
        ["a cache that never evicts", round(reusable, 4), ""],
    ]


def _curves_chart(capacities, curves, reusable: float, walls) -> dict:
    lines = [
        Line(name, capacities, curves[policy], POLICY_COLOURS[policy], dash=dash, markers=policy == "lru")
        for dash, (policy, name) in enumerate(POLICY_NAMES.items())
    ]
    figure = line_chart(
        lines,
        axis("room in the cache (blocks)", log=True, low=capacities[0] / 1.1, high=capacities[-1] * 1.1),
        axis("hit ratio", low=0, high=1),
        walls=walls,
    )
    return _with_band(figure, reusable)


def _with_band(figure: dict, reusable: float) -> dict:
    layout = figure["layout"]
    band = {
        "type": "rect",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": reusable,
        "y1": 1,
        "fillcolor": IDLE,
        "opacity": 0.25,
        "line": {"width": 0},
        "layer": "below",
    }
    words = {
        "xref": "paper",
        "x": 0.02,
        "xanchor": "left",
        "y": (1 + reusable) / 2,
        "showarrow": False,
        "text": f"first references: {1 - reusable:.0%}",
        "font": {"size": 13},
    }
    shapes, notes = [*layout["shapes"], band], [*layout["annotations"], words]
    return {**figure, "layout": {**layout, "shapes": shapes, "annotations": notes, "height": TALL}}


@explorer(
    title="What hits are worth, and what they cost to keep",
    controls=[
        Choice("capacity", "Room in the cache", CAPACITIES, default=10_000, unit="blocks"),
        *model_controls("llama-2-70b"),
        Choice("workload", "Workload", tuple(KINDS.items()), default="tool_agent"),
        Choice(
            "gpu",
            "Eight GPUs of this kind",
            tuple((name, spoken(name)) for name in GPUS),
            default="a800-80gb",
        ),
    ],
    expects={
        "capacity": "falls:gpu_hours",
        "model": "changes:terabytes",
        "workload": "changes:gpu_hours",
        "gpu": "changes:gpu_hours",
    },
)
def savings(capacity, model, config, workload, gpu) -> View:
    """Prefill GPU-hours against terabytes of KV."""
    spec, device = model_or_file(model, config), get_gpu(gpu)
    kind = stored_sweeps()["kinds"][workload]
    tokens = kind["sampled_tokens"]
    block_bytes = spec.shape.kv_bytes(BLOCK_SIZE)
    nothing = prefill_hours(spec, device, [(n, 0) for n in tokens], NUM_GPUS)
    hours = [
        prefill_hours(spec, device, list(zip(tokens, cached)), NUM_GPUS) for cached in kind["sampled_cached"]
    ]
    sizes = [blocks * block_bytes / TB for blocks in CAPACITIES]
    at = CAPACITIES.index(capacity)
    hbm = NUM_GPUS * device.memory_bytes / TB
    figure = line_chart(
        [
            Line("LRU cache", sizes, hours, SERIES[0], markers=True),
            Line("no cache", [sizes[0], sizes[-1]], [nothing, nothing], SERIES[5], dash=1),
        ],
        axis(
            "room in the cache (TB)", log=True, low=min(sizes[0], hbm) / 1.3, high=max(sizes[-1], hbm) * 1.3
        ),
        axis("prefill GPU-hours per 1,000 requests", low=0, high=1.1 * nothing),
        walls=[(sizes[at], "your cache", LIMIT), (hbm, "all HBM", SERIES[3])],
    )
    figure["layout"]["annotations"][1]["y"] = 0.02  # below, so that the two labels never meet
    return View(
        title=(
            f"{sizes[at]:.3g} TB save {1 - hours[at] / nothing:.0%} of the prefill; the GPUs have"
            f" {hbm:.2f} TB"
        ),
        picture=figure,
        table=[
            ["quantity", "value"],
            [f"KV of one {BLOCK_SIZE}-token block (MB)", block_bytes / 1e6],
            ["room in the cache (TB)", sizes[at]],
            [f"memory of {NUM_GPUS} GPUs, weights included (TB)", hbm],
            ["GPU-hours per 1,000 requests, no cache", nothing],
            ["GPU-hours per 1,000 requests, with cache", hours[at]],
            ["no cache ÷ with cache", nothing / hours[at]],
        ],
        source=SIMULATED,
        note=(
            f"{spoken(spec.name)} on {NUM_GPUS} × {spoken(device.name)}; every"
            f" {kind['facts']['requests'] // len(tokens)}th request priced by the cost model. Loading from"
            " the cache is free here; the next chapter charges for it." + assumed_note(spec)
        ),
        numbers={"gpu_hours": hours[at], "terabytes": sizes[at], "times": nothing / hours[at]},
    )


@explorer(
    title="Your own trace",
    controls=[
        File("trace", "A trace in Mooncake's format", accept=".jsonl,.json"),
        *model_controls("llama-3-8b"),
    ],
    expects={"model": "changes:terabytes"},
)
def own_trace(trace, model, config) -> View:
    """Hit ratios of every policy, the knee and its bytes, from a file that stays with the reader."""
    spec = model_or_file(model, config)
    facts, capacities, curves, block_size = _curves_of(trace)
    reusable, knee = facts["reusable_share"], facts["knee"]
    terabytes = knee * spec.shape.kv_bytes(block_size) / TB
    whose = (
        "your trace"
        if trace
        else f"no file yet, so this is a synthetic conversation trace of {facts['requests']:,} requests"
    )
    return View(
        title=(
            f"LRU is within 2 points of its limit at {counted(knee, 'block')}: {terabytes:.3g} TB for"
            f" {spoken(spec.name)}"
        ),
        picture=_curves_chart(capacities, curves, reusable, walls=[(knee, "knee", LIMIT)]),
        table=[
            ["quantity", "value"],
            ["requests", facts["requests"]],
            ["block references", facts["references"]],
            ["different blocks", facts["unique_blocks"]],
            ["share of them used once", facts["share_used_once"]],
            ["uses of the hottest block", facts["hottest"][0]],
            ["tokens in, mean", facts["mean_input_tokens"]],
            ["tokens out, mean", facts["mean_output_tokens"]],
            ["hit ratio without eviction", reusable],
            ["knee of LRU (blocks)", knee],
            ["KV at the knee (TB)", terabytes],
        ]
        + _decade_rows(capacities, curves),
        source=SIMULATED,
        note=(
            f"Shown: {whose}. A file is read where you are and goes nowhere; one of 12,000 requests takes the"
            " page about a minute." + assumed_note(spec)
        ),
        numbers={"knee": knee, "terabytes": terabytes, "reusable_share": reusable},
    )


def _curves_of(path: str):
    if not path:
        stored = stored_sweeps()["kinds"]["conversation"]
        return stored["facts"], CAPACITIES, stored["curves"], BLOCK_SIZE
    trace = read_trace(path)
    facts = hit_facts(trace)
    capacities = _grid(facts["unique_blocks"])
    return facts, capacities, hit_curves(trace, capacities), trace.block_size


def _grid(unique_blocks: int) -> tuple[int, ...]:
    """1, 3, 10, 30, …: three decades, up to the first size that holds every block."""
    grid = [step * 10**power for power in range(1 + len(str(unique_blocks))) for step in (1, 3)]
    first = next(index for index, size in enumerate(grid) if size >= unique_blocks)
    return tuple(grid[max(0, first - 6) : first + 1])


def _decade_rows(capacities, curves) -> list[list[str]]:
    """The curves in numbers, at the powers of ten."""
    decades = [i for i, size in enumerate(capacities) if log10(size).is_integer()]
    heading = ["hit ratio at (blocks)", " / ".join(f"{capacities[i]:,}" for i in decades)]
    return [heading] + [
        [name, " / ".join(f"{curves[policy][i]:.4f}" for i in decades)]
        for policy, name in POLICY_NAMES.items()
    ]
