"""Chapter 6's long runs, as ``kvlib/figures/data/make_serving.py`` wrote them, and the paper's figures beside them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

POLICIES = ("static", "max", "pow2", "oracle", "paged")
NAMES = {
    "static": "FasterTransformer", "max": "Orca (Max)", "pow2": "Orca (Pow2)", "oracle": "Orca (Oracle)", "paged": "paged",
}
SYSTEMS = ("OPT-13B", "OPT-66B", "OPT-175B")
WORKLOADS = ("ShareGPT", "Alpaca", "chat", "translation, 1-shot", "translation, 5-shot")
PRECOMPUTED = "simulated beforehand by kvlib (kvlib/figures/data/make_serving.py)"

PAPER = "Kwon et al. 2023, sections 6.2, 6.4 and 6.5"
# (workload, policy) -> how many times that policy's rate paging sustains, as the paper puts it.
PAPER_GAINS = {
    ("ShareGPT", "oracle"): "1.7 to 2.7",
    ("ShareGPT", "max"): "2.7 to 8",
    ("ShareGPT", "static"): "up to 22",
    ("translation, 1-shot", "oracle"): "1.67",
    ("translation, 5-shot", "oracle"): "3.58",
    ("chat", "oracle"): "2",
}


@cache
def precomputed() -> dict:
    """The whole file."""
    return json.loads(Path(__file__).with_name("data").joinpath("serving.json").read_text(encoding="utf-8"))


def best_rate(system: str, workload: str, policy: str) -> float:
    """The highest rate within 50 ms per token, in requests per second."""
    return precomputed()["highest_rates"][f"{system}|{workload}|{policy}"]


def gain(system: str, workload: str, policy: str) -> float:
    """How many times a policy's rate paging sustains within 50 ms per token.

    >>> 1.5 < gain("OPT-13B", "ShareGPT", "oracle") < 3        # oracle L7.rate
    True
    """
    return best_rate(system, workload, "paged") / best_rate(system, workload, policy)


def gain_with_paper_slots(system: str, policy: str) -> float:
    """The same for ShareGPT, with as many KV slots as table 1 of the paper reports."""
    rates = precomputed()["with_paper_slots"]
    return rates[f"{system}|paged"] / rates[f"{system}|{policy}"]


def curve(system: str, workload: str, policy: str) -> list[list[float]]:
    """Rows of rate (requests/s), mean latency per token (ms), requests running."""
    return precomputed()["curves"][f"{system}|{workload}|{policy}"]


def mean_latency_ms(load: float, num_requests: int) -> float:
    """Mean latency per token of a run of some length, at a multiple of the capacity."""
    return precomputed()["watched"][f"{load}|{num_requests}"]


def rate_with_memory(workload: str, times: float, policy: str) -> float:
    """The highest rate with several times the KV memory of an A100-40GB."""
    return precomputed()["ample"][f"{workload}|{times}|{policy}"]


def rate_behind_prefix(workload: str, prefix_tokens: int, sharing: bool) -> float:
    """The highest rate of a load behind a common prefix."""
    return precomputed()["shared"][f"{workload}|{prefix_tokens}|{sharing}"]
