"""Chapter 10: how to cut the instances of two pools, searched over every cut that fits."""

from __future__ import annotations

from functools import lru_cache

from kvlib.cluster import Machine, Placement, Workload, placements
from kvlib.errors import ConfigError
from kvlib.explore import COMPUTED, Choice, Toggle, View, explorer
from kvlib.explore.palette import FREE, PREFILL
from kvlib.figures.charts import axis, stacked_bars
from kvlib.specs import get_gpu, get_link, get_model

NODES, GPUS_PER_NODE = 2, 8
INPUT_TOKENS, OUTPUT_TOKENS = 512, 64
BETWEEN = [
    ("net-10g", "Ethernet, 10 Gb/s"), ("net-25g", "Ethernet, 25 Gb/s"), ("net-100g", "RDMA, 100 Gb/s"),
    ("net-800g", "RDMA, 800 Gb/s"),
]
Cuts = tuple[int, int, int, int]  # TP and PP of prefill, TP and PP of decode


def small_cluster(between: str = "net-25g") -> Machine:
    """Two nodes of eight A100 with LLaMA-2-70B, NVLink inside a node."""
    return Machine(
        get_model("llama-2-70b"), get_gpu("a100-80gb"), NODES, GPUS_PER_NODE, get_link("nvlink3"), get_link(between)
    )


@lru_cache(maxsize=256)
def best_by_cut(ttft_s: float, tbt_s: float, shares_node: bool, between: str = "net-25g") -> dict[Cuts, Placement]:
    """The best filling of `small_cluster` for every pair of cuts.

    Raises
    ------
    ConfigError
        If no placement meets both objectives.
    """
    work = Workload(INPUT_TOKENS, OUTPUT_TOKENS, ttft_s, tbt_s)
    best: dict[Cuts, Placement] = {}
    for found in placements(small_cluster(between), work, shares_node):
        cut = (found.prefill.tp, found.prefill.pp, found.decode.tp, found.decode.pp)
        if cut not in best or found.goodput_per_s > best[cut].goodput_per_s:
            best[cut] = found
    if not best:
        raise ConfigError(f"objectives: got {ttft_s:g} s and {tbt_s:g} s, expected objectives that some placement meets")
    return best


@explorer(
    title="How should each pool be cut?",
    controls=[
        Choice("ttft_ms", "Objective for the first token", [200, 250, 300, 400, 500, 700, 1000, 2000], default=500, unit="ms"),
        Toggle("apart", "Each pool has a node of its own", default=True),
        Choice("between", "Network between the nodes", BETWEEN, default="net-25g"),
        Choice("tbt_ms", "Objective for the time between tokens", [30, 50, 100], default=50, unit="ms"),
    ],
    expects={"ttft_ms": "rises:goodput", "apart": "falls:goodput", "between": "rises:goodput", "tbt_ms": "falls:decode_tp"},
)
def cuts(ttft_ms, apart, between, tbt_ms) -> View:
    """For every cut of the prefill instances, the best that the search finds for the rest."""
    by_prefill: dict[tuple[int, int], Placement] = {}
    for (tp, pp, *_), found in best_by_cut(ttft_ms / 1e3, tbt_ms / 1e3, not apart, between).items():
        if (tp, pp) not in by_prefill or found.goodput_per_s > by_prefill[tp, pp].goodput_per_s:
            by_prefill[tp, pp] = found
    best = max(by_prefill.values(), key=lambda found: found.goodput_per_s)
    listed = sorted(by_prefill.values(), key=lambda found: (-found.prefill.tp, found.prefill.pp))
    figure = stacked_bars(
        [_cut(found.prefill) for found in listed],
        [("cluster", [found.goodput_per_s for found in listed], PREFILL)],
        axis("requests/s of the cluster", low=0, high=1.1 * best.goodput_per_s),
    )
    figure["data"][0]["marker"]["color"] = [PREFILL if found is best else FREE for found in listed]
    figure["layout"]["showlegend"] = False
    return View(
        title=(
            f"First token within {ttft_ms:,} ms: prefill on {best.prefill_instances} × ({_cut(best.prefill)}), decode on "
            f"{best.decode_instances} × ({_cut(best.decode)}), {best.goodput_per_s:.1f} requests/s"
        ),
        picture=figure,
        table=[
            ["prefill instances", "decode instances", "requests/s", "requests/s per GPU"],
            *(
                [
                    f"{found.prefill_instances} × {_cut(found.prefill)}", f"{found.decode_instances} × {_cut(found.decode)}",
                    found.goodput_per_s, found.goodput_per_gpu,
                ]
                for found in listed
            ),
        ],
        source=COMPUTED,
        note=(
            "A bar is one cut of the prefill instances, with the best that the search finds for the rest; cuts without a bar "
            f"cannot hold the weights or miss an objective. LLaMA-2-70B on {NODES} nodes of {GPUS_PER_NODE} A100, {INPUT_TOKENS} "
            f"tokens in and {OUTPUT_TOKENS} out, requests of mean length. That TP loses 15 % per doubling is assumed."
        ),
        numbers={
            "goodput": best.goodput_per_s, "prefill_tp": best.prefill.tp, "prefill_pp": best.prefill.pp,
            "decode_tp": best.decode.tp,
        },
    )


def _cut(shape) -> str:
    return f"TP {shape.tp}, PP {shape.pp}"
