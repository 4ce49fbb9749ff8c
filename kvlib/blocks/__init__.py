"""Who owns which slot: the block pool, the block manager, and the contiguous ways before paging."""

from kvlib.blocks.buddy import BuddyAllocator, next_power_of_two, split_into_arenas
from kvlib.blocks.growth import Growth, grow_by_doubling, grow_by_steps
from kvlib.blocks.manager import BlockManager
from kvlib.blocks.pool import BlockPool
from kvlib.blocks.reservation import MaxReservation, OracleReservation, Pow2OracleReservation, Reservation
from kvlib.blocks.tail import TailWaste, tail_waste

__all__ = [
    "BlockManager",
    "BlockPool",
    "BuddyAllocator",
    "Growth",
    "MaxReservation",
    "OracleReservation",
    "Pow2OracleReservation",
    "Reservation",
    "TailWaste",
    "grow_by_doubling",
    "grow_by_steps",
    "next_power_of_two",
    "split_into_arenas",
    "tail_waste",
]
