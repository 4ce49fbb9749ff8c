"""Memory policies: the same few verbs over paged blocks and over reserved contiguous space.

The engine never asks which policy it has. Its contract with one, verb by verb:

- ``check(name, request)`` raises ``ConfigError`` for a request that this policy cannot understand, naming it.
- ``fits_alone(request)``: could an empty memory serve this request to its end? The output length stands for
  the limit that a client declares; whatever comes after arrival must not look at it unless it is called an
  oracle.
- ``cached_tokens(seq, request, num_tokens)``: how many of the first ``num_tokens`` tokens are there already,
  so that they need no prefill.
- ``admit(seq, request, num_tokens)`` makes room for the first ``num_tokens`` tokens and returns the
  :class:`Room`; None, with nothing changed, if there is no room now.
- ``select(seqs)`` lets the beam searches among ``seqs`` choose their beams for the next token, once a step.
- ``grow(seqs, limit)`` makes room for one more token per step in each of ``seqs``, for as many steps as
  memory lasts for all of them, at most ``limit``, and returns the :class:`Growth`; 0 steps, with nothing
  changed, if not everyone can take even one.
- ``release(seq)`` gives everything back. ``preempt(seq, num_computed)`` does, too, but ``seq`` will come
  again, and only its first ``num_computed`` tokens were ever written.
- ``swap_out(seq)`` moves what ``seq`` holds to the host and returns the slots to be copied; 0, with nothing
  changed, if the host has no room. ``swap_in(seq)`` brings it back with room for one more token; None, with
  nothing changed, if there is no room now. Only a memory whose ``grow`` can come to 0 is ever asked.
- ``is_restless``: while this is true, single steps may change more than the number of tokens.
- ``num_slots`` and ``held_slots`` count the memory, ``pinned_tokens`` those slots that are held for nobody in
  particular, ``unit_slots`` what ``grow`` takes at a time; ``check_integrity()`` checks the books beneath.

Every policy answers from the one structure it stands on; none counts blocks itself.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from kvlib.blocks.manager import BlockManager
from kvlib.blocks.reservation import Reservation
from kvlib.errors import ConfigError, OutOfBlocks
from kvlib.serving.groups import Groups, group_size, is_beam_search, refuse_groups
from kvlib.specs.checks import real, whole


class Room(NamedTuple):
    """What a request got when it was let in.

    Attributes
    ----------
    empty_slots : int
        Slots that it now holds and that hold no token yet.
    num_tails : int
        In how many last blocks it will write.
    """

    empty_slots: int
    num_tails: int = 1


class Growth(NamedTuple):
    """What some steps of decoding took.

    Attributes
    ----------
    steps : int
    taken : list of (position, step)
        ``seqs[position]`` took another ``unit_slots`` empty slots at this step: 0, 1, …
    copies : list of (position, num_copies, filled)
        At step 0 ``seqs[position]`` took units that are copies of another with ``filled`` tokens in it.
    """

    steps: int
    taken: list[tuple[int, int]]
    copies: list[tuple[int, int, int]]


class BlockMemory:
    """What paged policies have in common: whole blocks, some of which an admission must leave free.

    Parameters
    ----------
    manager : BlockManager or BlockCache
        Who hands out the blocks.
    num_slots : int
        Token slots in the memory. Slots that do not fill a block (4 of 12,596 at block size 16) belong to
        the memory and are never held.
    watermark : float
        Share of the blocks, below 1, that an admission must leave free for those who run. While nobody runs
        it is not asked for, so that it never keeps out what an empty memory could serve.
    """

    pinned_tokens = 0
    is_restless = False

    def __init__(self, manager, num_slots: int, watermark: float):
        if real("watermark", watermark) >= 1:
            raise ConfigError(f"watermark: got {watermark!r}, expected a share from 0 to below 1")
        self.manager = manager
        self.num_slots = num_slots
        self.unit_slots = manager.block_size
        self.watermark_blocks = int(watermark * manager.num_blocks)

    @property
    def held_slots(self) -> int:
        """Slots in blocks that are held."""
        return (self.manager.num_blocks - self.manager.num_free) * self.unit_slots

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if the laws of the blocks do not hold."""
        self.manager.check_integrity()

    @property
    def _open_blocks(self) -> int:
        """Blocks that an admission may take."""
        nobody_runs = self.held_slots == self.pinned_tokens
        return self.manager.num_free - (0 if nobody_runs else self.watermark_blocks)

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.unit_slots)

    def _steps_with_room(self, first_taken: Sequence[int], num_free: int, limit: int) -> int:
        """Steps for which ``num_free`` blocks last, if sequences first take one at these steps.

        A sequence takes its next block when the free slots of its last one are used up, and then one every
        ``block_size`` steps. So in any ``block_size`` steps each sequence takes one block: the free blocks
        last for a whole number of such rounds, and the rest of them go in the order in which last blocks
        fill up.
        """
        if num_free < 0:
            return 0
        rounds, rest = divmod(num_free, len(first_taken))
        return min(limit, rounds * self.unit_slots + sorted(first_taken)[rest])

    def _taken(self, first_taken: Sequence[int], owners: Sequence[int], steps: int) -> list[tuple[int, int]]:
        return [
            (owner, step)
            for owner, first in zip(owners, first_taken)
            if first < steps
            for step in range(first, steps, self.unit_slots)
        ]


