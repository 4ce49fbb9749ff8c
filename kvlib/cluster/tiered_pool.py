"""DRAM and SSD as one pool: cold blocks sink to the SSD, and come back up when they are used."""

import math
from collections import OrderedDict
from dataclasses import dataclass

from kvlib.prefix.replay import block_references
from kvlib.specs.checks import whole


@dataclass(frozen=True)
class TieredHits:
    """What a replay found where.

    Attributes
    ----------
    references, dram_hits, ssd_hits : int
        Blocks; the rest had to be computed.
    ssd_writes : int
        Blocks that sank from DRAM: what the SSD has to write.
    """

    references: int
    dram_hits: int
    ssd_hits: int
    ssd_writes: int

    @property
    def hit_ratio(self) -> float:
        """Blocks found in either tier over all references."""
        return (self.dram_hits + self.ssd_hits) / self.references


class TieredPool:
    """Two LRU lists, one above the other; a block is in one of them.

    A block used is moved to the top of DRAM; what DRAM has no room for sinks to the top of the SSD; what
    the SSD has no room for is forgotten. Together they behave like a single LRU list with a line across it:
    the SSD changes where blocks are found, not which hits a pool of the same total has.

    Examples
    --------
    >>> pool = TieredPool(dram_blocks=1, ssd_blocks=1)
    >>> [pool.reference(block) for block in (1, 2, 1, 1, 3, 2)]
    ['miss', 'miss', 'ssd', 'dram', 'miss', 'miss']
    """

    def __init__(self, dram_blocks: int, ssd_blocks: int):
        self.dram_blocks = whole("dram_blocks", dram_blocks)
        self.ssd_blocks = whole("ssd_blocks", ssd_blocks, minimum=0)
        self.ssd_writes = 0
        self._dram = OrderedDict()  # least recently used first
        self._ssd = OrderedDict()

    def reference(self, block) -> str:
        """Use a block: ``"dram"``, ``"ssd"`` or ``"miss"`` says where it was; it is in DRAM now."""
        if block in self._dram:
            self._dram.move_to_end(block)
            return "dram"
        found = "miss"
        if block in self._ssd:
            del self._ssd[block]
            found = "ssd"
        self._dram[block] = None
        if len(self._dram) > self.dram_blocks:
            self._sink()
        return found

    def _sink(self) -> None:
        coldest, _ = self._dram.popitem(last=False)
        if not self.ssd_blocks:
            return
        if len(self._ssd) == self.ssd_blocks:
            self._ssd.popitem(last=False)
        self._ssd[coldest] = None
        self.ssd_writes += 1


def replay_tiers(trace, dram_blocks: int, ssd_blocks: int) -> TieredHits:
    """Replay a trace through one pool of two tiers, in the trace's order, head of each prompt first.

    Examples
    --------
    >>> from kvlib.workloads import conversation_like
    >>> trace = conversation_like(100, seed=0)
    >>> small = replay_tiers(trace, 500, 0)
    >>> replay_tiers(trace, 500, 1500).ssd_hits + small.hit_ratio * small.references <= small.references
    True
    """
    pool = TieredPool(dram_blocks, ssd_blocks)
    found = [pool.reference(block) for prompt in block_references(trace) for block in prompt]
    return TieredHits(len(found), found.count("dram"), found.count("ssd"), pool.ssd_writes)


def mean_fetch_s(hits: TieredHits, dram_s: float, ssd_s: float, compute_s: float) -> float:
    """Mean time per block reference, given the time of a block from each tier and of computing it.

    Examples
    --------
    >>> mean_fetch_s(TieredHits(10, 4, 2, 0), dram_s=1.0, ssd_s=2.0, compute_s=10.0)
    4.8
    """
    misses = hits.references - hits.dram_hits - hits.ssd_hits
    total = math.fsum((hits.dram_hits * dram_s, hits.ssd_hits * ssd_s, misses * compute_s))
    return total / hits.references
