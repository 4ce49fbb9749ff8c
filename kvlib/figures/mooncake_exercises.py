"""Chapter 11: the self-checked exercises."""

from __future__ import annotations

import math
from functools import lru_cache

from kvlib.cluster import Candidate, chunks_for_share, replay_prefill, run_pipeline
from kvlib.explore import Choice, Problem, Search, Slip, Verdict, exercise
from kvlib.figures.mooncake import DRAWN_AT_PER_S, LINK_GBPS, LOADS, network, seconds_words
from kvlib.workloads import prefix_trace

NS_PER_S = 10**9
SEEDS = range(5)


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)


@exercise(title="Three ways to serve one request")
def three_choices(rng) -> Problem:
    blocks, prefill_ms = rng.choice((20, 24, 30)), rng.choice((80, 100, 120))
    local, best = rng.choice((2, 4, 6)), blocks - rng.choice((1, 2, 3))
    queue_a_ms, queue_b_ms = rng.choice((300, 500, 800)), rng.choice((2500, 3000, 4000))
    pull_ms = rng.choice((2, 4, 20, 150))
    a = Candidate(
        _ns(queue_a_ms / 1e3), 0, local, _ns((blocks - local) * prefill_ms / 1e3), best - local,
        _ns((best - local) * pull_ms / 1e3), _ns((blocks - best) * prefill_ms / 1e3),
    )
    b = Candidate(_ns(queue_b_ms / 1e3), 0, best, _ns((blocks - best) * prefill_ms / 1e3))
    ways = {
        "A computes what it lacks": a.local_ttft_ns / NS_PER_S, "A pulls from B": a.ttft_ns / NS_PER_S,
        "B takes it": b.ttft_ns / NS_PER_S,
    }
    winner = min(ways, key=ways.get)
    return Problem(
        f"A prompt has {blocks} blocks, and an uncached block takes {prefill_ms} ms to prefill. Instance A "
        f"holds the first {local} "
        f"blocks and has {queue_a_ms} ms of work queued. Instance B holds the first {best} and has "
        f"{queue_b_ms:,} ms queued. A can "
        f"pull blocks from B at {pull_ms} ms each. There are three ways: A computes what it lacks, A pulls "
        "what B has more and "
        "computes the rest, or B takes the request. What is the smallest estimated TTFT, in seconds?",
        ways[winner],
        "s",
        " ".join(f"{way}: {seconds:g} s." for way, seconds in ways.items()) + f" The smallest: {winner}.",
        slips=(
            *(Slip(seconds, "Another way is shorter. Work out all three.") for seconds in ways.values()),
            Slip(ways["A pulls from B"] - queue_a_ms / 1e3, "You left out what A has queued already."),
            Slip(
                (queue_a_ms + (best - local) * pull_ms) / 1e3,
                "After the pull, the blocks that nobody has still need prefill.",
            ),
            Slip(
                (queue_a_ms + best * pull_ms + (blocks - best) * prefill_ms) / 1e3,
                "A already holds some of these blocks. It pulls only what B has more.",
            ),
        ),
    )


@exercise(title="When does pulling stop paying?")
def pull_break_even(rng) -> Problem:
    blocks, prefill_ms = rng.choice((20, 25, 40)), rng.choice((50, 80, 100, 120))
    local, best = rng.choice((3, 4, 5)), blocks - rng.choice((2, 4))
    queue_ms = rng.choice((200, 500, 700))
    return Problem(
        f"A prompt has {blocks} blocks; an uncached one takes {prefill_ms} ms to prefill. Instance A holds "
        f"{local} of them and has "
        f"{queue_ms} ms queued; B holds {best}. At how many milliseconds per block does pulling the missing "
        f"{best - local} blocks from "
        "B take as long as computing them on A?",
        prefill_ms,
        "ms",
        f"Queue and the last {blocks - best} blocks are the same either way. What is left is {best - local} "
        "× pull against "
        f"{best - local} × {prefill_ms} ms, so they are equal at {prefill_ms} ms a block, whatever the queue "
        "and the number of "
        "blocks. It is the break-even of chapter 8 again: fetch while fetching a block is faster than "
        "computing it.",
        slips=(
            Slip(
                (blocks - local) * prefill_ms / (best - local),
                "Only the pulled blocks are saved. The rest is computed either way.",
            ),
            Slip(((best - local) * prefill_ms - queue_ms) / (best - local), "The queue is waited for either way."),
            Slip(((best - local) * prefill_ms + queue_ms) / (best - local), "The queue is waited for either way."),
        ),
    )


