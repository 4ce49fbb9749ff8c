"""Prefix caching and trace reading: ``python bench/bench_prefix.py``.

The replays run on Mooncake's conversation trace when ../shared/data (or $KVLIB_SHARED/data) has it, otherwise on
the synthetic one. Each figure is the best of three runs, in CPU seconds of this process.
"""

import random
from collections.abc import Iterator

from mooncake_trace import conversation_trace
from speeds import Speed, best_cpu_s, cpu_seconds, report

from kvlib.prefix import BlockCache, RadixCache, lru_hit_ratios, replay
from kvlib.prefix.eviction import Lfu, Lru
from kvlib.workloads import sharegpt_like

BLOCK_SIZE = 16
CACHE_SIZES = (2_000, 20_000)
# Three times a published engine's Python manager, at its fastest (peers.py).
MIXED_TARGET_PER_S = 3 * 74_000


def replays() -> Iterator[Speed]:
    trace = conversation_trace()
    references = f"{sum(len(request.block_ids) for request in trace.requests):,} references"
    capacities = [*range(1_000, 100_000, 1_000), None]
    yield Speed("prefix.lru", f"{references}, LRU, 10,000 blocks", best_cpu_s(lambda: replay(trace, 10_000)), "s", 0.5)
    one_pass_s = best_cpu_s(lambda: lru_hit_ratios(trace, capacities))
    yield Speed("prefix.one_pass", f"{references}, LRU at 100 capacities, one pass", one_pass_s, "s", 2)
    belady_s = best_cpu_s(lambda: replay(trace, 10_000, "belady"))
    yield Speed("prefix.belady", f"{references}, Belady, 10,000 blocks", belady_s, "s", 2)


def appends(num_blocks: int) -> Speed:
    num_tokens = BLOCK_SIZE * (num_blocks - 1)

    def work():
        cache = BlockCache(num_blocks, BLOCK_SIZE)
        cache.allocate("one", [0])
        for token in range(num_tokens):
            cache.append("one", token)

    per_s = num_tokens / best_cpu_s(work)
    return Speed(f"prefix.append_{num_blocks}", f"append one token, cache of {num_blocks:,} blocks", per_s, "per s", 500_000, True)


def allocations(num_blocks: int) -> Speed:
    rng = random.Random(0)
    prompts = [[rng.randrange(50_000) for _ in range(100 * BLOCK_SIZE)] for _ in range(300)]

    def work():
        cache = BlockCache(num_blocks, BLOCK_SIZE)
        for seq, prompt in enumerate(prompts):
            cache.allocate(seq, prompt)
            if seq >= 10:
                cache.free(seq - 10)

    per_s = 100 * len(prompts) / best_cpu_s(work)
    what = f"allocate with hashing, cache of {num_blocks:,} blocks"
    return Speed(f"prefix.allocate_{num_blocks}", what, per_s, "blocks/s", 150_000, True)


def mixed(num_blocks: int) -> Speed:
    """1,500 chats behind one of three system prompts: allocate, append every token, free."""
    rng = random.Random(1)
    requests = sharegpt_like(1_500, rate=3.0, seed=1)
    system_prompts = [rng.choices(range(50_000), k=256) for _ in range(3)]
    prompts = [rng.choice(system_prompts) + rng.choices(range(50_000), k=r.num_input_tokens) for r in requests]

    def work():
        cache = BlockCache(num_blocks, BLOCK_SIZE)
        for seq, (prompt, request) in enumerate(zip(prompts, requests)):
            cache.allocate(seq, prompt)
            for token in range(request.num_output_tokens):
                cache.append(seq, token)
            if seq >= 8:
                cache.free(seq - 8)

    operations = sum(r.num_output_tokens for r in requests) + 2 * len(requests)
    what = f"1,500 chats: allocate, append, free; cache of {num_blocks:,} blocks"
    return Speed(f"prefix.mixed_{num_blocks}", what, operations / best_cpu_s(work), "operations/s", MIXED_TARGET_PER_S, True)


def radix() -> Speed:
    rng = random.Random(2)
    shared = [[rng.randrange(50_000) for _ in range(6_000)] for _ in range(20)]
    prompts = [
        tuple(shared[rng.randrange(20)][: rng.randrange(1_000, 6_000)] + rng.choices(range(50_000), k=8_000))[:8_000]
        for _ in range(2_000)
    ]

    def work():
        cache = RadixCache(capacity_tokens=1_000_000)
        for prompt in prompts:
            cache.match_prefix(prompt)
            cache.insert(prompt)

    return Speed("prefix.radix", "radix tree: match and insert 2,000 prompts of 8,000 tokens", best_cpu_s(work), "s", 3)


def eviction_s(policy, num_blocks: int) -> float:
    """20,000 references to a full cache; each of them evicts."""
    cache = policy(num_blocks)
    for block in range(num_blocks):
        cache.reference(block, depth=0)
    return cpu_seconds(lambda: [cache.reference(block, depth=0) for block in range(num_blocks, num_blocks + 20_000)])


def evictions() -> Iterator[Speed]:
    """A cost linear in the size of the cache would make this ratio 100; a logarithmic one 1.5, plus slower memory."""
    for policy in (Lru, Lfu):
        ratio = eviction_s(policy, 1_000_000) / eviction_s(policy, 10_000)
        name = policy.__name__.upper()
        yield Speed(f"prefix.evict_{name.lower()}", f"{name} eviction, 1,000,000 blocks against 10,000", ratio, "times", 10)


def measure() -> Iterator[Speed]:
    yield from replays()
    for num_blocks in CACHE_SIZES:
        yield appends(num_blocks)
        yield allocations(num_blocks)
        yield mixed(num_blocks)
    yield radix()
    yield from evictions()


if __name__ == "__main__":
    report(measure())
