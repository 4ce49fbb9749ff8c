"""The runs behind chapter 7's curves: stored for our own workloads, live on a reader's trace.

The stored ones are made by ``data/make_prefix_caching_sweeps.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace as replaced
from functools import cache
from itertools import islice
from math import fsum
from pathlib import Path
from random import Random

from kvlib.cost import prefill_s
from kvlib.prefix import lru_hit_ratios, lru_knee, replay, trace_statistics
from kvlib.prefix.eviction import POLICIES
from kvlib.workloads.prefix_traces import LOADS
from kvlib.workloads.sessions import turns_in_order
from kvlib.workloads.traces import Trace

BLOCK_SIZE = 512
KINDS = {
    "conversation": "conversation, as Mooncake's",
    "tool_agent": "tools and agents, as Mooncake's",
    "chat": "short chats",
    "documents": "questions about documents",
    "rag": "retrieved chunks (RAG)",
    "agents": "agents",
}


@cache
def stored_sweeps() -> dict:
    """What ``data/make_prefix_caching_sweeps.py`` wrote."""
    return json.loads((Path(__file__).parent / "data" / "prefix_caching_sweeps.json").read_text())


def hit_curves(trace: Trace, capacities: Sequence[int]) -> dict[str, list[float]]:
    """Hit ratio of every policy at every capacity; LRU's come from one pass over the trace."""
    curves = {
        policy: [replay(trace, size, policy).hit_ratio for size in capacities]
        for policy in POLICIES
        if policy != "lru"
    }
    return {"lru": lru_hit_ratios(trace, capacities), **curves}


def hit_facts(trace: Trace) -> dict:
    """What no policy changes: how much of a trace can hit at all, and where LRU is almost there."""
    facts = trace_statistics(trace, num_hottest=2)
    return {
        "requests": facts.num_requests,
        "references": facts.num_references,
        "unique_blocks": facts.num_unique_blocks,
        "mean_input_tokens": facts.mean_input_tokens,
        "mean_output_tokens": facts.mean_output_tokens,
        "share_used_once": facts.share_used_once,
        "reusable_share": facts.reusable_share,
        "top_1_percent_share": facts.top_1_percent_share,
        "hottest": [uses for _, uses in facts.hottest],
        "knee": lru_knee(trace),
    }


def token_hit_ratio(trace: Trace, capacity_blocks: int | None) -> float:
    """Share of all prompt tokens that an LRU cache of full blocks saves.

    A partial block is not cached, and only hits before a request's first miss count.
    """
    full = [
        replaced(r, block_ids=r.block_ids[: r.num_input_tokens // trace.block_size]) for r in trace.requests
    ]
    found = replay(replaced(trace, requests=tuple(full)), capacity_blocks, "lru").prefix_hits
    return found * trace.block_size / sum(r.num_input_tokens for r in trace.requests)


def cached_tokens(trace: Trace, capacity_blocks: int) -> list[int]:
    """Prompt tokens of every request that an LRU cache saves; at least one token stays to be computed."""
    lru = POLICIES["lru"](capacity_blocks)
    saved = []
    for request in trace.requests:
        found = [lru.reference(block, depth) for depth, block in enumerate(request.block_ids)]
        leading = found.index(False) if False in found else len(found)
        saved.append(min(leading, (request.num_input_tokens - 1) // trace.block_size) * trace.block_size)
    return saved


def prefill_hours(model, gpu, prompts: Sequence[tuple[int, int]], num_gpus: int) -> float:
    """GPU-hours per 1,000 requests, each given as (prompt tokens, cached tokens among them)."""
    seconds = fsum(prefill_s(model, gpu, tokens - cached, cached, num_gpus) for tokens, cached in prompts)
    return seconds * num_gpus / 3600 * 1000 / len(prompts)


def reuse_shares(kind: str, num_requests: int, seed: int, keeps_answers: bool) -> Mapping[str, float]:
    """Where prompt tokens were seen before, as shares of all of them, with a cache that never evicts.

    A piece counts as seen only behind the same pieces, because a prefix cache finds nothing else.
    With `keeps_answers` generated tokens are cached as they come; else an answer is computed again in the
    next prompt.
    """
    seen: set[tuple] = set()
    tokens = dict.fromkeys(("opening", "message", "answer", "new"), 0)
    for turn in islice(turns_in_order(LOADS[kind], 1.0, Random(seed)), num_requests):
        names = tuple(name for name, _ in turn.segments)
        for depth, (name, length) in enumerate(turn.segments, start=1):
            source = "opening" if name[0] == "piece" else name[0]
            tokens[source if names[:depth] in seen else "new"] += length
        seen.update(names[:depth] for depth in range(1, len(names) + 1))
        if keeps_answers:
            seen.add((*names, ("answer", *names[-1][1:])))
    total = sum(tokens.values())
    return {source: count / total for source, count in tokens.items()}
