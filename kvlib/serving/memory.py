"""Memory policies: the same few verbs over paged blocks and over reserved contiguous space.

The engine never asks which policy it has. Its contract with one, verb by verb:

- ``fits_alone(request)``: could an empty memory serve this request to its end? The output length stands for
  the limit that a client declares; whatever comes after arrival must not look at it unless it is called an
  oracle.
- ``cached_tokens(request)``: how many tokens of its prompt are there for everybody, in ``pinned_tokens``
  slots; 0 for all policies but :class:`~kvlib.serving.shared_prefix.PrefixedMemory`.
- ``admit(seq, request, num_tokens)`` makes room for the first ``num_tokens`` tokens and returns the slots now
  held for ``seq`` alone; 0, with nothing changed, if there is no room now.
- ``grow(seqs, limit)`` makes room for one more token per step in each of ``seqs``, for as many steps as
  memory lasts for all of them, at most ``limit``. Returns ``(steps, taken)``: how many steps (0, with
  nothing changed, if not everyone can take even one), and a pair ``(position, step)`` for every time
  ``seqs[position]`` took another ``unit_slots`` slots, at step 0, 1, …
- ``release(seq)`` gives everything back.
- ``swap_out(seq)`` moves what ``seq`` holds to the host; False, with nothing changed, if the host has no
  room. ``swap_in(seq)`` brings it back with room for one more token and returns the slots now held; 0, with
  nothing changed, if there is no room now. Only a memory whose ``grow`` can come to 0 is ever asked.
- ``num_slots`` and ``held_slots`` count the memory; ``check_integrity()`` checks the books beneath.

Every policy answers from the one structure it stands on; none counts blocks itself.
"""

from collections.abc import Hashable, Sequence

from kvlib.blocks.manager import BlockManager
from kvlib.blocks.reservation import Reservation
from kvlib.errors import ConfigError, OutOfBlocks
from kvlib.specs.checks import real, whole


