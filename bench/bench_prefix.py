"""Speeds of prefix caching and trace reading, each beside its goal.

    .venv/bin/python bench/bench_prefix.py [rounds]

Prints the median of the rounds (3 if not given) in CPU seconds of this process. The replay of the real
trace runs when ../shared/data (or $KVLIB_SHARED/data) is there, otherwise on the synthetic one.
"""

import os
import random
import statistics
import sys
import time
from pathlib import Path

from kvlib.prefix import BlockCache, RadixCache, lru_hit_ratios, replay
from kvlib.prefix.eviction import Lfu, Lru
from kvlib.workloads import conversation_like, read_trace, sharegpt_like

SHARED = Path(os.environ.get("KVLIB_SHARED", Path(__file__).parents[2] / "shared"))
TRACE_PATH = SHARED / "data" / "mooncake_conversation_trace.jsonl"
# Operations per second of a published engine's Python manager on such a trace (issue 6: 42,000 to 74,000).
ENGINE_OPERATIONS_PER_S = 74_000


def seconds(work, rounds):
    """Return the median CPU time of what ``work()`` returns; ``work`` itself prepares each round, untimed."""
    times = []
    for _ in range(rounds):
        run = work()
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return statistics.median(times)


def report(name, value, unit, goal, higher_is_better):
    is_met = value >= goal if higher_is_better else value <= goal
    sign = ">=" if higher_is_better else "<="
    print(f"{name:<52} {value:>12,.3f} {unit:<12} goal {sign} {goal:>10,} {'met' if is_met else 'MISSED'}")


def bench_replay(rounds):
    if TRACE_PATH.exists():
        report(
            "read the Mooncake trace", seconds(lambda: lambda: read_trace(TRACE_PATH), rounds), "s", 1, False
        )
        trace = read_trace(TRACE_PATH)
    else:
        trace = conversation_like(12_031, seed=0)
    print(f"replaying {trace.name}, {sum(len(request.block_ids) for request in trace.requests):,} references")
    report(
        "LRU replay, 10,000 blocks", seconds(lambda: lambda: replay(trace, 10_000), rounds), "s", 0.5, False
    )
    capacities = [*range(1_000, 100_000, 1_000), None]
    one_pass = seconds(lambda: lambda: lru_hit_ratios(trace, capacities), rounds)
    report("LRU at 100 capacities, one pass", one_pass, "s", 2, False)
    belady = seconds(lambda: lambda: replay(trace, 10_000, "belady"), rounds)
    report("Belady replay, 10,000 blocks", belady, "s", 2, False)


def bench_appends(num_blocks, rounds):
    num_tokens = 16 * (num_blocks - 1)

    def work():
        cache = BlockCache(num_blocks, block_size=16)
        cache.allocate("one", [0])

        def run():
            for token in range(num_tokens):
                cache.append("one", token)

        return run

    report(
        f"append one token, {num_blocks:,} blocks", num_tokens / seconds(work, rounds), "per s", 500_000, True
    )


def bench_allocations(num_blocks, rounds):
    rng = random.Random(0)
    prompts = [[rng.randrange(50_000) for _ in range(16 * 100)] for _ in range(300)]

    def work():
        cache = BlockCache(num_blocks, block_size=16)

        def run():
            for seq, prompt in enumerate(prompts):
                cache.allocate(seq, prompt)
                if seq >= 10:
                    cache.free(seq - 10)

        return run

    report(
        f"allocate with hashing, {num_blocks:,} blocks",
        30_000 / seconds(work, rounds),
        "blocks/s",
        150_000,
        True,
    )


def bench_mixed(num_blocks, rounds):
    """1,500 chat requests behind one of three system prompts: allocate, append every token, free."""
    rng = random.Random(1)
    requests = sharegpt_like(1_500, rate=3.0, seed=1)
    system_prompts = [rng.choices(range(50_000), k=256) for _ in range(3)]
    prompts = [
        rng.choice(system_prompts) + rng.choices(range(50_000), k=request.num_input_tokens)
        for request in requests
    ]
    outputs = [request.num_output_tokens for request in requests]

    def work():
        cache = BlockCache(num_blocks, block_size=16)

        def run():
            for seq, (prompt, num_output_tokens) in enumerate(zip(prompts, outputs)):
                cache.allocate(seq, prompt)
                for token in range(num_output_tokens):
                    cache.append(seq, token)
                if seq >= 8:
                    cache.free(seq - 8)

        return run

    speed = (sum(outputs) + 2 * 1_500) / seconds(work, rounds)
    report(f"mixed trace, {num_blocks:,} blocks", speed, "operations/s", 3 * ENGINE_OPERATIONS_PER_S, True)


def bench_radix(rounds):
    rng = random.Random(2)
    shared = [[rng.randrange(50_000) for _ in range(6_000)] for _ in range(20)]
    prompts = [
        tuple(shared[rng.randrange(20)][: rng.randrange(1_000, 6_000)] + rng.choices(range(50_000), k=8_000))[
            :8_000
        ]
        for _ in range(2_000)
    ]

    def work():
        cache = RadixCache(capacity_tokens=1_000_000)

        def run():
            for prompt in prompts:
                cache.match_prefix(prompt)
                cache.insert(prompt)

        return run

    report("radix: match and insert 2,000 prompts of 8,000", seconds(work, rounds), "s", 3, False)


def bench_eviction(rounds):
    """The time per reference must not grow with the cache; every timed reference evicts."""
    for policy in (Lru, Lfu):
        small, large = (eviction_us(policy, num_blocks, rounds) for num_blocks in (10_000, 1_000_000))
        print(f"{policy.__name__} eviction: {small:.2f} us at 10,000 blocks, {large:.2f} us at 1,000,000")

    def work():
        cache = BlockCache(1_000_000, block_size=1)
        cache.allocate("fill", range(1_000_000))
        cache.free("fill")
        return lambda: cache.allocate("evict", range(2_000_000, 2_020_000))

    print(
        f"BlockCache eviction at 1,000,000 blocks: {seconds(work, rounds) / 20_000 * 1e6:.2f} us with hashing"
    )


def eviction_us(policy, num_blocks, rounds):
    def work():
        cache = policy(num_blocks)
        for block in range(num_blocks):
            cache.reference(block, depth=0)

        def run():
            for block in range(num_blocks, num_blocks + 20_000):
                cache.reference(block, depth=0)

        return run

    return seconds(work, rounds) / 20_000 * 1e6


if __name__ == "__main__":
    num_rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    bench_replay(num_rounds)
    for size in (2_000, 20_000):
        bench_appends(size, num_rounds)
        bench_allocations(size, num_rounds)
        bench_mixed(size, num_rounds)
    bench_radix(num_rounds)
    bench_eviction(num_rounds)
