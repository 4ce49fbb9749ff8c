"""Chapter 15's demands: four workloads stored at a few loads, and the reader's own trace.

The stored ones are made by ``data/make_plan.py``; reading a file of 12,000 requests takes seconds.
"""

from __future__ import annotations

import json
from functools import cache, lru_cache
from pathlib import Path

from kvlib.explore.files import file_stamp
from kvlib.planner import Cell, Demand, demand_of
from kvlib.planner.demand import CAPACITIES
from kvlib.workloads import read_trace

WORKLOADS = {"chat": "short chats", "documents": "long documents", "rag": "RAG", "agents": "agents"}
LOADS = (0.5, 1.0, 2.0, 4.0, 8.0)


@cache
def _stored() -> dict:
    return json.loads(Path(__file__).with_name("data").joinpath("plan.json").read_text(encoding="utf-8"))


def to_record(demand: Demand) -> list:
    """The demand as plain JSON values."""
    return [[c.share, c.input_tokens, c.output_tokens, c.hits, c.spread, c.uneven] for c in demand.cells]


@cache
def stored_demand(workload: str, load_per_s: float) -> Demand:
    """One of `WORKLOADS` at one of `LOADS`: sessions return after the same pauses, so more of them come between."""
    cells = _stored()["demands"][workload][str(load_per_s)]
    made = (
        Cell(share, n, out, tuple(map(tuple, hits)), tuple(spread), tuple(uneven))
        for share, n, out, hits, spread, uneven in cells
    )
    return Demand(WORKLOADS[workload], CAPACITIES, tuple(made))


def demand_or_file(workload: str, load_per_s: float, path: str) -> Demand:
    """The demand of the trace the reader dropped, else the stored one."""
    return _from_file(path, file_stamp(path)) if path else stored_demand(workload, load_per_s)


@lru_cache(maxsize=2)
def _from_file(path: str, stamp) -> Demand:
    return demand_of(read_trace(path))
