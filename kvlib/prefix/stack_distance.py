"""LRU at every capacity in one pass over the trace (Mattson et al., 1970).

LRU keeps the most recently used blocks, so a larger cache holds everything a smaller one does. A
reference therefore hits in every cache of at least ``d`` blocks, where ``d``, its stack distance, is the
number of different blocks referenced since the last time, this one included. Counting the distances once
answers every capacity.
"""

import math
from bisect import bisect_right
from collections.abc import Hashable, Sequence
from itertools import chain

from kvlib.prefix.replay import block_references
from kvlib.specs.checks import real, whole


def stack_distances(references: Sequence[Hashable]) -> list[int]:
    """Return the stack distance of every reference that is not the first of its block.

    Parameters
    ----------
    references : sequence of hashable
        Block ids in the order of use.

    Returns
    -------
    list of int
        In order of reference, each at least 1.

    Notes
    -----
    A Fenwick tree over the positions marks the latest reference of every block; a distance is then the
    number of marks from the last position on. O(n log n).

    Examples
    --------
    >>> stack_distances(["a", "b", "a", "a", "b"])
    [2, 1, 2]
    """
    size = len(references)
    tree, last_position, distances = [0] * (size + 1), {}, []
    for position, block in enumerate(references, start=1):
        previous = last_position.get(block)
        if previous is not None:
            # len(last_position) marks in all, less those before the previous reference
            distance, node = len(last_position), previous - 1
            while node:
                distance -= tree[node]
                node &= node - 1
            distances.append(distance)
            node = previous
            while node <= size:
                tree[node] -= 1
                node += node & -node
        node = position
        while node <= size:
            tree[node] += 1
            node += node & -node
        last_position[block] = position
    return distances


def lru_hit_ratios(trace, capacities: Sequence[int | None]) -> list[float]:
    """Return the LRU hit ratio at each capacity, equal to ``replay(trace, capacity, "lru").hit_ratio``.

    Parameters
    ----------
    trace : Trace
        Anything with ``.requests`` that carry ``.block_ids``.
    capacities : sequence of int or None
        Blocks, each at least 1; ``None`` is a cache that never evicts.

    Returns
    -------
    list of float
        One hit ratio per capacity, in the order given.

    Raises
    ------
    ConfigError
        If a capacity is not understood, or the trace has no block references.

    Examples
    --------
    >>> from types import SimpleNamespace as Space
    >>> trace = Space(requests=[Space(block_ids=(1, 2)), Space(block_ids=(1, 3)), Space(block_ids=(1, 2))])
    >>> lru_hit_ratios(trace, [1, 2, 3, None])
    [0.0, 0.3333333333333333, 0.5, 0.5]
    """
    references = list(chain.from_iterable(block_references(trace)))
    # No distance exceeds the number of references, so this is as good as endless.
    sizes = [len(references) if size is None else whole("capacities", size) for size in capacities]
    distances = sorted(stack_distances(references))
    return [bisect_right(distances, size) / len(references) for size in sizes]


def lru_knee(trace, within: float = 0.02) -> int:
    """Return the smallest LRU capacity whose hit ratio is at most ``within`` below that of an endless cache.

    Parameters
    ----------
    trace : Trace
        Anything with ``.requests`` that carry ``.block_ids``.
    within : float
        Difference of two hit ratios; 0.02 is two percentage points.

    Returns
    -------
    int
        Blocks, at least 1.

    Raises
    ------
    ConfigError
        If ``within`` is negative or no number, or the trace has no block references.

    Examples
    --------
    >>> from types import SimpleNamespace as Space
    >>> trace = Space(requests=[Space(block_ids=(1, 2)), Space(block_ids=(1, 3)), Space(block_ids=(1, 2))])
    >>> lru_knee(trace, within=0.2), lru_knee(trace, within=0)
    (2, 3)
    """
    references = list(chain.from_iterable(block_references(trace)))
    distances = sorted(stack_distances(references))
    num_hits = math.ceil(len(distances) - real("within", within) * len(references))
    return distances[num_hits - 1] if num_hits > 0 else 1
