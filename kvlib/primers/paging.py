"""Virtual memory of a small operating system: page tables, demand paging, sharing, copy-on-write, swapping.

Each process sees pages 0, 1, 2, … of its own. Where a page really lies (in a frame of memory, on disk, or
nowhere yet) is a matter of its page table, and two tables may point at the same frame. To keep the picture
small, one page holds one number.

Source: Arpaci-Dusseau and Arpaci-Dusseau, "Operating Systems: Three Easy Pieces", chapters 18 to 23.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kvlib.errors import ConfigError
from kvlib.specs.checks import whole


@dataclass
class Entry:
    """One line of a page table: the page is in `frame`, or in `disk_slot`, or (both None) not there yet."""

    frame: int | None = None
    disk_slot: int | None = None


@dataclass
class Frame:
    """A frame that holds a page, and when it was last used (in accesses, not seconds)."""

    value: int
    last_use: int


class Memory:
    """Frames, a disk without end, and one page table per process.

    Every verb returns what the operating system had to do, in order, as words a reader can follow.

    Parameters
    ----------
    num_frames : int
        Frames of physical memory.
    num_pages : int
        Virtual pages of each process.

    Examples
    --------
    >>> memory = Memory(num_frames=2, num_pages=3)
    >>> memory.start("A")
    >>> memory.write("A", 0, 7)
    ['page 0 of A is touched for the first time: frame 0']
    >>> memory.fork("A", "B"); memory.refcount(0)
    2
    >>> memory.write("B", 0, 8)
    ['frame 0 is shared: B gets its own copy in frame 1']
    >>> memory.read("A", 0), memory.read("B", 0)
    ((7, []), (8, []))
    """

    def __init__(self, num_frames: int, num_pages: int):
        self.num_frames = whole("num_frames", num_frames)
        self.num_pages = whole("num_pages", num_pages)
        self.tables: dict[str, list[Entry]] = {}
        self.frames: dict[int, Frame] = {}
        self.disk: dict[int, int] = {}
        self.page_faults = self.copies = self.swaps_out = self.swaps_in = 0
        self._clock = 0

    def start(self, process: str) -> None:
        """Give `process` an empty page table; no frame is taken before it touches a page."""
        self._must_be_new(process)
        self.tables[process] = [Entry() for _ in range(self.num_pages)]

    def fork(self, parent: str, child: str) -> None:
        """Give `child` the same table: every page is shared, nothing is copied."""
        table = self._table(parent)
        self._must_be_new(child)
        self.tables[child] = [Entry(entry.frame, entry.disk_slot) for entry in table]

    def exit(self, process: str) -> None:
        """Forget `process`; frames and disk slots that nobody else points at are free again."""
        self._table(process)
        del self.tables[process]
        for frame in [f for f in self.frames if self.refcount(f) == 0]:
            del self.frames[frame]
        wanted = {entry.disk_slot for entry in self._entries()}
        self.disk = {slot: value for slot, value in self.disk.items() if slot in wanted}

    def read(self, process: str, page: int) -> tuple[int, list[str]]:
        """The number in a page (0 if it was never written), and what had to be done to get it."""
        entry = self._entry(process, page)
        events = self._bring_in(process, page, entry)
        return self._use(entry).value, events

    def write(self, process: str, page: int, value: int) -> list[str]:
        """Put `value` into a page. A frame that others share is copied first (copy-on-write)."""
        entry = self._entry(process, page)
        events = self._bring_in(process, page, entry)
        if self.refcount(entry.frame) > 1:
            events += self._copy(process, entry)
        self._use(entry).value = value
        return events

    def refcount(self, frame: int) -> int:
        """How many page table entries point at `frame`."""
        return sum(entry.frame == frame for entry in self._entries())

    def check_integrity(self) -> None:
        """Raise `AssertionError` unless tables, frames and disk agree.

        Every entry points at one place that exists, every frame and slot is pointed at, and no more frames
        are in use than there are.
        """
        entries = list(self._entries())
        assert all(None in (e.frame, e.disk_slot) for e in entries), "a page in two places"
        assert {e.frame for e in entries} - {None} == set(self.frames), "frames in use are those pointed at"
        assert {e.disk_slot for e in entries} - {None} == set(self.disk), "so are disk slots"
        assert set(self.frames) <= set(range(self.num_frames)), "a frame that does not exist"

    def _entries(self) -> Iterator[Entry]:
        return (entry for table in self.tables.values() for entry in table)

    def _use(self, entry: Entry) -> Frame:
        frame = self.frames[entry.frame]
        frame.last_use = self._tick()
        return frame

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _bring_in(self, process: str, page: int, entry: Entry) -> list[str]:
        """A page fault, if the page is in no frame: demand paging the first time, a swap from disk later."""
        if entry.frame is not None:
            return []
        self.page_faults += 1
        frame, events = self._free_frame()
        if entry.disk_slot is None:
            entry.frame = frame
            self.frames[frame] = Frame(0, self._tick())
            return [*events, f"page {page} of {process} is touched for the first time: frame {frame}"]
        slot = entry.disk_slot
        self.frames[frame] = Frame(self.disk.pop(slot), self._tick())
        self.swaps_in += 1
        for sharer in self._entries():
            if sharer.disk_slot == slot:
                sharer.frame, sharer.disk_slot = frame, None
        return [*events, f"page {page} of {process} comes back from disk slot {slot} into frame {frame}"]

    def _copy(self, process: str, entry: Entry) -> list[str]:
        """Give the writer a frame of its own; those who shared the old one keep it."""
        shared, value = entry.frame, self.frames[entry.frame].value
        self.page_faults += 1
        self.copies += 1
        # Let go first: the search for a free frame may send the shared one to disk, for the others only.
        entry.frame = None
        entry.frame, events = self._free_frame()
        self.frames[entry.frame] = Frame(value, self._tick())
        return [*events, f"frame {shared} is shared: {process} gets its own copy in frame {entry.frame}"]

    def _free_frame(self) -> tuple[int, list[str]]:
        """The lowest free frame; if there is none, the one unused for longest goes to disk."""
        free = [frame for frame in range(self.num_frames) if frame not in self.frames]
        if free:
            return free[0], []
        victim = min(self.frames, key=lambda frame: self.frames[frame].last_use)
        slot = min(set(range(len(self.disk) + 1)) - set(self.disk))
        self.disk[slot] = self.frames.pop(victim).value
        self.swaps_out += 1
        for sharer in self._entries():
            if sharer.frame == victim:
                sharer.frame, sharer.disk_slot = None, slot
        return victim, [f"no frame is free: frame {victim}, unused for longest, goes to disk slot {slot}"]

    def _table(self, process: str) -> list[Entry]:
        if process not in self.tables:
            known = ", ".join(self.tables) or "none yet"
            raise ConfigError(f"process: got {process!r}, expected one of {known}")
        return self.tables[process]

    def _entry(self, process: str, page: int) -> Entry:
        table = self._table(process)
        if whole("page", page, minimum=0) >= self.num_pages:
            raise ConfigError(f"page: got {page}, expected less than {self.num_pages}")
        return table[page]

    def _must_be_new(self, process: str) -> None:
        if process in self.tables:
            raise ConfigError(f"process: got {process!r}, which runs already, expected a new name")
