"""A trace reduced to what a plan needs: a dozen kinds of request, and what each finds in a cache of any size.

One pass of stack distances says, for every request, how large an LRU cache must be before it finds its first
block, its second, and so on. Requests are then grouped by how much of them can be found at all and by their
length, because the mean request of a mixed load resembles nobody: half a hit costs neither what a hit costs
nor what a miss costs.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from kvlib.errors import ConfigError
from kvlib.prefix import stack_distances
from kvlib.prefix.replay import block_references
from kvlib.specs.checks import real, whole
from kvlib.workloads import Trace

BLOCK_SIZES = (16, 32, 64, 128, 256, 512)
# Sizes of a cache in tokens at which hits are noted; between two of them a straight line is drawn.
CAPACITIES = (0, *(2**power for power in range(10, 27)))
HIT_GROUPS, LENGTH_GROUPS = 4, 3


@dataclass(frozen=True)
class Cell:
    """Requests that are alike, by their means.

    Attributes
    ----------
    share : float
        Of all requests.
    input_tokens : int
    output_tokens : float
    hits : tuple of tuple of int
        Leading tokens found, by block size (`BLOCK_SIZES`) and by capacity (the demand's `capacities`).
    spread : tuple of int
        By capacity: so many more cached tokens would make one prefill of the mean lengths cost what the
        requests cost on average. Attention grows with the square, so unequal requests cost more than equal
        ones (and a hit beside a miss costs less than two halves of a hit, then it is negative).
    uneven : tuple of float
        By capacity: mean square of the new tokens over the square of their mean, which a queue asks for.
    """

    share: float
    input_tokens: int
    output_tokens: float
    hits: tuple[tuple[int, ...], ...]
    spread: tuple[int, ...]
    uneven: tuple[float, ...]


@dataclass(frozen=True)
class Demand:
    """What is asked of the machine.

    Attributes
    ----------
    name : str
    capacities : tuple of int
        Tokens, rising from 0; a larger cache finds no more than the last one.
    cells : tuple of Cell
    """

    name: str
    capacities: tuple[int, ...]
    cells: tuple[Cell, ...]

    @cached_property
    def input_tokens(self) -> float:
        """Mean prompt."""
        return math.fsum(cell.share * cell.input_tokens for cell in self.cells)

    @cached_property
    def output_tokens(self) -> float:
        """Mean output."""
        return math.fsum(cell.share * cell.output_tokens for cell in self.cells)

    def found(self, capacity_tokens: float, block_size: int) -> list[int]:
        """Leading tokens that the requests of each cell find in an LRU cache of that size.

        Examples
        --------
        >>> asks = returning(prompt_tokens=1000, new_tokens=200, output_tokens=100, contexts=4)
        >>> asks.found(3999, 16), asks.found(4000, 16), asks.found(4000, 512)
        ([0], [992], [512])
        """
        if block_size not in BLOCK_SIZES:
            raise ConfigError(f"block_size: got {block_size!r}, expected one of {', '.join(map(str, BLOCK_SIZES))}")
        size = BLOCK_SIZES.index(block_size)
        rows = [cell.hits[size] for cell in self.cells]
        return [round(tokens) for tokens in self._at(capacity_tokens, rows)]

    def prefills(self, found: Sequence[int], capacity_tokens: float) -> list[tuple[int, int]]:
        """(new tokens, cached tokens) of a prefill that costs what those of each cell cost on average.

        Exact for full attention, whose cost is linear in the new tokens and in the query-key pairs.
        """
        spreads = self._at(capacity_tokens, [cell.spread for cell in self.cells])
        return [
            (cell.input_tokens - n, max(0, n + round(spread)))
            for cell, n, spread in zip(self.cells, found, spreads)
        ]

    def unevenness(self, capacity_tokens: float) -> list[float]:
        """How uneven the new tokens of each cell are: 1 if all are alike."""
        return self._at(capacity_tokens, [cell.uneven for cell in self.cells])

    def _at(self, capacity_tokens: float, rows: list[tuple]) -> list[float]:
        """The value of every row at a capacity."""
        above = bisect_right(self.capacities, capacity_tokens)
        if above == len(self.capacities):
            return [row[-1] for row in rows]
        low, high = self.capacities[above - 1 : above + 1]
        part = (capacity_tokens - low) / (high - low)
        return [row[above - 1] + part * (row[above] - row[above - 1]) for row in rows]

    def hit_ratio(self, capacity_tokens: float, block_size: int = BLOCK_SIZES[0]) -> float:
        """Found tokens over prompt tokens."""
        found = self.found(capacity_tokens, block_size)
        return math.fsum(c.share * tokens for c, tokens in zip(self.cells, found)) / self.input_tokens

    def with_hits(self, factor: float) -> "Demand":
        """The same demand with `factor` times the hits, as far as prompts reach."""
        real("factor", factor)
        fewer = min(1.0, factor)

        def towards_no_hits(row: tuple) -> tuple:
            return tuple(row[0] + fewer * (value - row[0]) for value in row)

        def scaled(cell: Cell) -> Cell:
            most = cell.input_tokens - 1
            hits = tuple(tuple(min(round(factor * n), most) for n in row) for row in cell.hits)
            return replace(
                cell, hits=hits, spread=towards_no_hits(cell.spread), uneven=towards_no_hits(cell.uneven)
            )

        return replace(self, cells=tuple(map(scaled, self.cells)))

    def with_outputs(self, factor: float) -> "Demand":
        """The same demand with outputs `factor` times as long."""
        real("factor", factor, above=True)
        cells = (replace(cell, output_tokens=factor * cell.output_tokens) for cell in self.cells)
        return replace(self, cells=tuple(cells))


def demand_of(trace) -> Demand:
    """The demand of a trace with prefix information.

    Blocks smaller than the trace's own find what the trace's find: its ids cannot tell more. At least one
    token of every prompt is computed.

    Parameters
    ----------
    trace : Trace
        As `kvlib.workloads.read_trace` and `kvlib.workloads.prefix_trace` return.

    Raises
    ------
    ConfigError
        If the trace has no block references.

    Examples
    --------
    >>> from kvlib.prefix import lru_hit_ratios
    >>> from kvlib.workloads import prefix_trace
    >>> trace = prefix_trace("agents", n=300, rate=1.0, seed=0, block_size=64)
    >>> demand = demand_of(trace)
    >>> len(demand.cells), round(demand.hit_ratio(2**20), 2)
    (12, 0.91)
    >>> [round(ratio, 2) for ratio in lru_hit_ratios(trace, [2**20 // 64])]
    [0.91]
    """
    if not isinstance(trace, Trace):
        raise ConfigError(f"trace: got {trace!r}, expected a Trace")
    rows = [
        (request, [_whole_blocks(request, trace.block_size, depths, size) for size in BLOCK_SIZES])
        for request, depths in zip(trace.requests, _depths_found(trace))
    ]
    cells = tuple(_cell(group, len(rows)) for group in _groups(rows) if group)
    return Demand(trace.name, CAPACITIES, cells)


def _depths_found(trace) -> list[list[int]]:
    """For every request the leading blocks that it finds at each of `CAPACITIES`."""
    prompts = block_references(trace)
    distances = iter(stack_distances(list(chain.from_iterable(prompts))))
    seen, sizes, rows = set(), [tokens // trace.block_size for tokens in CAPACITIES], []
    for prompt in prompts:
        needed, farthest = [], 0
        for block in prompt:
            # The first reference of a block has no distance; no cache finds it.
            farthest = max(farthest, next(distances) if block in seen else math.inf)
            seen.add(block)
            needed.append(farthest)
        rows.append([bisect_right(needed, size) for size in sizes])
    return rows


def _whole_blocks(request, trace_block: int, depths: list[int], block_size: int) -> list[int]:
    tokens = (min(depth * trace_block, request.num_input_tokens - 1) for depth in depths)
    return [n // block_size * block_size for n in tokens]


def _groups(rows: list) -> list[list]:
    """Requests by how much of them can be found at all, and each of these groups by length."""
    def length(row) -> int:
        return row[0].num_input_tokens

    by_share = sorted(rows, key=lambda row: row[1][0][-1] / length(row))
    parts = _cut(by_share, HIT_GROUPS)
    return [cell for part in parts for cell in _cut(sorted(part, key=length), LENGTH_GROUPS)]


def _cut(rows: Sequence, parts: int) -> list[Sequence]:
    ends = [len(rows) * part // parts for part in range(parts + 1)]
    return [rows[start:end] for start, end in zip(ends, ends[1:])]


def _cell(group: list, num_requests: int) -> Cell:
    def mean(values) -> int:
        return round(sum(values) / len(group))

    hits = tuple(
        tuple(mean(row[1][size][at] for row in group) for at in range(len(CAPACITIES)))
        for size in range(len(BLOCK_SIZES))
    )
    inputs, outputs = (
        mean(getattr(row[0], name) for row in group) for name in ("num_input_tokens", "num_output_tokens")
    )
    spread, uneven = zip(*(_moments(group, at) for at in range(len(CAPACITIES))))
    return Cell(len(group) / num_requests, inputs, outputs, hits, spread, uneven)


def _moments(group: list, at: int) -> tuple[int, float]:
    """`spread` and `uneven` of a group at one capacity.

    From new * cached + new^2 / 2 query-key pairs on average follow the cached tokens that give as many.
    """
    found = [(request.num_input_tokens, hits[0][at]) for request, hits in group]
    new = sum(n - hit for n, hit in found) / len(found)
    pairs = sum(n * n - hit * hit for n, hit in found) / 2 / len(found)
    spread = round(pairs / new - new / 2 - sum(hit for _, hit in found) / len(found))
    return spread, round(sum((n - hit) ** 2 for n, hit in found) / len(found) / new**2, 3)


def returning(
    prompt_tokens: int, new_tokens: int, output_tokens: int, contexts: int = 1, name: str = "returning"
) -> Demand:
    """The plainest demand: `contexts` contexts of one length take turns, each coming back with something new.

    Parameters
    ----------
    prompt_tokens : int
        What has been read before.
    new_tokens, output_tokens : int
        What each request adds, and how much it generates.
    contexts : int
        A cache finds a prompt if it holds all of them.

    Examples
    --------
    >>> returning(prompt_tokens=30_000, new_tokens=100, output_tokens=100, contexts=40).name
    'returning'
    """
    whole("new_tokens", new_tokens)
    whole("output_tokens", output_tokens, minimum=0)
    needed = whole("contexts", contexts) * whole("prompt_tokens", prompt_tokens)
    hits = tuple((0, 0, prompt_tokens // size * size) for size in BLOCK_SIZES)
    cell = Cell(1.0, prompt_tokens + new_tokens, output_tokens, hits, spread=(0,) * 3, uneven=(1.0,) * 3)
    return Demand(name, (0, needed - 1, needed), (cell,))
