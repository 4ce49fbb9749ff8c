"""HiRadixTree: places, transient nodes, write policies; laws L2 and L7 under any order of calls."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvlib.errors import ConfigError, OutOfBlocks, UnknownSequence
from kvlib.tiers import HiRadixTree, Located
from kvlib.tiers.hiradix import WRITE_POLICIES

PAGE = 2
# Few tokens, so that paths share prefixes often.
paths = st.lists(st.integers(0, 2), min_size=0, max_size=12).map(tuple)
many_paths = st.lists(paths, min_size=1, max_size=30)


def serve(tree, tokens, name="now"):
    located = tree.begin(name, tokens)
    tree.finish(name)
    return located


class AnyOrder(RuleBasedStateMachine):
    """A pure-Python model keeps every prefix ever computed; the tree may forget, never invent."""

    write_policy = "write_through"

    def __init__(self):
        super().__init__()
        self.tree = HiRadixTree(24, 40, 60, page_size=PAGE, write_policy=self.write_policy)
        self.computed = set()
        self.running = {}
        self.names = 0

    @rule(tokens=paths)
    def queue(self, tokens):
        self.names += 1
        self.tree.queue(self.names, tokens)

    @rule(tokens=paths)
    def begin(self, tokens):
        self.names += 1
        before = self.places()
        try:
            located = self.tree.begin(self.names, tokens)
        except OutOfBlocks:
            assert self.places() == before
            return
        assert tokens[: located.cached] in self.computed or not located.cached
        self.running[self.names] = tokens
        # C28: what was reloaded is pinned until it is claimed.
        assert self.tree.locate(tokens).gpu >= located.cached

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data):
        name = data.draw(st.sampled_from(sorted(self.running)))
        try:
            self.tree.finish(name)
        except OutOfBlocks:
            return
        tokens = self.running.pop(name)
        whole = len(tokens) // PAGE * PAGE
        self.computed |= {tokens[:length] for length in range(0, whole + 1, PAGE)}
        assert self.tree.locate(tokens).gpu == whole

    @rule(tokens=paths)
    def prefetch(self, tokens):
        ssd = self.tree.locate(tokens).ssd
        assert self.tree.prefetch(tokens) == ssd
        assert self.tree.locate(tokens).ssd == 0

    @rule(tokens=paths)
    def locate(self, tokens):
        located = self.tree.locate(tokens)
        assert min(located.gpu, located.cpu, located.ssd, located.transient) >= 0
        assert located.cached + located.transient <= len(tokens)
        assert (
            not located.cached or tokens[: located.cached] in self.computed
        )  # L7: no hole, nothing invented

    def places(self):
        return pages_by_tier(self.tree.nodes())

    @invariant()
    def sound(self):
        self.tree.check_integrity()

    @invariant()
    def every_tier_holds_heads_before_tails(self):
        places = self.places()
        for path, tiers in places.items():
            assert not path[:-PAGE] or set(tiers) <= set(places[path[:-PAGE]])  # L7


class SelectiveInAnyOrder(AnyOrder):
    write_policy = "write_through_selective"


class WriteBackInAnyOrder(AnyOrder):
    write_policy = "write_back"


def pages_by_tier(nodes, before=()):
    """{path of a page: tiers that hold it} of the drawn tree."""
    found = {}
    for node in nodes:
        path = before + node.tokens
        found |= {path[: len(before) + end]: node.tiers for end in range(PAGE, len(node.tokens) + 1, PAGE)}
        found |= pages_by_tier(node.children, path)
    return found


for machine in (AnyOrder, SelectiveInAnyOrder, WriteBackInAnyOrder):
    machine.TestCase.settings = settings(
        derandomize=True, deadline=None, max_examples=25, stateful_step_count=25
    )
TestWriteThrough = AnyOrder.TestCase
TestSelective = SelectiveInAnyOrder.TestCase
TestWriteBack = WriteBackInAnyOrder.TestCase


@settings(derandomize=True, deadline=None, max_examples=60)
@given(sequence=many_paths, cpu_tokens=st.sampled_from([0, 10, 20, 40]))
def test_more_gpu_memory_never_lowers_the_hits(sequence, cpu_tokens):
    # C28: sweep the GPU's size; hits over all tiers must not fall.
    hits = []
    for gpu_tokens in range(12, 40, 4):
        tree = HiRadixTree(gpu_tokens, cpu_tokens, page_size=PAGE)
        hits.append(sum(serve(tree, tokens).cached for tokens in sequence))
    assert hits == sorted(hits)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(sequence=many_paths)
def test_tiers_only_add_hits(sequence):
    # A host below the GPU, and an SSD below the host, can only find more.
    hits = []
    for cpu_tokens, ssd_tokens in ((0, 0), (24, 0), (24, 48)):
        tree = HiRadixTree(12, cpu_tokens, ssd_tokens, page_size=PAGE)
        hits.append(sum(serve(tree, tokens).cached for tokens in sequence))
    assert hits == sorted(hits)


@pytest.mark.parametrize("write_policy", WRITE_POLICIES)
def test_what_the_gpu_gives_up_is_found_in_the_host(write_policy):
    # 8 GPU tokens, two paths of 6: the second pushes 4 tokens of the first out. All policies know them
    # afterwards, except the selective one, which copies only what was used twice.
    tree = HiRadixTree(8, 64, write_policy=write_policy)
    serve(tree, range(6))
    serve(tree, range(100, 106))
    expected = {"write_through": 4, "write_through_selective": 0, "write_back": 4}
    assert tree.locate(range(6)) == Located(gpu=2, cpu=expected[write_policy], ssd=0, transient=0)


def test_selective_backup_waits_for_the_second_use():
    tree = HiRadixTree(8, 64, write_policy="write_through_selective")
    serve(tree, range(6))
    assert tree.copied_tokens["gpu_to_cpu"] == 0
    serve(tree, range(6))
    assert tree.copied_tokens["gpu_to_cpu"] == 6


def test_write_back_copies_only_what_leaves():
    tree = HiRadixTree(8, 64, write_policy="write_back")
    serve(tree, range(6))
    assert tree.copied_tokens["gpu_to_cpu"] == 0
    serve(tree, range(100, 106))
    # The first path is copied whole, head included, so that the host holds no tail without its head.
    assert tree.copied_tokens["gpu_to_cpu"] == 6


def test_the_host_passes_on_to_the_ssd_and_gets_it_back():
    # GPU 4, host 6: after three paths of 4, the first has left the GPU and all but 2 tokens of it the host.
    tree = HiRadixTree(4, 6, ssd_tokens=100)
    for start in (0, 10, 20):
        serve(tree, range(start, start + 4))
    assert tree.locate(range(4)) == Located(gpu=0, cpu=0, ssd=4, transient=0)
    assert tree.prefetch(range(3)) == 3
    assert tree.locate(range(4)) == Located(gpu=0, cpu=3, ssd=1, transient=0)
    assert tree.begin("again", range(4)) == Located(gpu=0, cpu=3, ssd=1, transient=0)
    assert tree.locate(range(4)).gpu == 4


def test_transient_nodes_say_that_kv_is_coming():
    tree = HiRadixTree(100, 100, page_size=4)
    document = range(16)
    tree.queue("first", [*document, 90, 91])
    assert tree.locate([*document, 80, 81], "second").transient == 16
    assert tree.locate([*document, 90, 91], "first").transient == 0  # its own does not count
    assert tree.locate([*range(8), 70, 71, 72, 73]).transient == 8  # as far as the two agree
    tree.begin("first", [*document, 90, 91])
    assert [(name, state) for name, _, state in tree.transients()] == [("first", "computing")]
    tree.finish("first")
    assert tree.locate([*document, 80, 81], "second") == Located(gpu=16, cpu=0, ssd=0, transient=0)
    assert tree.transients() == []


def test_a_transient_node_hangs_below_what_is_cached():
    tree = HiRadixTree(100, 100)
    serve(tree, range(5))
    tree.queue("longer", range(9))
    assert tree.locate(range(9)) == Located(gpu=5, cpu=0, ssd=0, transient=4)
    assert tree.locate([0, 1, 2, 3, 4, 77]).transient == 0


def test_begun_requests_lock_what_they_reuse():
    tree = HiRadixTree(8, 0)
    serve(tree, range(6))
    tree.begin("a", range(6))
    tree.begin("b", range(50, 54))
    with pytest.raises(OutOfBlocks):
        tree.finish("b")  # 6 locked + 4 > 8
    tree.finish("a")
    tree.finish("b")
    assert tree.locate(range(50, 54)).gpu == 4


def test_the_drawn_tree_says_place_and_hits():
    # Two questions about one document of 4 tokens: the document was reused once, the questions never.
    tree = HiRadixTree(6, 100)
    serve(tree, [0, 1, 2, 3, 10, 11])
    serve(tree, [0, 1, 2, 3, 20, 21])
    (document,) = tree.nodes()
    assert (document.tokens, document.tiers, document.hits) == ((0, 1, 2, 3), ("gpu", "cpu"), 1)
    assert [(n.tokens, n.tiers, n.hits) for n in document.children] == [
        ((10, 11), ("cpu",), 0),
        ((20, 21), ("gpu", "cpu"), 0),
    ]


def test_partial_pages_are_never_shared():
    tree = HiRadixTree(64, 64, page_size=4)
    serve(tree, range(7))
    assert tree.locate(range(7)).cached == 4


@pytest.mark.parametrize(
    "bad",
    [
        dict(gpu_tokens=0),
        dict(cpu_tokens=-1),
        dict(ssd_tokens=True),
        dict(page_size=0),
        dict(write_policy="sometimes"),
    ],
)
def test_impossible_trees_are_refused(bad):
    with pytest.raises(ConfigError):
        HiRadixTree(**{**dict(gpu_tokens=8, cpu_tokens=8), **bad})


def test_requests_out_of_turn_are_refused():
    tree = HiRadixTree(8, 8)
    with pytest.raises(UnknownSequence, match="name"):
        tree.finish("nobody")
    tree.queue("a", range(4))
    with pytest.raises(UnknownSequence, match="name"):
        tree.finish("a")
    tree.begin("a", range(4))
    for again in (tree.begin, tree.queue):
        with pytest.raises(ConfigError, match="name"):
            again("a", range(4))


def test_tokens_are_whole_numbers():
    with pytest.raises(ConfigError):
        HiRadixTree(8, 8).locate([1.5, 2])
