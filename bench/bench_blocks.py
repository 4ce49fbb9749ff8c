"""The block manager and the allocators before it: ``python bench/bench_blocks.py``."""

from speeds import Speed, best_cpu_s, report

from kvlib.blocks import BlockManager, BuddyAllocator


def appends(num: int = 100_000) -> None:
    manager = BlockManager(num_blocks=num // 16 + 1, block_size=16)
    manager.allocate("seq", 1)
    for _ in range(num):
        manager.append("seq")


def allocations(num: int = 2_000) -> None:
    manager = BlockManager(num_blocks=1_000, block_size=16)
    for _ in range(num):
        manager.allocate("seq", 128 * 16)
        manager.free("seq")


def forks(num: int = 5_000) -> None:
    manager = BlockManager(num_blocks=1_000, block_size=16)
    manager.allocate("prompt", 100)
    for _ in range(num):
        manager.fork("prompt", "sample")
        manager.append("sample")
        manager.take_copies()
        manager.free("sample")


def buddies(num: int = 20_000) -> None:
    memory = BuddyAllocator(12_596)
    for _ in range(num):
        memory.free(memory.allocate(300))


def measure():
    yield Speed("blocks.append", "append one token", 100_000 / best_cpu_s(appends), "per s", 300_000, True)
    yield Speed("blocks.allocate", "allocate and free 128 blocks", 2_000 / best_cpu_s(allocations), "per s", 10_000, True)
    yield Speed("blocks.fork", "fork, copy on write, free: 7 blocks", 5_000 / best_cpu_s(forks), "per s", None, True)
    yield Speed("blocks.buddy", "buddy allocator: allocate and free", 20_000 / best_cpu_s(buddies), "per s", None, True)


if __name__ == "__main__":
    report(measure())
