"""Chapter 11, continued: the pool's own tiers, DRAM above SSD."""

from __future__ import annotations

from functools import lru_cache

from kvlib.cluster import TieredHits, mean_fetch_s, replay_tiers
from kvlib.cost import prefill_s
from kvlib.explore import SIMULATED, Choice, View, explorer
from kvlib.explore.palette import PREFILL, RESERVED, TRANSFER
from kvlib.figures.charts import axis, stacked_bars
from kvlib.figures.mooncake import ON_THIS_TRACE, small_trace
from kvlib.prefix import trace_statistics
from kvlib.specs import get_gpu, get_model
from kvlib.tiers import CPU_MEMORY, machine_links

BLOCK_TOKENS = 512
MODELS = (("llama-2-70b", "LLaMA-2-70B (GQA)"), ("opt-13b", "OPT-13B (MHA)"))


@lru_cache(maxsize=64)
def _hits(dram_blocks: int, ssd_blocks: int) -> TieredHits:
    return replay_tiers(small_trace(), dram_blocks, ssd_blocks)


@explorer(
    title="Cold blocks sink to the SSD",
    controls=[
        Choice("ssd_blocks", "SSD", [0, 200, 400, 800, 1600, 3200], default=800, unit="blocks"),
        Choice("dram_blocks", "DRAM", [50, 100, 200, 400, 800, 1600], default=200, unit="blocks"),
        Choice("ssd_gb_per_s", "The SSDs deliver", [0.5, 1.0, 2.0, 6.0, 12.0, 24.0], default=6.0, unit="GB/s"),
        Choice("model", "Model", MODELS, default="llama-2-70b"),
    ],
    expects={
        "ssd_blocks": "rises:hit_ratio", "dram_blocks": "rises:dram_share", "ssd_gb_per_s": "falls:mean_ms",
        "model": "changes:mean_ms",
    },
)
def tiers(ssd_blocks, dram_blocks, ssd_gb_per_s, model) -> View:
    """Where the time of a block goes: fetched from DRAM, fetched from SSD, or computed."""
    hits = _hits(dram_blocks, ssd_blocks)
    spec, gpu = get_model(model), get_gpu("a800-80gb")
    dram = machine_links(gpu)[CPU_MEMORY]
    block_bytes = BLOCK_TOKENS * spec.shape.kv_bytes_per_token()
    # An average block: the middle one of a prompt of 24, the mean of the trace.
    times = {
        "from DRAM": block_bytes / dram.effective_bytes_per_s,
        "from SSD": block_bytes / (ssd_gb_per_s * 1e9),
        "computed": prefill_s(spec, gpu, BLOCK_TOKENS, 12 * BLOCK_TOKENS, num_gpus=8),
    }
    counts = {"from DRAM": hits.dram_hits, "from SSD": hits.ssd_hits}
    counts["computed"] = hits.references - hits.dram_hits - hits.ssd_hits
    shares = {where: 100 * count / hits.references for where, count in counts.items()}
    parts_ms = {where: 1e3 * times[where] * counts[where] / hits.references for where in times}
    mean_ms = 1e3 * mean_fetch_s(hits, *times.values())
    without_ms = 1e3 * times["computed"]
    colors = {"from DRAM": TRANSFER, "from SSD": RESERVED, "computed": PREFILL}
    figure = stacked_bars(
        ["share of blocks (%)", "share of time (%)"],
        [(where, [shares[where], 100 * parts_ms[where] / mean_ms], colors[where]) for where in times],
        axis("%", low=0, high=100),
    )
    verdict = "faster" if times["from SSD"] < times["computed"] else "slower"
    return View(
        title=f"{hits.hit_ratio:.1%} of blocks are found, {hits.ssd_hits / hits.references:.1%} on the SSD, "
        f"which is {verdict} than computing: {mean_ms:.1f} ms a block on average, {without_ms:.1f} ms with no pool",
        picture=figure,
        table=[
            ["where", "blocks", "share (%)", "ms per block"],
            *([where, counts[where], shares[where], 1e3 * times[where]] for where in times),
            ["written to the SSD", hits.ssd_writes, 100 * hits.ssd_writes / hits.references, "–"],
        ],
        source=SIMULATED,
        note=f"{ON_THIS_TRACE} A node of eight A800. Every block that DRAM has no room for is written to the SSD, wanted again "
        f"or not; {trace_statistics(small_trace()).share_used_once:.0%} of the blocks are never used again.",
        numbers={
            "hit_ratio": hits.hit_ratio, "dram_share": hits.dram_hits / hits.references, "mean_ms": mean_ms,
            "ssd_writes": hits.ssd_writes,
        },
    )
