"""The buddy allocator: contiguous memory in powers of two, as serving systems used it before paging.

Knowlton, "A Fast Storage Allocator" (CACM 1965); the baseline in section 6.1 of the PagedAttention paper.
"""

from kvlib.errors import ConfigError, OutOfBlocks
from kvlib.specs.checks import whole


def next_power_of_two(number: int) -> int:
    """The smallest power of two that is at least ``number``.

    Examples
    --------
    >>> [next_power_of_two(slots) for slots in (1, 300, 512, 600, 1100)]
    [1, 512, 512, 1024, 2048]
    """
    return 1 << (whole("number", number) - 1).bit_length()


def split_into_arenas(num_slots: int) -> list[tuple[int, int]]:
    """Cut a memory into power-of-two arenas, largest first: the binary digits of ``num_slots``.

    Returns ``(start, size)`` pairs. Each start is a multiple of its size, so buddies can be found by address.
    Where the buddy of a whole arena would be, there are only smaller arenas, or the memory has ended: blocks
    never merge across arenas.

    Examples
    --------
    >>> split_into_arenas(12596)[:3]
    [(0, 8192), (8192, 4096), (12288, 256)]
    """
    arenas, start = [], 0
    for bit in reversed(range(whole("num_slots", num_slots).bit_length())):
        size = 1 << bit
        if num_slots & size:
            arenas.append((start, size))
            start += size
    return arenas


class BuddyAllocator:
    """Contiguous blocks of power-of-two size over a memory of any size.

    The contract, verb by verb. A call that raises has changed nothing.

    - ``allocate(num_slots)`` returns the start of a block of ``next_power_of_two(num_slots)`` slots. It takes
      the smallest free block that is large enough, the lowest address among equals, and halves it until it
      has the right size; each upper half becomes free. Raises ``OutOfBlocks`` if no free block is large
      enough, however many slots are free in all.
    - ``free(start)`` gives a block back, and merges it with its buddy for as long as the buddy is free and
      whole. Raises ``ConfigError`` if no block was allocated at ``start``.

    A memory that is no power of two is split once by ``split_into_arenas``; a block of size ``s`` at
    address ``a`` has its buddy at ``a ^ s``, and an arena has none. ``check_integrity()`` verifies that
    free and held blocks tile the memory without overlap, and that no two free buddies are left unmerged.

    Parameters
    ----------
    num_slots : int
        Token slots in the memory.

    Examples
    --------
    Six slots are free in the end, in blocks of 4 and 2; a request of 6 needs a block of 8 and is refused.

    >>> memory = BuddyAllocator(16)
    >>> [memory.allocate(size) for size in (4, 2, 8)]
    [0, 4, 8]
    >>> memory.free(0); memory.free_blocks()
    [(0, 4), (6, 2)]
    >>> memory.allocate(6)
    Traceback (most recent call last):
    kvlib.errors.OutOfBlocks: num_slots=6 needs a block of 8: 6 slots are free, the largest block has 4
    """

    def __init__(self, num_slots: int):
        arenas = split_into_arenas(num_slots)
        self.num_slots = num_slots
        self.largest_block = arenas[0][1]
        self._free: dict[int, set[int]] = {1 << bit: set() for bit in range(num_slots.bit_length())}
        for start, size in arenas:
            self._free[size].add(start)
        self._held: dict[int, int] = {}  # start -> size
        self._num_free = num_slots

    @property
    def num_free(self) -> int:
        """Free slots in all, however scattered."""
        return self._num_free

    def free_blocks(self) -> list[tuple[int, int]]:
        """The free blocks as ``(start, size)``, by address."""
        return sorted((start, size) for size, starts in self._free.items() for start in starts)

    def held_blocks(self) -> list[tuple[int, int]]:
        """The allocated blocks as ``(start, size)``, by address."""
        return sorted(self._held.items())

    def size_of(self, start: int) -> int:
        """Slots in the block allocated at ``start``. Raises ``ConfigError`` if there is none."""
        try:
            return self._held[start]
        except KeyError:
            raise ConfigError(f"start={start!r}: expected the start of an allocated block") from None

    def allocate(self, num_slots: int) -> int:
        """Allocate a block and return its start (see the class contract)."""
        size = next_power_of_two(whole("num_slots", num_slots))
        found = size
        while found <= self.largest_block and not self._free[found]:
            found *= 2
        if found > self.largest_block:
            largest = max((free for free, starts in self._free.items() if starts), default=0)
            raise OutOfBlocks(
                f"num_slots={num_slots} needs a block of {size}: "
                f"{self.num_free} slots are free, the largest block has {largest}"
            )
        start = min(self._free[found])
        self._free[found].remove(start)
        while found > size:
            found //= 2
            self._free[found].add(start + found)
        self._held[start] = size
        self._num_free -= size
        return start

    def free(self, start: int) -> None:
        """Give a block back (see the class contract)."""
        size = self.size_of(start)
        del self._held[start]
        self._num_free += size
        while start ^ size in self._free.get(size, ()):
            self._free[size].remove(start ^ size)
            start &= ~size
            size *= 2
        self._free[size].add(start)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless the blocks tile the memory and all free buddies are merged."""
        end = 0
        for start, size in sorted(self.free_blocks() + self.held_blocks()):
            assert start == end, f"a gap or an overlap at slot {end}"
            assert start % size == 0, f"block ({start}, {size}) is not aligned"
            end += size
        assert end == self.num_slots, "free and held blocks do not add up to the memory"
        assert self.num_free == sum(size for _, size in self.free_blocks())
        for start, size in self.free_blocks():
            assert start ^ size not in self._free[size], f"buddies {start} and {start ^ size} are both free"
