"""Prefix caching: recognize a prompt's beginning that was computed before, and keep what is worth keeping."""

from kvlib.prefix.block_cache import BlockCache
from kvlib.prefix.cache_statistics import CacheStatistics
from kvlib.prefix.hashing import block_digest, block_digests, root_digest
from kvlib.prefix.radix import RadixCache
from kvlib.prefix.replay import ReplayResult, replay
from kvlib.prefix.stack_distance import lru_hit_ratios, lru_knee, stack_distances
from kvlib.prefix.statistics import TraceStatistics, trace_statistics

__all__ = [
    "BlockCache",
    "CacheStatistics",
    "RadixCache",
    "ReplayResult",
    "TraceStatistics",
    "block_digest",
    "block_digests",
    "lru_hit_ratios",
    "lru_knee",
    "replay",
    "root_digest",
    "stack_distances",
    "trace_statistics",
]