@exercise(title="Chunks in a pipeline")
def pipeline_speedup(rng) -> Problem:
    nodes, chunks = rng.choice((2, 4, 8)), rng.choice((6, 8, 12, 16, 24, 32))
    answer = run_pipeline([1.0] * chunks, nodes).speedup
    return Problem(
        f"A prompt is cut into {chunks} chunks that take equally long, and goes through {nodes} nodes with "
        "an equal share of the "
        "layers each. Handing over costs nothing. How many times faster is that than one node?",
        answer,
        "times",
        f"In units of one chunk on one node of the pipeline, the last chunk leaves after {chunks} + {nodes} "
        f"− 1 = {chunks + nodes - 1} "
        f"units; one node alone would take {chunks} × {nodes} = {chunks * nodes}. {chunks * nodes} ÷ "
        f"{chunks + nodes - 1} = {answer:.3g}.",
        tolerance=0.01,
        slips=(
            Slip(nodes, "That would need every node to be busy from the first moment to the last."),
            Slip(
                chunks * nodes / (chunks + nodes),
                "The first chunk needs only as many units as there are nodes; count the −1.",
            ),
            Slip(chunks / (chunks + nodes - 1), "That is the share of the ideal. Multiply it by the number of nodes."),
        ),
    )


@exercise(title="How many chunks are enough?")
def enough_chunks(rng) -> Problem:
    nodes, percent = rng.choice((3, 4, 6, 8)), rng.choice((75, 80, 90, 95))
    answer = chunks_for_share(percent / 100, nodes)
    return Problem(
        f"A pipeline of {nodes} nodes should reach at least {percent} % of its ideal speed-up of {nodes}. "
        "How many equal chunks does a "
        "prompt need at least?",
        answer,
        "chunks",
        f"m chunks reach m ÷ (m + {nodes} − 1) of the ideal. That is at least {percent} % from m = {percent} "
        f"÷ {100 - percent} × {nodes - 1} "
        f"on, so {answer} chunks.",
        slips=(
            Slip(answer - 1, "That stays just below the share asked for."),
            Slip(
                math.ceil(percent * nodes / (100 - percent)),
                "Count the nodes that wait for the first chunk: one fewer than there are nodes.",
            ),
            Slip(nodes, "One chunk per node keeps every node waiting for half the time or so."),
        ),
    )


@lru_cache(maxsize=128)
def _mean_ttft_s(policy: str, load: float, gigabits: float, cache_blocks: int) -> float:
    """Mean over five synthetic traces of the mean TTFT."""
    knobs = {"policy": policy, "speed": load / DRAWN_AT_PER_S, "link": network(gigabits), "cache_blocks": cache_blocks}
    return math.fsum(replay_prefill(_trace(seed), **knobs).ttft_s for seed in SEEDS) / len(SEEDS)


@lru_cache(maxsize=len(SEEDS))
def _trace(seed: int):
    return prefix_trace("conversation", 120, DRAWN_AT_PER_S, seed)


@exercise(title="Find a setting: pulls that hurt")
def pulls_that_hurt(rng) -> Search:
    margin = rng.choice((2, 5, 10))
    controls = (
        Choice("link", "Network of each instance", LINK_GBPS, default=800, unit="Gb/s"),
        Choice("load", "Load", LOADS, default=4.0, unit="requests/s"),
        Choice("cache_blocks", "Cache of each instance", [50, 100, 200, 400, 800], default=200, unit="blocks"),
    )

    def judge(link, load, cache_blocks) -> Verdict:
        aware, centric = (_mean_ttft_s(policy, load, link, cache_blocks) for policy in ("cache_aware", "kvcache_centric"))
        said = f"Mean TTFT over five traces: cache-aware {seconds_words(aware)}, KVCache-centric {seconds_words(centric)}."
        if centric >= aware * (1 + margin / 100):
            return Verdict(True, said)
        return Verdict(False, f"{said} Wanted: KVCache-centric at least {margin} % slower.")

    return Search(
        "KVCache-centric routing can do all that cache-aware routing can, and pull besides. Yet it can be "
        "the slower one. Find a "
        f"network, a load and a cache size where its mean TTFT is at least {margin} % longer. Five synthetic "
        "traces of 120 requests, "
        "threshold 2.",
        controls,
        judge,
        {"link": 1, "load": 4.0, "cache_blocks": 200},
        "Algorithm 1 does not compare pulling with computing on the same instance: above the threshold it "
        "pulls. On a network below the "
        "break-even bandwidth every such pull loses, and pulls that share a link make each other slower than "
        "was estimated.",
    )
