"""Several sequences that answer one request: parallel samples, or the beams of a beam search.

Section 4.4 of the PagedAttention paper. The members of a group share the blocks of their prompt and are
scheduled, preempted and resumed together, all or nothing (section 4.5).
"""

from collections.abc import Hashable, Sequence
from random import Random

from kvlib.blocks.manager import BlockManager
from kvlib.errors import ConfigError
from kvlib.specs.checks import whole


def group_size(request) -> int:
    """Sequences that answer a request; 1 for a request that does not say."""
    return getattr(request, "num_sequences", 1)


def refuse_groups(name: str, request, why: str) -> None:
    """Raise ``ConfigError``, naming the row, for a request with more than one sequence."""
    if group_size(request) > 1:
        raise ConfigError(f"{name}.num_sequences: got {request.num_sequences}, expected 1 {why}")


def is_beam_search(request) -> bool:
    """Whether these sequences are beams, which replace one another as they grow."""
    return getattr(request, "beam_search", False)


class Groups:
    """Names the members of each group in one :class:`~kvlib.blocks.manager.BlockManager`.

    A request with a single sequence is not a group and is its own only member.

    Examples
    --------
    >>> manager = BlockManager(num_blocks=8, block_size=4)
    >>> manager.allocate("a", 6)
    >>> groups = Groups(manager); groups.fork("a", 3, is_beam=False)
    >>> groups.members("a"), groups.part("a"), groups.part("a")
    (['a', ('a', 1), ('a', 2)], (2, 2), None)
    """

    def __init__(self, manager: BlockManager):
        self._manager = manager
        self._members: dict[Hashable, list[Hashable]] = {}
        self._unparted: set[Hashable] = set()  # groups that still share their last block
        self._beams: set[Hashable] = set()

    def __bool__(self) -> bool:
        return bool(self._members)

    @property
    def has_beams(self) -> bool:
        """Whether a beam search is among them."""
        return bool(self._beams)

    def members(self, seq: Hashable) -> Sequence[Hashable]:
        """The sequences of ``seq`` in the block manager, itself first."""
        return self._members.get(seq, (seq,))

    def flatten(self, seqs: Sequence[Hashable]) -> tuple[Sequence[Hashable], Sequence[int]]:
        """All members of all of ``seqs``, and for each of them the position of its group in ``seqs``."""
        if not self._members:
            return seqs, range(len(seqs))
        pairs = [(member, position) for position, seq in enumerate(seqs) for member in self.members(seq)]
        return [member for member, _ in pairs], [position for _, position in pairs]

    def fork(self, seq: Hashable, num_sequences: int, is_beam: bool) -> None:
        """Make ``seq``, whose prompt has its blocks, the first of ``num_sequences`` members."""
        if whole("num_sequences", num_sequences) == 1:
            return
        self._members[seq] = [seq, *((seq, number) for number in range(1, num_sequences))]
        for member in self._members[seq][1:]:
            self._manager.fork(seq, member)
        self._unparted.add(seq)
        if is_beam:
            self._beams.add(seq)

    def part(self, seq: Hashable) -> tuple[int, int] | None:
        """How many copies of a shared last block the next tokens of ``seq`` will make, and what each holds.

        Copies and tokens, once in the life of a group: from then on every member writes to a block of its
        own. None for a group that has parted, or whose last block is full.
        """
        if seq not in self._unparted:
            return None
        self._unparted.remove(seq)
        filled = self._manager.num_tokens(seq) % self._manager.block_size
        return (len(self._members[seq]) - 1, filled) if filled else None

    def part_all(self, seqs: Sequence[Hashable]) -> list[tuple[int, int, int]]:
        """The copies that each of ``seqs`` will make, after its position."""
        if not self._unparted:
            return []
        parting = [(position, self.part(seq)) for position, seq in enumerate(seqs)]
        return [(position, *copies) for position, copies in parting if copies]

    def select(self, seq: Hashable) -> None:
        """Let each place in a beam search go to a child of a random beam; beams without a child are freed.

        The widths 2, 4 and 6 of a real search (chapter 4) keep 84, 70 and 71 % of their beams from one step to
        the next. Drawing every parent at random keeps 75, 68 and 67 %, and needs no model.
        """
        if seq not in self._beams or seq in self._unparted:
            return
        members = self._members[seq]
        rng = Random(f"beams of {seq!r} at {self._manager.num_tokens(seq)}")
        parents = [rng.choice(members) for _ in members]
        going_on = set(parents)
        childless = [member for member in members if member not in going_on]
        for member in members:
            for _ in range(parents.count(member) - 1):
                heir = childless.pop()
                self._manager.free(heir)
                self._manager.fork(member, heir)

    def free(self, seq: Hashable) -> None:
        """Free all members and forget the group."""
        for member in self._members.pop(seq, (seq,)):
            self._manager.free(member)
        self._unparted.discard(seq)
        self._beams.discard(seq)
