"""Where the pieces of a page lie: layer-first on the GPU, page-first on the host, conversion in the copy.

Attention reads one layer at a time, so the GPU keeps one pool per layer and tensor. A link wants long runs,
so the host keeps each page together. A copy kernel computes addresses anyway, so it can move between the two.
Source: Strata (arXiv 2508.18572), section 4 and figure 6.
"""

from dataclasses import dataclass

from kvlib.errors import ConfigError
from kvlib.specs.checks import one_of, whole
from kvlib.tiers.transfer import LAYOUTS


@dataclass(frozen=True)
class PagePool:
    """A pool of pages in one layout. A *piece* is one page of one tensor of one layer.

    Attributes
    ----------
    layout : str
        ``"layer_first"``: pool[layer][tensor][page]; ``"page_first"``: pool[page][layer][tensor].
    num_pages, layers, tensors : int

    Examples
    --------
    >>> gpu = PagePool("layer_first", num_pages=4, layers=2)
    >>> host = PagePool("page_first", num_pages=4, layers=2)
    >>> gpu.pieces(page=1), host.pieces(page=1)
    ((1, 5, 9, 13), (4, 5, 6, 7))
    """

    layout: str
    num_pages: int
    layers: int
    tensors: int = 2

    def __post_init__(self) -> None:
        one_of("layout", self.layout, LAYOUTS)
        for field in ("num_pages", "layers", "tensors"):
            whole(field, getattr(self, field))

    @property
    def num_pieces(self) -> int:
        return self.num_pages * self.layers * self.tensors

    def address(self, page: int, layer: int, tensor: int) -> int:
        """Index of a piece in the pool's memory, counted in pieces."""
        for field, value, end in (("page", page, self.num_pages), ("layer", layer, self.layers),
                                  ("tensor", tensor, self.tensors)):
            if whole(field, value, minimum=0) >= end:
                raise ConfigError(f"{field}: got {value}, expected a whole number below {end}")
        if self.layout == "layer_first":
            return (layer * self.tensors + tensor) * self.num_pages + page
        return (page * self.layers + layer) * self.tensors + tensor

    def pieces(self, page: int) -> tuple[int, ...]:
        """Addresses of all pieces of a page, layer by layer, keys before values."""
        return tuple(
            self.address(page, layer, tensor)
            for layer in range(self.layers)
            for tensor in range(self.tensors)
        )


def moves(source: PagePool, target: PagePool, pages: dict[int, int]) -> list[tuple[int, int]]:
    """(source address, target address) of every piece when `pages` (source page → target page) are copied.

    Raises
    ------
    ConfigError
        If the pools hold different models.

    Examples
    --------
    >>> gpu, host = PagePool("layer_first", 4, layers=2), PagePool("page_first", 4, layers=2)
    >>> moves(host, gpu, {1: 3})
    [(4, 3), (5, 7), (6, 11), (7, 15)]
    """
    if (source.layers, source.tensors) != (target.layers, target.tensors):
        raise ConfigError(
            f"target: got {target.layers} layers x {target.tensors} tensors, "
            f"expected {source.layers} x {source.tensors} as in source"
        )
    return [pair for old, new in pages.items() for pair in zip(source.pieces(old), target.pieces(new))]


def contiguous_copies(piece_moves: list[tuple[int, int]]) -> int:
    """How many plain copies the moves take: neighbors on *both* sides travel together.

    Examples
    --------
    Two pages, host to host, are one run; from a page-first host into a layer-first GPU every piece goes
    alone.

    >>> gpu, host = PagePool("layer_first", 4, layers=2), PagePool("page_first", 4, layers=2)
    >>> contiguous_copies(moves(host, host, {0: 2, 1: 3})), contiguous_copies(moves(host, gpu, {0: 1}))
    (1, 4)
    """
    ordered = sorted(piece_moves)
    return sum(
        1 for i, (source, target) in enumerate(ordered)
        if i == 0 or ordered[i - 1] != (source - 1, target - 1)
    )


def convert(memory: list, source: PagePool, target: PagePool, pages: dict[int, int]) -> list:
    """The target's memory after the copy kernel has moved `pages`; slots that were not written hold None.

    Examples
    --------
    >>> gpu, host = PagePool("layer_first", 2, layers=2), PagePool("page_first", 2, layers=2)
    >>> there = convert(list("abcdefgh"), gpu, host, {0: 0, 1: 1})
    >>> "".join(there), "".join(convert(there, host, gpu, {0: 0, 1: 1}))
    ('acegbdfh', 'abcdefgh')
    """
    if len(memory) != source.num_pieces:
        raise ConfigError(f"memory: got {len(memory)} pieces, expected {source.num_pieces}")
    written = [None] * target.num_pieces
    for old, new in moves(source, target, pages):
        written[new] = memory[old]
    return written
