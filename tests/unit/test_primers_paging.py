"""The law of virtual memory: every process sees its own memory, whatever is shared, copied or swapped."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvlib.errors import ConfigError
from kvlib.primers.paging import Memory

NUM_PAGES = 4
pages = st.integers(0, NUM_PAGES - 1)
picks = st.integers(0, 100)


class SeesItsOwnMemory(RuleBasedStateMachine):
    """The model is a plain list of numbers for each process; a fork copies the list."""

    # Few frames and pages, so that sharing and swapping meet in most runs.
    @initialize(num_frames=st.integers(1, 4))
    def begin(self, num_frames):
        self.memory = Memory(num_frames, NUM_PAGES)
        self.model = {}
        self.born = 0

    def _new_name(self):
        self.born += 1
        return f"P{self.born}"

    def _pick(self, pick):
        names = sorted(self.model)
        return names[pick % len(names)]

    @precondition(lambda self: len(self.model) < 4)
    @rule()
    def start(self):
        name = self._new_name()
        self.memory.start(name)
        self.model[name] = [0] * NUM_PAGES

    @precondition(lambda self: 0 < len(self.model) < 4)
    @rule(pick=picks)
    def fork(self, pick):
        parent, child = self._pick(pick), self._new_name()
        in_use = len(self.memory.frames)
        self.memory.fork(parent, child)
        assert len(self.memory.frames) == in_use, "a fork takes no frame"
        self.model[child] = list(self.model[parent])

    @precondition(lambda self: self.model)
    @rule(pick=picks)
    def exit(self, pick):
        name = self._pick(pick)
        self.memory.exit(name)
        del self.model[name]

    @precondition(lambda self: self.model)
    @rule(pick=picks, page=pages, value=st.integers(1, 99))
    def write(self, pick, page, value):
        name = self._pick(pick)
        self.memory.write(name, page, value)
        self.model[name][page] = value
        assert self.memory.refcount(self.memory.tables[name][page].frame) == 1, "a writer is alone"

    @precondition(lambda self: self.model)
    @rule(pick=picks, page=pages)
    def read(self, pick, page):
        name = self._pick(pick)
        value, _ = self.memory.read(name, page)
        assert value == self.model[name][page]

    @invariant()
    def tables_frames_and_disk_agree(self):
        if hasattr(self, "memory"):
            self.memory.check_integrity()

    def teardown(self):
        for name, values in getattr(self, "model", {}).items():
            assert [self.memory.read(name, page)[0] for page in range(NUM_PAGES)] == values


SeesItsOwnMemory.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, derandomize=True
)
TestSeesItsOwnMemory = SeesItsOwnMemory.TestCase


def test_nothing_is_taken_before_the_first_touch():
    memory = Memory(4, NUM_PAGES)
    memory.start("A")
    assert memory.frames == {}
    assert memory.read("A", 2) == (0, ["page 2 of A is touched for the first time: frame 0"])
    assert memory.page_faults == 1 and memory.read("A", 2) == (0, [])


def test_the_last_of_n_writers_keeps_the_original():
    # n writers of one shared page: the first n - 1 copy it, the last is alone with the original by then.
    memory = Memory(8, NUM_PAGES)
    memory.start("P0")
    memory.write("P0", 0, 1)
    for child in ("P1", "P2", "P3"):
        memory.fork("P0", child)
    for writer in ("P0", "P1", "P2", "P3"):
        memory.write(writer, 0, 2)
    assert memory.copies == 3 and len(memory.frames) == 4


def test_the_page_unused_for_longest_goes_to_disk():
    memory = Memory(2, NUM_PAGES)
    memory.start("A")
    memory.write("A", 0, 7)
    memory.write("A", 1, 8)
    memory.read("A", 0)
    memory.write("A", 2, 9)            # page 1 was used before page 0
    assert memory.tables["A"][1].disk_slot == 0 and memory.tables["A"][0].frame == 0
    assert memory.disk == {0: 8}


def test_a_shared_page_leaves_and_returns_for_both():
    memory = Memory(1, NUM_PAGES)
    memory.start("A")
    memory.write("A", 0, 7)
    memory.fork("A", "B")
    memory.write("A", 1, 8)
    assert [memory.tables[p][0].disk_slot for p in "AB"] == [0, 0]
    assert memory.read("B", 0)[0] == 7
    assert memory.refcount(0) == 2 and memory.tables["A"][0].frame == 0


def test_a_copy_with_a_single_frame_sends_the_original_to_disk_for_the_other():
    memory = Memory(1, NUM_PAGES)
    memory.start("A")
    memory.write("A", 0, 7)
    memory.fork("A", "B")
    memory.write("B", 0, 9)
    memory.check_integrity()
    assert memory.disk == {0: 7} and memory.frames[0].value == 9
    assert (memory.read("A", 0)[0], memory.read("B", 0)[0]) == (7, 9)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda m: m.start("A"), "process"), (lambda m: m.exit("Z"), "process"),
        (lambda m: m.fork("Z", "B"), "process"), (lambda m: m.fork("A", "A"), "process"),
        (lambda m: m.read("A", NUM_PAGES), "page"), (lambda m: m.read("A", -1), "page"),
        (lambda m: m.write("A", True, 1), "page"), (lambda m: m.write("Z", 0, 1), "process"),
    ],
)
def test_a_refused_call_changes_nothing(call, field):
    memory = Memory(2, NUM_PAGES)
    memory.start("A")
    memory.write("A", 0, 7)
    before = (repr(memory.tables), repr(memory.frames), dict(memory.disk), memory.page_faults)
    with pytest.raises(ConfigError, match=field):
        call(memory)
    assert (repr(memory.tables), repr(memory.frames), dict(memory.disk), memory.page_faults) == before


@pytest.mark.parametrize("bad", [0, -1, True, 2.0, "4"])
def test_sizes_must_be_whole_and_positive(bad):
    with pytest.raises(ConfigError, match="num_frames"):
        Memory(bad, 4)
    with pytest.raises(ConfigError, match="num_pages"):
        Memory(4, bad)
