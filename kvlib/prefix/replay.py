"""Replay the block references of a trace through an abstract cache, and count the hits."""

import math
from dataclasses import dataclass
from itertools import chain

from kvlib.errors import ConfigError
from kvlib.prefix.eviction import POLICIES, Belady
from kvlib.specs.checks import one_of, whole


@dataclass(frozen=True)
class ReplayResult:
    """Hits of one replay.

    Attributes
    ----------
    references : int
        Block references, the partial last block of a prompt included.
    hits : int
        References that found their block cached, wherever it stands in the prompt.
    prefix_hits : int
        Hits before the first miss of their request: those that save prefill.
    """

    references: int
    hits: int
    prefix_hits: int

    @property
    def hit_ratio(self) -> float:
        """Hits over references, from 0 to 1."""
        return self.hits / self.references

    @property
    def prefix_hit_ratio(self) -> float:
        """Prefix hits over references, from 0 to 1."""
        return self.prefix_hits / self.references


def replay(trace, capacity_blocks: int | None = None, policy: str = "lru") -> ReplayResult:
    """Replay a trace through one cache: in the trace's order, head of each prompt first, insert on miss.

    Parameters
    ----------
    trace : Trace
        Anything with ``.requests`` that carry ``.block_ids``.
    capacity_blocks : int, optional
        Blocks the cache holds; ``None`` is a cache that never evicts.
    policy : str
        ``"lru"``, ``"lfu"`` (an evicted block loses its count), ``"lfu_kept"`` (it keeps it),
        ``"length_aware"``, ``"fifo"`` or ``"belady"`` (the offline optimum).

    Returns
    -------
    ReplayResult
        ``.references .hits .hit_ratio .prefix_hits .prefix_hit_ratio``.

    Raises
    ------
    ConfigError
        If the capacity or the policy is not understood, or the trace has no block references.

    Examples
    --------
    >>> from types import SimpleNamespace as Space
    >>> trace = Space(requests=[Space(block_ids=(1, 2)), Space(block_ids=(1, 3)), Space(block_ids=(1, 2))])
    >>> replay(trace).hit_ratio, replay(trace, capacity_blocks=2).hits
    (0.5, 2)
    """
    prompts = block_references(trace)
    one_of("policy", policy, POLICIES)
    capacity = math.inf if capacity_blocks is None else whole("capacity_blocks", capacity_blocks)
    if policy == "belady":
        cache = Belady(capacity, list(chain.from_iterable(prompts)))
    else:
        cache = POLICIES[policy](capacity)
    hits = prefix_hits = 0
    for prompt in prompts:
        found = [cache.reference(block, depth) for depth, block in enumerate(prompt)]
        hits += found.count(True)
        prefix_hits += found.index(False) if False in found else len(found)
    return ReplayResult(sum(map(len, prompts)), hits, prefix_hits)


def block_references(trace) -> list[tuple[int, ...]]:
    """Return the block ids of every request of a trace, in order.

    Raises
    ------
    ConfigError
        If this is no trace, a request has no prefix information, or there is no reference at all.

    Examples
    --------
    >>> from types import SimpleNamespace as Space
    >>> block_references(Space(requests=[Space(block_ids=(4, 5)), Space(block_ids=(4,))]))
    [(4, 5), (4,)]
    """
    if not hasattr(trace, "requests"):
        raise ConfigError(f"trace: got a {type(trace).__name__}, expected a Trace, as read_trace() returns")
    prompts = [request.block_ids for request in trace.requests]
    if None in prompts:
        raise ConfigError(
            f"trace: request {prompts.index(None)} has no block_ids; expected a trace with prefix ids"
        )
    if not any(prompts):
        raise ConfigError("trace: got no block references, expected at least 1")
    return prompts
