"""Replay synthetic traces of full length and write ``prefix_caching_sweeps.json`` beside this file.

python kvlib/figures/data/make_prefix_caching_sweeps.py     # about two minutes, standard library only
"""

import json
import platform
from pathlib import Path

from kvlib.figures.prefix_caching_sweeps import (
    BLOCK_SIZE,
    KINDS,
    cached_tokens,
    hit_curves,
    hit_facts,
    reuse_shares,
    token_hit_ratio,
)
from kvlib.workloads import prefix_trace
from kvlib.workloads.published import CONVERSATION, TOOL_AGENT

SEED = 0
CAPACITIES = (100, 300, 1_000, 3_000, 10_000, 30_000, 50_000, 100_000)
# The two that resemble a real trace have its length and rate; the others are as long as their curves need.
LENGTHS = {"conversation": CONVERSATION.num_requests, "tool_agent": CONVERSATION.num_requests}
OTHER_LENGTH = 4_000
RATES = {"tool_agent": TOOL_AGENT.rate}
# One prompt in so many is kept, to price its prefill on any model.
SAMPLES = 200

BLOCK_KINDS = ("chat", "documents", "rag", "agents")
BLOCK_SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
# In tokens, so that block sizes can be compared; None is a cache that never evicts.
TOKEN_CAPACITIES = (300_000, 1_000_000, 3_000_000, None)
BLOCK_REQUESTS = 600
REUSE_REQUESTS = 4_000
ANSWERS = {"kept": True, "forgotten": False}


def sweep(kind: str) -> dict:
    """Every policy at every capacity on one workload, and the sampled prompts."""
    trace = prefix_trace(
        kind, LENGTHS.get(kind, OTHER_LENGTH), RATES.get(kind, CONVERSATION.rate), SEED, BLOCK_SIZE
    )
    curves = hit_curves(trace, CAPACITIES)
    step = len(trace.requests) // SAMPLES
    return {
        "facts": _rounded(hit_facts(trace)),
        "curves": {policy: [round(ratio, 4) for ratio in ratios] for policy, ratios in curves.items()},
        "sampled_tokens": [request.num_input_tokens for request in trace.requests[::step]],
        "sampled_cached": [cached_tokens(trace, size)[::step] for size in CAPACITIES],
    }


def block_sizes(kind: str) -> list[list[float]]:
    """Share of prompt tokens saved: one row per block size, one column per capacity."""
    rows = []
    for size in BLOCK_SIZES:
        trace = prefix_trace(kind, BLOCK_REQUESTS, CONVERSATION.rate, SEED, size)
        blocks = [None if tokens is None else max(1, tokens // size) for tokens in TOKEN_CAPACITIES]
        rows.append([round(token_hit_ratio(trace, number), 4) for number in blocks])
    return rows


def _rounded(facts: dict) -> dict:
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in facts.items()}


def main() -> None:
    made = {
        "provenance": {
            "command": "python kvlib/figures/data/make_prefix_caching_sweeps.py",
            "seed": SEED,
            "versions": {"python": platform.python_version()},
        },
        "capacities": CAPACITIES,
        "kinds": {kind: sweep(kind) for kind in KINDS},
        "block_sizes": BLOCK_SIZES,
        "token_capacities": TOKEN_CAPACITIES,
        "tokens_saved": {kind: block_sizes(kind) for kind in BLOCK_KINDS},
        "reuse": {
            kind: {
                name: _rounded(reuse_shares(kind, REUSE_REQUESTS, SEED, keeps))
                for name, keeps in ANSWERS.items()
            }
            for kind in KINDS
        },
    }
    Path(__file__).with_name("prefix_caching_sweeps.json").write_text(json.dumps(made) + "\n")


if __name__ == "__main__":
    main()
