"""RadixAttention: a tree of token sequences that share their prefixes (SGLang, section 3).

Paths from the root spell the cached sequences; each edge holds as many tokens as its sequences have in
common there. Where two sequences diverge, or one ends, an edge is split.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from kvlib.errors import OutOfBlocks, UnknownSequence
from kvlib.prefix.hashing import checked_tokens
from kvlib.specs.checks import whole


class RadixCache:
    """A prefix cache at token granularity, or in pages of several tokens.

    The contract, verb by verb. A call that raises has changed nothing. A length that is no multiple of
    the page size counts its whole pages only; ``ConfigError`` refuses anything that is no token id.

    - ``match_prefix(tokens)`` returns how many leading tokens are stored, and marks them as just used (an
      edge of which only a part matched is split there, so that only this part counts as used).
    - ``insert(tokens)`` stores the sequence, marks it as just used and returns the number of newly stored
      tokens. If room is missing, just enough is evicted, never of the sequence itself. ``OutOfBlocks`` if
      even that is not enough.
    - ``evict(num_tokens)`` evicts whole pages until that many tokens are gone or nothing unlocked is left,
      and returns how many went. The least recently used leaf gives up its last page first.
    - ``lock(tokens)`` protects the longest stored prefix from eviction, marks it as just used and returns
      its length: a request that runs on it. Locks add up.
    - ``unlock(tokens)`` takes back one such lock, the earliest, and marks the prefix as just used.
      ``UnknownSequence`` if these tokens are not locked.

    ``check_integrity()`` verifies that every stored token is evictable or protected, and counted once.

    Parameters
    ----------
    capacity_tokens : int
        Tokens that can be stored.
    page_size : int
        Tokens per page; 1 shares every common token.

    Examples
    --------
    Two prompts share 53 tokens. Pages of 16 would find 48 of them; single tokens find all.

    >>> cache = RadixCache(capacity_tokens=200)
    >>> cache.insert(range(60)), cache.match_prefix([*range(53), 99, 98])
    (60, 53)
    >>> cache.insert([*range(53), 99, 98]), cache.num_stored
    (2, 62)
    """

    def __init__(self, capacity_tokens: int, page_size: int = 1):
        self.capacity_tokens = whole("capacity_tokens", capacity_tokens)
        self.page_size = whole("page_size", page_size)
        self._root = _Node(tokens=(), parent=None, num_locks=0)
        # Unlocked nodes, least recently used first. A use moves the deepest node of its path first, so a
        # node always stands before its parent, and the front of the queue is always a leaf.
        self._evictable = OrderedDict()
        self._num_evictable = 0
        self._num_protected = 0
        # For each tokens given to lock(), the lengths that were found and locked, earliest first.
        self._locked_lengths: dict[tuple[int, ...], list[int]] = {}

    # Questions

    @property
    def num_stored(self) -> int:
        """Tokens in the tree."""
        return self._num_evictable + self._num_protected

    @property
    def num_evictable(self) -> int:
        """Stored tokens that no lock protects."""
        return self._num_evictable

    @property
    def num_protected(self) -> int:
        """Stored tokens under at least one lock."""
        return self._num_protected

    @property
    def num_free(self) -> int:
        """Tokens that can be stored before anything is evicted."""
        return self.capacity_tokens - self.num_stored

    def tree(self) -> "RadixView":
        """Return the tree as nested :class:`RadixView` objects, to draw it."""
        return _view(self._root)

    # Verbs

    def match_prefix(self, tokens: Iterable[int]) -> int:
        """Return the length of the longest stored prefix, marking it as used (see the class contract)."""
        path, length = self._walk(self._whole_pages(tokens))
        self._use(self._split_at(path, length))
        return length

    def insert(self, tokens: Iterable[int]) -> int:
        """Store a sequence and return the number of newly stored tokens (see the class contract)."""
        tokens = self._whole_pages(tokens)
        path, length = self._walk(tokens)
        num_new = len(tokens) - length
        reusable = self.num_free + self._num_evictable - self._num_unlocked(path, length)
        if num_new > reusable:
            raise OutOfBlocks(f"tokens: room for {num_new} more needed, only {reusable} free or evictable")
        path = self._split_at(path, length)
        # The path is now the most recently used, so what is evicted for it lies elsewhere.
        self._use(path)
        self.evict(max(0, num_new - self.num_free))
        if num_new:
            self._use([*path, self._grow(path[-1], tokens[length:])])
        return num_new

    def evict(self, num_tokens: int) -> int:
        """Evict at least ``num_tokens`` tokens if possible and return how many (see the class contract)."""
        whole("num_tokens", num_tokens, minimum=0)
        num_evicted = 0
        while num_evicted < num_tokens and self._evictable:
            leaf = next(iter(self._evictable))
            num_pages = -(-(num_tokens - num_evicted) // self.page_size)
            num_evicted += self._trim(leaf, min(num_pages * self.page_size, len(leaf.tokens)))
        return num_evicted

    def lock(self, tokens: Iterable[int]) -> int:
        """Protect the longest stored prefix and return its length (see the class contract)."""
        tokens = self._whole_pages(tokens)
        path, length = self._walk(tokens)
        for node in self._split_at(path, length)[1:]:
            node.num_locks += 1
            if node.num_locks == 1:
                del self._evictable[node]
                self._num_evictable -= len(node.tokens)
                self._num_protected += len(node.tokens)
        self._locked_lengths.setdefault(tokens, []).append(length)
        return length

    def unlock(self, tokens: Iterable[int]) -> None:
        """Take back the earliest lock of these tokens (see the class contract)."""
        tokens = self._whole_pages(tokens)
        if tokens not in self._locked_lengths:
            raise UnknownSequence(
                f"tokens: got {len(tokens)} tokens that are not locked, expected locked ones"
            )
        # The prefix may have grown since; what was locked is what is unlocked. It can only have grown, so
        # the earliest length is also the shortest, and nobody loses more protection than it is owed.
        lengths = self._locked_lengths[tokens]
        path, _ = self._walk(tokens[: lengths.pop(0)])
        if not lengths:
            del self._locked_lengths[tokens]
        for node in path[1:]:
            node.num_locks -= 1
            if not node.num_locks:
                self._evictable[node] = None
                self._num_protected -= len(node.tokens)
                self._num_evictable += len(node.tokens)
        self._use(path)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless the laws of the class contract hold."""
        nodes = list(self._nodes())
        for node in nodes:
            assert node.tokens and len(node.tokens) % self.page_size == 0, "an edge is empty or not in pages"
            assert node.parent.children[node.tokens[: self.page_size]] is node, "a child is under a wrong key"
            if node.parent is not self._root:
                assert node.parent.num_locks >= node.num_locks, "a parent has fewer locks than its child"
            assert (node in self._evictable) == (node.num_locks == 0), "locks and the queue disagree"
        protected = sum(len(node.tokens) for node in nodes if node.num_locks)
        assert protected == self._num_protected, "protected tokens are counted wrongly"
        assert sum(len(node.tokens) for node in nodes) == self.num_stored <= self.capacity_tokens
        rank = {node: number for number, node in enumerate(self._evictable)}
        assert rank.keys() <= set(nodes), "the queue holds a node that is not in the tree"
        for node in rank:
            assert rank[node] < rank.get(node.parent, len(rank)), "a parent would go before its child"

    # Steps

    def _whole_pages(self, tokens):
        tokens = checked_tokens(tokens)
        return tokens[: len(tokens) // self.page_size * self.page_size]

    def _walk(self, tokens):
        """Return the nodes along ``tokens``, the last perhaps matched in part, and the length."""
        path, length = [self._root], 0
        while child := path[-1].children.get(tokens[length : length + self.page_size]):
            path.append(child)
            num_common = self._num_common(child.tokens, tokens, length)
            length += num_common
            if num_common < len(child.tokens):
                break
        return path, length

    def _num_common(self, edge, tokens, start):
        """Return how many whole pages of ``edge``, in tokens, equal ``tokens`` from ``start`` on."""
        if tokens[start : start + len(edge)] == edge:
            return len(edge)
        # Halving the range compares slices at C speed, where a loop would look at every token.
        equal, unequal = 0, len(edge) // self.page_size
        while unequal - equal > 1:
            middle = (equal + unequal) // 2
            begin, end = equal * self.page_size, middle * self.page_size
            if tokens[start + begin : start + end] == edge[begin:end]:
                equal = middle
            else:
                unequal = middle
        return equal * self.page_size

    def _num_unlocked(self, path, length):
        """Return how many of the first ``length`` tokens, which ``path`` holds, no lock protects."""
        beyond = sum(len(node.tokens) for node in path) - length
        unlocked = sum(len(node.tokens) for node in path if node in self._evictable)
        return unlocked - beyond if path[-1] in self._evictable else unlocked

    def _split_at(self, path, length):
        """Split the last edge of ``path`` if ``length`` ends inside; return the path that ends there."""
        beyond = sum(len(node.tokens) for node in path) - length
        if not beyond:
            return path
        lower = path[-1]
        upper = _Node(lower.tokens[:-beyond], lower.parent, lower.num_locks)
        upper.parent.children[upper.tokens[: self.page_size]] = upper
        # The lower part keeps its place in the queue; the upper one is used next, so the end is right.
        if lower in self._evictable:
            self._evictable[upper] = None
        lower.tokens, lower.parent = lower.tokens[-beyond:], upper
        upper.children[lower.tokens[: self.page_size]] = lower
        return [*path[:-1], upper]

    def _use(self, path):
        for node in reversed(path):
            if node in self._evictable:
                self._evictable.move_to_end(node)

    def _grow(self, parent, tokens):
        node = _Node(tokens, parent, num_locks=0)
        parent.children[tokens[: self.page_size]] = node
        self._evictable[node] = None
        self._num_evictable += len(tokens)
        return node

    def _trim(self, leaf, num_tokens):
        self._num_evictable -= num_tokens
        if num_tokens == len(leaf.tokens):
            del self._evictable[leaf]
            del leaf.parent.children[leaf.tokens[: self.page_size]]
        else:
            leaf.tokens = leaf.tokens[:-num_tokens]
        return num_tokens

    def _nodes(self):
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())


@dataclass(frozen=True)
class RadixView:
    """One node as a picture needs it: its edge, how many locks protect it, and its children in order."""

    tokens: tuple[int, ...]
    num_locks: int
    children: tuple["RadixView", ...]


def _view(node):
    children = (node.children[page] for page in sorted(node.children))
    return RadixView(node.tokens, node.num_locks, tuple(_view(child) for child in children))


class _Node:
    """An edge and the node at its end. Compared by identity, so that it can stand in the queue."""

    __slots__ = ("tokens", "parent", "children", "num_locks")

    def __init__(self, tokens, parent, num_locks):
        self.tokens = tokens
        self.parent = parent
        self.children = {}  # first page of a child's edge -> the child
        self.num_locks = num_locks
