"""The little program of the virtual-memory primer: two processes, twelve actions, every idea once."""

from dataclasses import dataclass

from kvlib.primers.paging import Memory

NUM_PAGES = 4


@dataclass(frozen=True)
class Action:
    """One line of the little program: what happens, to whom, and where."""

    verb: str
    process: str = "A"
    page: int | None = None
    value: int | None = None

    @property
    def words(self) -> str:
        return {
            "start": f"{self.process} starts with {NUM_PAGES} pages, and no memory",
            "write": f"{self.process} writes {self.value} into its page {self.page}",
            "read": f"{self.process} reads its page {self.page}",
            "fork": f"{self.process} forks: B starts as its twin",
            "exit": f"{self.process} ends",
        }[self.verb]


PROGRAM = (
    Action("start"),
    Action("write", "A", 0, 7),
    Action("write", "A", 1, 8),
    Action("read", "A", 0),
    Action("fork"),
    Action("read", "B", 1),
    Action("write", "B", 1, 9),
    Action("write", "A", 1, 5),
    Action("write", "A", 2, 6),
    Action("write", "A", 3, 3),
    Action("read", "B", 0),
    Action("exit", "B"),
)


def run(num_frames: int, step: int) -> tuple[Memory, list[str]]:
    """The memory after `step` (0 is the first action), and what the operating system did in that step.

    Examples
    --------
    >>> memory, events = run(num_frames=4, step=6)
    >>> PROGRAM[6].words, events
    ('B writes 9 into its page 1', ['frame 1 is shared: B gets its own copy in frame 2'])
    """
    memory, events = Memory(num_frames, NUM_PAGES), []
    for action in PROGRAM[: step + 1]:
        events = _do(memory, action)
    return memory, events


def _do(memory: Memory, action: Action) -> list[str]:
    if action.verb == "start":
        memory.start(action.process)
        return ["every entry of the page table is empty until its page is touched (demand paging)"]
    if action.verb == "fork":
        memory.fork(action.process, "B")
        return ["the table is copied, the pages are not: both tables point at the same frames"]
    if action.verb == "exit":
        memory.exit(action.process)
        return [f"what only {action.process} pointed at is free again, on disk too"]
    if action.verb == "read":
        value, events = memory.read(action.process, action.page)
        events = [*events, f"the value is {value}"]
    else:
        events = memory.write(action.process, action.page, action.value)
    return events or [_nothing_to_do(memory, action)]


def _nothing_to_do(memory: Memory, action: Action) -> str:
    frame = memory.tables[action.process][action.page].frame
    return f"no fault: frame {frame} is in memory, and only {action.process} points at it"
