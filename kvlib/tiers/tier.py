"""One tier of the HiRadixTree: a radix cache that passes on what it gives up and counts hits."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

from kvlib.prefix import RadixCache


class Tier(RadixCache):
    """The radix cache of chapter 7, which passes on what it gives up: whole paths, so that no hole arises."""

    def __init__(self, capacity_tokens: int, page_size: int, pass_on: Callable[[tuple], None] | None = None):
        super().__init__(capacity_tokens, page_size)
        self._pass_on = pass_on
        self._hits = {}                                 # node -> requests that reused it

    def _whole_pages(self, tokens):
        # The tree above has checked and cut them once for all tiers.
        return tokens

    def _trim(self, leaf, num_tokens):
        if self._pass_on:
            self._pass_on(_path_to(leaf))
        if num_tokens == len(leaf.tokens):
            self._hits.pop(leaf, None)
        return super()._trim(leaf, num_tokens)

    def _split_at(self, path, length):
        split = super()._split_at(path, length)
        if split[-1] is not path[-1]:
            self._hits[split[-1]] = self._hits.get(path[-1], 0)
        return split

    def count_hit(self, tokens) -> None:
        """Add one hit to every node of a path that is stored, in full or in part."""
        path, length = self._walk(tokens)
        for node in self._split_at(path, length)[1:]:
            self._hits[node] = self._hits.get(node, 0) + 1

    def edges(self):
        """(path up to the node's end, tokens of its edge, its hits) of every node."""
        return [(_path_to(node), node.tokens, self._hits.get(node, 0)) for node in self._nodes()]


def _path_to(node) -> tuple:
    """All tokens from the root to the end of a node's edge."""
    edges = []
    while node is not None:
        edges.append(node.tokens)
        node = node.parent
    return tuple(chain.from_iterable(reversed(edges)))


@dataclass(frozen=True)
class PlacedNode:
    """A stretch of the tree for a picture: its tokens, the tiers that hold them, how often it was reused."""

    tokens: tuple[int, ...]
    tiers: tuple[str, ...]
    hits: int
    children: tuple["PlacedNode", ...]


def placed_nodes(places: dict[tuple, dict], page_size: int, path: tuple = ()) -> tuple[PlacedNode, ...]:
    """The nodes below `path`: pages are joined as long as nothing branches and nothing changes.

    Parameters
    ----------
    places : dict
        Path up to a page → ``{"tiers": names, "hits": count}`` of that page.
    page_size : int
    path : tuple

    Examples
    --------
    >>> here, there = {"tiers": ["gpu"], "hits": 1}, {"tiers": ["cpu"], "hits": 0}
    >>> [node] = placed_nodes({(7,): here, (7, 8): here, (7, 8, 9): there}, page_size=1)
    >>> node.tokens, node.children[0].tiers
    ((7, 8), ('cpu',))
    """

    def pages_below(end: tuple) -> list[tuple]:
        return sorted(key for key in places if len(key) == len(end) + page_size and key[: len(end)] == end)

    made = []
    for start in pages_below(path):
        end, below = start, pages_below(start)
        while len(below) == 1 and places[below[0]] == places[start]:
            end = below[0]
            below = pages_below(end)
        page = places[start]
        children = placed_nodes(places, page_size, end)
        made.append(PlacedNode(end[len(path) :], tuple(page["tiers"]), page["hits"], children))
    return tuple(made)