def number_of_blocks(num_slots: int, block_size: int) -> int:
    """Whole blocks in ``num_slots`` slots; ``ConfigError`` if there is not even one."""
    if whole("block_size", block_size) > whole("num_slots", num_slots):
        raise ConfigError(f"block_size={block_size}: expected at most the memory's {num_slots} slots")
    return num_slots // block_size


class PagedMemory(BlockMemory):
    """Blocks on demand, from a :class:`~kvlib.blocks.manager.BlockManager`.

    Parameters
    ----------
    num_slots : int
        Token slots in the memory.
    block_size : int
        Tokens per block.
    watermark : float
        See :class:`BlockMemory`.
    cpu_slots : int
        Token slots on the host for blocks that are swapped out.

    Raises
    ------
    ConfigError
        If not even one block fits, or a setting is out of range.

    Examples
    --------
    >>> from kvlib.workloads import Request
    >>> memory = PagedMemory(num_slots=64, block_size=16)
    >>> memory.admit("a", Request(0.0, 20, 45), num_tokens=20).empty_slots
    32
    >>> memory.grow(["a"], limit=30), memory.held_slots
    (Growth(steps=30, taken=[(0, 12), (0, 28)], copies=[]), 64)
    >>> memory.grow(["a"], limit=100).steps, memory.grow(["a"], limit=100).steps
    (14, 0)
    """

    def __init__(self, num_slots: int, block_size: int, watermark: float = 0.0, cpu_slots: int = 0):
        num_blocks = number_of_blocks(num_slots, block_size)
        num_host_blocks = whole("cpu_slots", cpu_slots, minimum=0) // block_size
        super().__init__(BlockManager(num_blocks, block_size, num_host_blocks), num_slots, watermark)
        self.groups = Groups(self.manager)

    @property
    def is_restless(self) -> bool:
        """See the module contract: beams replace one another."""
        return self.groups.has_beams

    def check(self, name: str, request) -> None:
        """See the module contract: any request will do."""

    def fits_alone(self, request) -> bool:
        """See the module contract. The last token that is generated is never written, so it needs no slot.

        A group is counted as if its members shared nothing but the whole blocks of their prompt.
        """
        more_tokens = max(0, request.num_output_tokens - 1)
        needed = self._blocks_of_group(request.num_input_tokens, more_tokens, group_size(request))
        open_slots = self.manager.num_blocks * self.unit_slots - self.pinned_tokens
        return needed * self.unit_slots - self._pinned_for(request) <= open_slots

    def cached_tokens(self, seq: Hashable, request, num_tokens: int) -> int:
        """See the module contract."""
        return self._pinned_for(request)

    def admit(self, seq: Hashable, request, num_tokens: int) -> Room | None:
        """See the module contract. A group that comes again shares its prompt and nothing else."""
        size, cached = group_size(request), self._pinned_for(request)
        prompt_tokens = num_tokens if size == 1 else request.num_input_tokens
        own_tokens = (num_tokens - prompt_tokens) // size  # generated before it was preempted
        num_blocks = self._blocks_of_group(prompt_tokens, own_tokens, size) - cached // self.unit_slots
        if num_blocks > self._open_blocks:
            return None
        self._start(seq, prompt_tokens, cached)
        self.groups.fork(seq, size, is_beam_search(request))
        if not own_tokens:
            return Room(num_blocks * self.unit_slots)
        num_copies, filled = self.groups.part(seq) or (0, 0)
        self.manager.append_each(self.groups.members(seq), own_tokens)
        self.manager.take_copies()
        return Room(num_blocks * self.unit_slots - num_copies * filled, size)

    def select(self, seqs: Sequence[Hashable]) -> None:
        """See the module contract."""
        if self.groups.has_beams:
            for seq in seqs:
                self.groups.select(seq)

    def grow(self, seqs: Sequence[Hashable], limit: int) -> Growth:
        """See the module contract."""
        manager, groups = self.manager, self.groups
        members, owners = groups.flatten(seqs)
        first_taken = manager.free_slots_each(members)
        num_copies = manager.blocks_to_append_each(members) - first_taken.count(0) if groups else 0
        steps = self._steps_with_room(first_taken, manager.num_free - num_copies, limit)
        if not steps:
            return Growth(0, [], [])
        copies = groups.part_all(seqs)
        manager.append_each(members, steps)
        if groups:
            manager.take_copies()
        return Growth(steps, self._taken(first_taken, owners, steps), copies)

    def release(self, seq: Hashable) -> None:
        """See the module contract."""
        self.groups.free(seq)

    def preempt(self, seq: Hashable, num_computed: int) -> None:
        """See the module contract: nothing is kept."""
        self.release(seq)

    def swap_out(self, seq: Hashable) -> int:
        """See the module contract."""
        if not self.manager.num_free_host:
            return 0
        try:
            return self.unit_slots * len(self.manager.swap_out(*self.groups.members(seq)))
        except OutOfBlocks:
            return 0

    def swap_in(self, seq: Hashable) -> Room | None:
        """See the module contract."""
        members = self.groups.members(seq)
        tables = [self.manager.host_block_table(member) for member in members]
        num_blocks = len({block for table in tables for block in table})
        filled = self.manager.num_tokens(seq) % self.unit_slots
        # Whose last block is full takes another; of those who share a partial one, all but the last copy it.
        num_more = len(members) - len({table[-1] for table in tables}) if filled else len(members)
        if num_blocks + num_more > self._open_blocks:
            return None
        self.manager.swap_in(*members)
        self.groups.part(seq)
        self.manager.append_each(members)
        self.manager.take_copies()
        return Room(len(members) * (-(filled + 1) % self.unit_slots), len(members))

    def _pinned_for(self, request) -> int:
        """Tokens of its prompt that are pinned for everybody."""
        return 0

    def _start(self, seq: Hashable, num_tokens: int, cached: int) -> None:
        self.manager.allocate(seq, num_tokens)

    def _blocks_of_group(self, prompt_tokens: int, own_tokens: int, size: int) -> int:
        if size == 1 or not own_tokens:
            return self._blocks_for(prompt_tokens + own_tokens)
        shared = prompt_tokens // self.unit_slots
        return shared + size * (self._blocks_for(prompt_tokens + own_tokens) - shared)


