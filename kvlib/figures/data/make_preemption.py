"""Write ``preemption.json``: 1,500 ShareGPT-like requests under pressure, too long a run for a slider.

    python kvlib/figures/data/make_preemption.py

Every number is simulated, so the file is the same on every machine. A test repeats a sample of it.
"""

from __future__ import annotations

import json
from pathlib import Path

from kvlib.serving import simulate
from kvlib.specs import get_gpu, get_model, kv_slots
from kvlib.workloads import sharegpt_like

NUM_REQUESTS, SEED = 1500, 0
MEMORY_PERCENT = (70, 75, 80, 84, 86, 88, 90, 92, 94, 96, 98, 100, 104, 108)
RATES = (1.75, 2.0, 2.25, 2.5)
WATERMARKS = (0.0, 0.01, 0.05)
BLOCK_SIZE = 16
# Twice what the longest prompt takes to prefill here, so whoever is slower than that has waited.
WAITED_S = 0.3


def point(memory_percent: int, rate: float, watermark: float) -> dict:
    """What one run comes to."""
    all_slots = kv_slots(get_model("opt-13b"), get_gpu("a100-40gb"))
    blocks = all_slots * memory_percent // 100 // BLOCK_SIZE
    requests = sharegpt_like(NUM_REQUESTS, rate=rate, seed=SEED)
    result = simulate(requests, num_slots=blocks * BLOCK_SIZE, block_size=BLOCK_SIZE, watermark=watermark)
    input_tokens = sum(request.num_input_tokens for request in requests)
    return {
        "blocks": blocks,
        "preemptions": result.preemptions,
        "recomputed_share": round(result.recomputed_tokens / input_tokens, 4),
        "p50_ttft_s": round(result.percentile("ttft_s", 50), 4),
        "p99_ttft_s": round(result.percentile("ttft_s", 99), 4),
        "normalized_latency_ms": round(1e3 * result.normalized_latency_s, 2),
        "waited_share": round(sum(row.ttft_s > WAITED_S for row in result.per_request) / NUM_REQUESTS, 4),
    }


def main() -> None:
    runs = {
        f"{rate:g} {watermark:g}": [point(percent, rate, watermark) for percent in MEMORY_PERCENT]
        for rate in RATES
        for watermark in WATERMARKS
    }
    made = {
        "provenance": {
            "command": "python kvlib/figures/data/make_preemption.py",
            "workload": f"sharegpt_like({NUM_REQUESTS}, rate, seed={SEED}), OPT-13B on one A100-40GB, blocks of {BLOCK_SIZE}",
        },
        "memory_percent": MEMORY_PERCENT,
        "waited_s": WAITED_S,
        "rates": RATES,
        "watermarks": WATERMARKS,
        "runs": runs,
    }
    Path(__file__).with_name("preemption.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
