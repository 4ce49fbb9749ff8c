"""How fast the block manager is: medians and ratios to the project's targets, no assertions.

Run it with ``python bench/bench_blocks.py``. For scale: a published engine's Python manager does 52,000
appends and 1,800 allocations of 128 blocks with their release per second on the machine the targets were
set on.
"""

import statistics
import time

from kvlib.blocks import BlockManager, BuddyAllocator

REPEATS = 7


def rate(num_operations: int, run) -> float:
    """Median operations per second over the repeats."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return num_operations / statistics.median(times)


def appends(num: int = 30_000) -> float:
    def run():
        manager = BlockManager(num_blocks=num // 16 + 1, block_size=16)
        manager.allocate("seq", 1)
        for _ in range(num):
            manager.append("seq")

    return rate(num, run)


def allocate_and_free(num: int = 1_000) -> float:
    def run():
        manager = BlockManager(num_blocks=1_000, block_size=16)
        for _ in range(num):
            manager.allocate("seq", 128 * 16)
            manager.free("seq")

    return rate(num, run)


def fork_write_free(num: int = 1_000) -> float:
    def run():
        manager = BlockManager(num_blocks=1_000, block_size=16)
        manager.allocate("prompt", 100)
        for _ in range(num):
            manager.fork("prompt", "sample")
            manager.append("sample")
            manager.take_copies()
            manager.free("sample")

    return rate(num, run)


def buddy(num: int = 5_000) -> float:
    def run():
        memory = BuddyAllocator(12_596)
        for _ in range(num):
            memory.free(memory.allocate(300))

    return rate(num, run)


if __name__ == "__main__":
    measured = (
        ("appends of one token", appends(), 300_000),
        ("allocate + free of 128 blocks", allocate_and_free(), 10_000),
        ("fork + copy-on-write + free, 7 blocks", fork_write_free(), None),
        ("buddy allocate + free", buddy(), None),
    )
    for name, per_s, target in measured:
        against = f"{per_s / target:5.1f} x the target of {target:,}" if target else ""
        print(f"{name:40} {per_s:12,.0f} /s  {against}")
