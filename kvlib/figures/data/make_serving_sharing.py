"""Write ``serving_sharing.json``: the runs of chapter 6 in which requests share blocks.

    python kvlib/figures/data/make_serving_sharing.py [jobs]

Prefix caching on and off, and several sequences for one request. Every number is simulated, so the file is the
same on every machine and with any number of jobs. A test repeats a sample of it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from kvlib.figures.data.make_serving import grid, table
from kvlib.serving.sweep import highest_rate, run_at
from kvlib.workloads import Request, alpaca_like, prefix_trace, sharegpt_like

SEED = 0
PRECISION = 0.03
BLOCK_SIZE = 16

# Contexts of these loads are longer than OPT's 2,048 tokens.
SYSTEM = {"model": "llama-3-8b", "gpu": "a100-40gb", "max_len": 130_000}
KINDS = ("chat", "agents", "documents", "rag")
# Runs of minutes: a conversation must have time to come back.
CACHING_REQUESTS = {"chat": 1500, "agents": 400, "documents": 300, "rag": 600}
# Mean latency per output token: three to four times that of an idle server without caching, whose prompts are long.
LIMITS_S = {"chat": 0.05, "agents": 2.0, "documents": 0.2, "rag": 0.1}
# Arrival rates as shares of the highest rate that is served within the limit with caching.
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15)

SAMPLED = {"ShareGPT": sharegpt_like, "Alpaca": alpaca_like}
SAMPLED_REQUESTS = {"ShareGPT": 120, "Alpaca": 1000}
SIZES = (1, 2, 4, 6)
WAYS = ("oracle", "apart", "samples", "beams")


def load_of(kind: str, n: int, rate: float, seed: int) -> tuple[Request, ...]:
    """A load whose prompts say which blocks they are made of."""
    return prefix_trace(kind, n, rate, seed, BLOCK_SIZE, answers=True).requests


def caching(kind: str, is_on: bool) -> dict:
    """What ``run_at`` needs for one line of the curves."""
    return {
        "workload": partial(load_of, kind), "num_requests": CACHING_REQUESTS[kind], "seed": SEED,
        "prefix_caching": BLOCK_SIZE if is_on else 0, **SYSTEM,
    }


def best(kind: str, is_on: bool) -> float:
    """The highest rate within the limit."""
    return round(highest_rate(limit_s=LIMITS_S[kind], precision=PRECISION, **caching(kind, is_on)), 4)


def curve(kind: str, is_on: bool, rate: float) -> list[list[float]]:
    """Rate (requests/s), mean latency per token (ms), mean TTFT (ms) and hit ratio, up to beyond ``rate``."""
    points = []
    for share in SHARES:
        run = run_at(rate=round(share * rate, 4), **caching(kind, is_on))
        result = run.result
        points.append([
            run.rate, round(1e3 * result.normalized_latency_s, 2), round(1e3 * result.ttft_s, 1), round(result.hit_ratio, 4),
        ])
    return points


def sampled(load: str, way: str, size: int, n: int, rate: float, seed: int) -> list[Request]:
    """``size`` answers to every prompt: as a group, as beams, or as so many requests."""
    base = SAMPLED[load](n, rate, seed)
    if way in ("samples", "beams"):
        return [replace(one, num_sequences=size, beam_search=way == "beams" and size > 1) for one in base]
    return [one for one in base for _ in range(size)]


def best_sampled(load: str, way: str, size: int) -> float:
    """The highest rate of prompts, each answered ``size`` times, within 50 ms per token; OPT-13B on an A100."""
    workload = partial(sampled, load, way, size)
    memory = "oracle" if way == "oracle" else "paged"
    found = highest_rate(
        workload, precision=PRECISION, num_requests=SAMPLED_REQUESTS[load], seed=SEED, memory=memory
    )
    return round(found, 4)


def main(jobs: int) -> None:
    lines = grid(kind=KINDS, is_on=(False, True))
    rates = table(best, lines, ("kind", "is_on"), jobs)
    for task in lines:
        task["rate"] = rates[f"{task['kind']}|True"]
    groups = grid(load=SAMPLED, way=WAYS, size=SIZES)
    made = {
        "provenance": {
            "command": "python kvlib/figures/data/make_serving_sharing.py",
            "workload": f"{CACHING_REQUESTS} requests with and without prefix caching, within {LIMITS_S} s per token; "
            f"{SAMPLED_REQUESTS} prompts that are answered several times, within 50 ms; seed {SEED}; blocks of {BLOCK_SIZE}; "
            f"rates found to {PRECISION:.0%}",
        },
        "num_requests": {**CACHING_REQUESTS, **SAMPLED_REQUESTS},
        "caching_rates": rates,
        "caching_curves": table(curve, lines, ("kind", "is_on"), jobs),
        "sampled_rates": table(best_sampled, groups, ("load", "way", "size"), jobs),
    }
    text = json.dumps(made, indent=0, ensure_ascii=False) + "\n"
    Path(__file__).with_name("serving_sharing.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