class ReservedMemory:
    """A whole request reserved at once, by any :class:`~kvlib.blocks.reservation.Reservation`.

    Examples
    --------
    >>> from kvlib.blocks.reservation import MaxReservation
    >>> memory = ReservedMemory(MaxReservation(num_slots=4096, max_len=2048))
    >>> [memory.admit(seq, request=None, num_tokens=20) for seq in ("a", "b", "c")]
    [Room(empty_slots=2048, num_tails=1), Room(empty_slots=2048, num_tails=1), None]
    """

    unit_slots = 0  # nothing is ever taken after admission
    pinned_tokens = 0
    is_restless = False

    def __init__(self, reservation: Reservation):
        self.reservation = reservation
        self.num_slots = reservation.buddy.num_slots

    @property
    def held_slots(self) -> int:
        """Slots in reserved blocks."""
        return self.num_slots - self.reservation.buddy.num_free

    def check(self, name: str, request) -> None:
        """See the module contract. Contiguous memory shares nothing, so it knows no groups."""
        refuse_groups(name, request, "in reserved memory, which cannot share a prompt: send as many requests")

    def cached_tokens(self, seq: Hashable, request, num_tokens: int) -> int:
        """See the module contract."""
        return 0

    def fits_alone(self, request) -> bool:
        """See the module contract."""
        return self.reservation.fits_alone(request)

    def admit(self, seq: Hashable, request, num_tokens: int) -> Room | None:
        """See the module contract. The rule, not ``num_tokens``, says how much is held."""
        try:
            return Room(self.reservation.reserve(seq, request))
        except OutOfBlocks:
            return None

    def select(self, seqs: Sequence[Hashable]) -> None:
        """See the module contract: there are no beams."""

    def grow(self, seqs: Sequence[Hashable], limit: int) -> Growth:
        """See the module contract: a reservation lasts to the end."""
        return Growth(limit, [], [])

    def release(self, seq: Hashable) -> None:
        """See the module contract."""
        self.reservation.release(seq)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if the reservation's laws do not hold."""
        self.reservation.check_integrity()