class PagedMemory:
    """Blocks on demand, from a :class:`~kvlib.blocks.manager.BlockManager`.

    Slots that do not fill a block (4 of 12,596 at block size 16) belong to the memory and are never held.

    Parameters
    ----------
    num_slots : int
        Token slots in the memory.
    block_size : int
        Tokens per block.
    watermark : float
        Share of the blocks, below 1, that an admission must leave free for those who run. While nobody runs
        it is not asked for, so that it never keeps out what an empty memory could serve.
    cpu_slots : int
        Token slots on the host for blocks that are swapped out.

    Raises
    ------
    ConfigError
        If not even one block fits, or a setting is out of range.

    Examples
    --------
    >>> memory = PagedMemory(num_slots=64, block_size=16)
    >>> memory.admit("a", request=None, num_tokens=20)
    32
    >>> memory.grow(["a"], limit=30), memory.held_slots
    ((30, [(0, 12), (0, 28)]), 64)
    >>> memory.grow(["a"], limit=100), memory.grow(["a"], limit=100)
    ((14, []), (0, []))
    """

    pinned_tokens = 0

    def __init__(self, num_slots: int, block_size: int, watermark: float = 0.0, cpu_slots: int = 0):
        if whole("block_size", block_size) > whole("num_slots", num_slots):
            raise ConfigError(f"block_size={block_size}: expected at most the memory's {num_slots} slots")
        if real("watermark", watermark) >= 1:
            raise ConfigError(f"watermark: got {watermark!r}, expected a share from 0 to below 1")
        self.num_slots = num_slots
        self.unit_slots = block_size
        self.manager = BlockManager(
            num_slots // block_size, block_size, whole("cpu_slots", cpu_slots, minimum=0) // block_size
        )
        self.watermark_blocks = int(watermark * self.manager.num_blocks)

    def cached_tokens(self, request) -> int:
        """See the module contract."""
        return 0

    @property
    def held_slots(self) -> int:
        """Slots in blocks that are held."""
        return (self.manager.num_blocks - self.manager.num_free) * self.unit_slots

    def fits_alone(self, request) -> bool:
        """See the module contract. The last token that is generated is never written, so it needs no slot."""
        longest = request.num_input_tokens + max(0, request.num_output_tokens - 1)
        return self.manager.blocks_for(longest) <= self.manager.num_blocks

    def admit(self, seq: Hashable, request, num_tokens: int) -> int:
        """See the module contract. The request is not looked at."""
        num_blocks = self.manager.blocks_for(num_tokens)
        if num_blocks > self._open_blocks:
            return 0
        self.manager.allocate(seq, num_tokens)
        return num_blocks * self.unit_slots

    def grow(self, seqs: Sequence[Hashable], limit: int) -> tuple[int, list[tuple[int, int]]]:
        """See the module contract.

        A sequence takes its next block when the free slots of its last one are used up, and then one every
        ``block_size`` steps. So in any ``block_size`` steps each sequence takes one block: the free blocks
        last for a whole number of such rounds, and the rest of them go in the order in which last blocks
        fill up.
        """
        manager, block_size = self.manager, self.unit_slots
        first_taken = [-num_tokens % block_size for num_tokens in map(manager.num_tokens, seqs)]
        rounds, rest = divmod(manager.num_free, len(seqs))
        steps = min(limit, rounds * block_size + sorted(first_taken)[rest])
        if not steps:
            return 0, []
        for seq in seqs:
            manager.append(seq, steps)
        return steps, [
            (position, step)
            for position, first in enumerate(first_taken)
            if first < steps
            for step in range(first, steps, block_size)
        ]

    def release(self, seq: Hashable) -> None:
        """See the module contract."""
        self.manager.free(seq)

    def swap_out(self, seq: Hashable) -> bool:
        """See the module contract."""
        try:
            self.manager.swap_out(seq)
        except OutOfBlocks:
            return False
        return True

    def swap_in(self, seq: Hashable) -> int:
        """See the module contract."""
        num_blocks = self.manager.blocks_for(self.manager.num_tokens(seq) + 1)
        if num_blocks > self._open_blocks:
            return 0
        self.manager.swap_in(seq)
        self.manager.append(seq)
        return num_blocks * self.unit_slots

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if the block manager's laws do not hold."""
        self.manager.check_integrity()

    @property
    def _open_blocks(self) -> int:
        """Blocks that an admission may take."""
        nobody_runs = self.held_slots == self.pinned_tokens
        return self.manager.num_free - (0 if nobody_runs else self.watermark_blocks)


class ReservedMemory:
    """A whole request reserved at once, by any :class:`~kvlib.blocks.reservation.Reservation`.

    Examples
    --------
    >>> from kvlib.blocks.reservation import MaxReservation
    >>> memory = ReservedMemory(MaxReservation(num_slots=4096, max_len=2048))
    >>> [memory.admit(seq, request=None, num_tokens=20) for seq in ("a", "b", "c")]
    [2048, 2048, 0]
    """

    unit_slots = 0  # nothing is ever taken after admission
    pinned_tokens = 0

    def __init__(self, reservation: Reservation):
        self.reservation = reservation
        self.num_slots = reservation.buddy.num_slots

    @property
    def held_slots(self) -> int:
        """Slots in reserved blocks."""
        return self.num_slots - self.reservation.buddy.num_free

    def cached_tokens(self, request) -> int:
        """See the module contract."""
        return 0

    def fits_alone(self, request) -> bool:
        """See the module contract."""
        return self.reservation.fits_alone(request)

    def admit(self, seq: Hashable, request, num_tokens: int) -> int:
        """See the module contract. The rule, not ``num_tokens``, says how much is held."""
        try:
            return self.reservation.reserve(seq, request)
        except OutOfBlocks:
            return 0

    def grow(self, seqs: Sequence[Hashable], limit: int) -> tuple[int, list[tuple[int, int]]]:
        """See the module contract: a reservation lasts to the end."""
        return limit, []

    def release(self, seq: Hashable) -> None:
        """See the module contract."""
        self.reservation.release(seq)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if the reservation's laws do not hold."""
        self.reservation.check_integrity()
