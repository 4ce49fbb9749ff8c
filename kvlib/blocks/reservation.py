"""Reservation: contiguous slots for a whole request, taken when it starts and kept until it ends.

The three baselines of section 6.1 of the PagedAttention paper (Orca Max, Pow2 and Oracle), each a rule that
says how many slots to reserve, over the buddy allocator. They differ in what they are told of the future.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable

from kvlib.blocks.buddy import BuddyAllocator, next_power_of_two
from kvlib.errors import ConfigError, UnknownSequence
from kvlib.specs.checks import whole


class Reservation(ABC):
    """One buddy block per sequence, sized by a rule.

    The contract, verb by verb. A call that raises has changed nothing.

    - ``reserve(seq, request)`` takes one buddy block for ``slots_for(request)`` slots and returns the size of
      that block. Raises ``OutOfBlocks``, or ``ConfigError`` if ``seq`` has a reservation already.
    - ``release(seq)`` gives the block back. Raises ``UnknownSequence``.

    ``check_integrity()`` verifies that the reservations are exactly the blocks the buddy allocator has
    given out.

    Parameters
    ----------
    num_slots : int
        Token slots in the memory.
    max_len : int
        The longest prompt plus output that the server accepts.

    Notes
    -----
    A ``request`` is anything with ``num_input_tokens`` and ``num_output_tokens``. Only a rule with "Oracle"
    in its name reads the second, which a real scheduler cannot know.
    """

    def __init__(self, num_slots: int, max_len: int):
        self.buddy = BuddyAllocator(num_slots)
        self.max_len = whole("max_len", max_len)
        self._starts: dict[Hashable, int] = {}

    @abstractmethod
    def slots_for(self, request) -> int:
        """Slots this rule reserves for ``request``."""

    def reserve(self, seq: Hashable, request) -> int:
        """Reserve a block and return its size (see the class contract)."""
        if seq in self._starts:
            raise ConfigError(f"seq={seq!r} has a reservation already: release it first")
        self._starts[seq] = start = self.buddy.allocate(self.slots_for(request))
        return self.buddy.size_of(start)

    def release(self, seq: Hashable) -> None:
        """Give a block back (see the class contract)."""
        if seq not in self._starts:
            raise UnknownSequence(f"seq={seq!r}: expected a sequence with a reservation")
        self.buddy.free(self._starts.pop(seq))

    def fits_alone(self, request) -> bool:
        """Whether an empty memory could hold the reservation of ``request``."""
        return next_power_of_two(self.slots_for(request)) <= self.buddy.largest_block

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless reservations and buddy blocks agree."""
        self.buddy.check_integrity()
        assert sorted(self._starts.values()) == [start for start, _ in self.buddy.held_blocks()]


class MaxReservation(Reservation):
    """Reserve the longest length that any request may reach; needs to know nothing.

    Examples
    --------
    Two of the arenas of 12,596 slots hold blocks of 2,048: six requests (oracle L7.slots.max6).

    >>> memory = MaxReservation(num_slots=12596, max_len=2048)
    >>> [memory.reserve(seq, request=None) for seq in range(6)]
    [2048, 2048, 2048, 2048, 2048, 2048]
    >>> memory.buddy.num_free, memory.buddy.free_blocks()[0]
    (308, (12288, 256))
    """

    def slots_for(self, request) -> int:
        """``max_len`` slots, whatever the request."""
        return self.max_len


class Pow2OracleReservation(Reservation):
    """Reserve the prompt and the output length rounded up to a power of two, at most ``max_len`` in all.

    The paper's "Pow2" over-reserves outputs by less than two times. That takes a good guess of the output
    length, so this is an oracle too, with the last bits hidden.

    Examples
    --------
    The paper's example: for an output of 25 tokens it reserves 32 positions.

    >>> from types import SimpleNamespace
    >>> request = SimpleNamespace(num_input_tokens=100, num_output_tokens=25)
    >>> Pow2OracleReservation(num_slots=2048, max_len=2048).slots_for(request)
    132
    """

    def slots_for(self, request) -> int:
        """``prompt + next power of two of the output``, at most ``max_len``."""
        output = request.num_output_tokens
        return min(self.max_len, request.num_input_tokens + (next_power_of_two(output) if output else 0))


class OracleReservation(Reservation):
    """Reserve exactly prompt plus output: the best that contiguous reservation could do.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> request = SimpleNamespace(num_input_tokens=100, num_output_tokens=300)
    >>> OracleReservation(num_slots=2048, max_len=2048).reserve("a", request)
    512
    """

    def slots_for(self, request) -> int:
        """``prompt + output``."""
        return request.num_input_tokens + request.num_output_tokens
