"""From a virtual to a physical address, and what the detour through the page table costs."""

from kvlib.errors import ConfigError
from kvlib.specs.checks import real, whole


def translate(page_table: list[int], page_size: int, virtual_address: int) -> int:
    """The physical address: the page number is looked up, the offset inside the page stays.

    Raises
    ------
    ConfigError
        For an address outside the pages of the table.

    Examples
    --------
    >>> translate([5, 2], page_size=16, virtual_address=20)      # page 1, offset 4; frame 2
    36
    """
    page, offset = divmod(whole("virtual_address", virtual_address, minimum=0), whole("page_size", page_size))
    if page >= len(page_table):
        end = len(page_table) * page_size
        raise ConfigError(f"virtual_address: got {virtual_address}, expected less than {end}")
    return page_table[page] * page_size + offset


def effective_access_ns(hit_rate: float, tlb_ns: float, memory_ns: float, levels: int) -> float:
    """Mean time of one memory access through a TLB: tlb + memory + (1 - hit rate) * levels * memory.

    A hit in the translation look-aside buffer costs the look-up and the access. A miss reads one entry in
    each of the page table's `levels` first.

    Source: Arpaci-Dusseau and Arpaci-Dusseau, chapters 19 (TLB) and 20 (multi-level tables).

    Raises
    ------
    ConfigError
        For a hit rate outside [0, 1], negative times, or no level.

    Examples
    --------
    >>> effective_access_ns(1.0, 1.0, 100.0, 4), effective_access_ns(0.0, 1.0, 100.0, 4)
    (101.0, 501.0)
    """
    if real("hit_rate", hit_rate) > 1:
        raise ConfigError(f"hit_rate: got {hit_rate!r}, expected a share from 0 to 1")
    walk_ns = whole("levels", levels) * real("memory_ns", memory_ns)
    return real("tlb_ns", tlb_ns) + memory_ns + (1 - hit_rate) * walk_ns
