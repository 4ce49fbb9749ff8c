"""What the last block wastes, against the block size.

A sequence of ``n`` tokens holds ``ceil(n / B)`` blocks of ``B`` slots; all but the last are full. If the
position of the end within its block is anybody's guess, half a block is lost: the usual estimate. It breaks
when blocks become longer than many sequences, since a short sequence cannot end anywhere in its only block.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvlib.errors import ConfigError
from kvlib.specs.checks import whole


@dataclass(frozen=True)
class TailWaste:
    """Unused slots of finished sequences at one block size.

    Attributes
    ----------
    block_size : int
        Tokens per block.
    held_slots, used_slots : int
        Over all sequences.
    num_sequences : int
    """

    block_size: int
    held_slots: int
    used_slots: int
    num_sequences: int

    @property
    def share_of_held(self) -> float:
        """Unused slots ÷ held slots: the share of memory that is lost, always below 1."""
        return (self.held_slots - self.used_slots) / self.held_slots

    @property
    def slots_per_sequence(self) -> float:
        """Mean number of unused slots; at most ``block_size - 1``."""
        return (self.held_slots - self.used_slots) / self.num_sequences

    @property
    def half_block_estimate(self) -> float:
        """Half a block ÷ the mean length, the usual estimate, which can exceed every real share."""
        return self.block_size / 2 / (self.used_slots / self.num_sequences)


def tail_waste(lengths: Sequence[int], block_size: int) -> TailWaste:
    """Measure the waste of sequences of the given final lengths, in tokens.

    Raises
    ------
    ConfigError
        If there is no length, or if a length or the block size is not a positive ``int``.

    Examples
    --------
    >>> waste = tail_waste([53, 64], block_size=16)
    >>> waste.held_slots - waste.used_slots, waste.slots_per_sequence
    (11, 5.5)
    """
    whole("block_size", block_size)
    if not lengths:
        raise ConfigError("lengths: got none, expected at least one length in tokens")
    for row, length in enumerate(lengths):
        whole(f"lengths[{row}]", length)
    held_slots = sum(-(-length // block_size) for length in lengths) * block_size
    return TailWaste(block_size, held_slots, sum(lengths), len(lengths))
