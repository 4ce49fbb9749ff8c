"""Contiguous growth by moving: no reservation, and every time the space is full a larger one is found.

The other way to keep a sequence contiguous. It wastes little, but the tokens that are already there must be
copied whenever it moves: about one copy per token in the end when each space is twice the last, and a number
that grows with the square of the length when each space is a fixed step larger.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kvlib.specs.checks import whole


@dataclass(frozen=True)
class Growth:
    """What one sequence cost on its way from 1 token to ``num_tokens``.

    Attributes
    ----------
    num_tokens : int
        Final length.
    moves : tuple of (int, int)
        For each move the tokens that were copied and the slots of the new space.
    capacity : int
        Slots of the last space.
    slot_steps_used, slot_steps_held : int
        Slots that held tokens, and slots that were held, added up over the steps: one token per step.
    """

    num_tokens: int
    moves: tuple[tuple[int, int], ...]
    capacity: int
    slot_steps_used: int
    slot_steps_held: int

    @property
    def tokens_copied(self) -> int:
        """Tokens copied over all moves."""
        return sum(copied for copied, _ in self.moves)

    @property
    def utilisation(self) -> float:
        """Share of the held slot-steps that held a token; the space left behind by a move is not counted."""
        return self.slot_steps_used / self.slot_steps_held


def grow_by_doubling(num_tokens: int) -> Growth:
    """Grow one token at a time from a space of 1 slot; a full space is replaced by one of twice the size.

    To reach 1,024 tokens it copies 1 + 2 + 4 + … + 512 = 1,023 tokens.

    Raises
    ------
    ConfigError
        If ``num_tokens`` is not a positive ``int``.

    Examples
    --------
    >>> grow_by_doubling(1024).tokens_copied
    1023
    """
    return _grow(num_tokens, first_capacity=1, larger=lambda capacity: 2 * capacity)


def grow_by_steps(num_tokens: int, step: int) -> Growth:
    """Grow one token at a time from ``step`` slots; a full space is replaced by one ``step`` slots larger.

    To reach 1,024 tokens in steps of 256 it copies 256 + 512 + 768 = 1,536 tokens.

    Raises
    ------
    ConfigError
        If an argument is not a positive ``int``.

    Examples
    --------
    >>> grow_by_steps(1024, step=256).tokens_copied
    1536
    """
    whole("step", step)
    return _grow(num_tokens, first_capacity=step, larger=lambda capacity: capacity + step)


def _grow(num_tokens: int, first_capacity: int, larger: Callable[[int], int]) -> Growth:
    whole("num_tokens", num_tokens)
    capacity, moves, held = first_capacity, [], 0
    for length in range(1, num_tokens + 1):
        if length > capacity:
            capacity = larger(capacity)
            moves.append((length - 1, capacity))
        held += capacity
    return Growth(num_tokens, tuple(moves), capacity, num_tokens * (num_tokens + 1) // 2, held)
