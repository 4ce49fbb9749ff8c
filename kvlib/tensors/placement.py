"""Where blocks lie: scattering them, and seeing which of them happen to be neighbors."""

import random
from collections.abc import Sequence

from kvlib.blocks import BlockManager


def scatter_free_blocks(manager: BlockManager, seed: int) -> None:
    """Bring the free blocks into a random order, as a server's pool is after some hours.

    Examples
    --------
    >>> manager = BlockManager(num_blocks=8, block_size=4)
    >>> scatter_free_blocks(manager, seed=1)
    >>> manager.allocate("prompt", 7); manager.block_table("prompt")
    [3, 6]
    """
    holders = [object() for _ in range(manager.num_free)]
    for holder in holders:
        manager.allocate(holder, 1)
    random.Random(seed).shuffle(holders)
    for holder in holders:
        manager.free(holder)


def contiguous_runs(block_table: Sequence[int]) -> list[list[int]]:
    """Cut a block table where the next block is not the next one in memory.

    Examples
    --------
    >>> contiguous_runs([4, 5, 2, 6, 7])
    [[4, 5], [2], [6, 7]]
    """
    runs: list[list[int]] = []
    for block in block_table:
        if runs and block == runs[-1][-1] + 1:
            runs[-1].append(block)
        else:
            runs.append([block])
    return runs
