"""Reduce synthetic traces to the demands of chapter 15 and write ``plan.json`` beside this file.

python kvlib/figures/data/make_plan.py     # about two minutes, standard library only
"""

import json
import platform
from pathlib import Path

from kvlib.figures.plan_data import LOADS, WORKLOADS, to_record
from kvlib.planner import demand_of
from kvlib.planner.demand import BLOCK_SIZES, CAPACITIES
from kvlib.workloads import prefix_trace

SEED = 0
NUM_REQUESTS = 2_000


def demand_record(workload: str, load_per_s: float) -> list:
    """One demand, in the smallest blocks that a plan considers."""
    return to_record(demand_of(prefix_trace(workload, NUM_REQUESTS, load_per_s, SEED, BLOCK_SIZES[0])))


def main() -> None:
    found = {
        "provenance": {
            "command": "python kvlib/figures/data/make_plan.py",
            "seed": SEED,
            "num_requests": NUM_REQUESTS,
            "versions": {"python": platform.python_version()},
        },
        "block_sizes": list(BLOCK_SIZES),
        "capacities": list(CAPACITIES),
        "demands": {name: {str(load): demand_record(name, load) for load in LOADS} for name in WORKLOADS},
    }
    text = json.dumps(found, separators=(",", ":"))
    Path(__file__).with_name("plan.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
