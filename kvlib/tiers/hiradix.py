"""HiRadixTree: the radix tree of chapter 7, with a place for every page: GPU, CPU or SSD.

Each tier is a radix tree of its own, and each evicts the tail of a path before its head. So along any path a
tier holds a prefix, and one length per tier says where every page lies. Pages that are queued or being
computed have *transient nodes*, so that a second request can wait for them instead of computing them again.
Source: Strata (arXiv 2508.18572), section 5; SGLang's HiCache documentation (places, write policies).
"""

from collections.abc import Hashable
from dataclasses import dataclass

from kvlib.errors import ConfigError, UnknownSequence
from kvlib.prefix.hashing import checked_tokens
from kvlib.specs.checks import one_of, whole
from kvlib.tiers.tier import PlacedNode, Tier, placed_nodes

WRITE_POLICIES = ("write_through", "write_through_selective", "write_back")
TIERS = ("gpu", "cpu", "ssd")


@dataclass(frozen=True, slots=True)
class Located:
    """Where a sequence's leading tokens lie: each count starts where the one before ends.

    Attributes
    ----------
    gpu : int
        Tokens whose KV is on the GPU.
    cpu : int
        Further ones that are in host memory and need the link.
    ssd : int
        Further ones that are only on the SSD.
    transient : int
        Further ones that another request is queued to compute, or computes now.
    """

    gpu: int
    cpu: int
    ssd: int
    transient: int

    @property
    def cached(self) -> int:
        """Tokens that need not be computed, whatever the tier."""
        return self.gpu + self.cpu + self.ssd


class HiRadixTree:
    """Prefix cache over up to three tiers. A call that raises has changed nothing.

    - ``locate(tokens, name)`` says where they lie and marks them as used in every tier that holds them.
    - ``queue(name, tokens)`` hangs a transient node for what is not cached: others can see that it is coming.
    - ``begin(name, tokens)`` brings the cached part to the GPU and locks it there until ``finish``; returns
      `Located` as it was. The node is now being computed.
    - ``finish(name)`` stores the computed KV on the GPU, backs it up as the write policy says, unlocks.
    - ``prefetch(tokens)`` copies to the host what of them lies only on the SSD; returns how many that were.

    Write policies: ``write_through`` copies new KV to the host at once; ``write_through_selective`` copies
    only what has been used twice; ``write_back`` copies what the GPU evicts. The host passes on to the SSD
    what it evicts.

    Parameters
    ----------
    gpu_tokens, cpu_tokens, ssd_tokens : int
        Capacities; 0 for a host or an SSD that is not there.
    page_size : int
        Tokens per page.
    write_policy : str

    Examples
    --------
    >>> tree = HiRadixTree(gpu_tokens=8, cpu_tokens=64)
    >>> _ = tree.begin("a", range(6)); tree.finish("a")
    >>> _ = tree.begin("b", range(100, 106)); tree.finish("b")          # pushes the tail of "a" off the GPU
    >>> tree.locate(range(6))
    Located(gpu=2, cpu=4, ssd=0, transient=0)
    """

    def __init__(
        self, gpu_tokens: int, cpu_tokens: int, ssd_tokens: int = 0, page_size: int = 1,
        write_policy: str = "write_through",
    ):
        whole("gpu_tokens", gpu_tokens)
        self.page_size = whole("page_size", page_size)
        self.write_policy = one_of("write_policy", write_policy, WRITE_POLICIES)
        whole("cpu_tokens", cpu_tokens, minimum=0)
        whole("ssd_tokens", ssd_tokens, minimum=0)
        self._ssd = Tier(ssd_tokens, page_size) if ssd_tokens else None
        self._cpu = Tier(cpu_tokens, page_size, self._to_ssd if ssd_tokens else None) if cpu_tokens else None
        self._gpu = Tier(gpu_tokens, page_size, self._back_up if write_policy == "write_back" else None)
        self._nodes: dict[tuple, _Transient] = {}           # path up to the node's first page -> node
        self._by_name: dict[Hashable, _Transient] = {}
        self.copied_tokens = dict.fromkeys(("gpu_to_cpu", "cpu_to_gpu", "ssd_to_cpu", "cpu_to_ssd"), 0)

    # Questions

    def locate(self, tokens, name: Hashable = None) -> Located:
        """Where `tokens` lie, for a request called `name` (its own transient node does not count)."""
        return self._locate(self._whole_pages(tokens), name)

    def nodes(self) -> tuple[PlacedNode, ...]:
        """The tree as it is drawn: one node per stretch that lies in the same tiers and was hit as often."""
        places: dict[tuple, dict] = {}
        for name, tier in zip(TIERS, (self._gpu, self._cpu, self._ssd)):
            for path, edge, hits in tier.edges() if tier else ():
                for end in range(len(path) - len(edge) + self.page_size, len(path) + 1, self.page_size):
                    page = places.setdefault(path[:end], {"tiers": [], "hits": 0})
                    page["tiers"].append(name)
                    page["hits"] = max(page["hits"], hits)
        return placed_nodes(places, self.page_size)

    def transients(self) -> list[tuple]:
        """(name, tokens, state) of every transient node, in the order in which they were hung."""
        return [(node.name, node.tokens, node.state) for node in self._by_name.values()]

    # Verbs

    def queue(self, name: Hashable, tokens) -> Located:
        """Hang (or move) the transient node of a waiting request; see the class contract.

        Raises
        ------
        ConfigError
            If the request was begun already.
        """
        tokens = self._whole_pages(tokens)
        self._refuse_begun(name)
        located = self._locate(tokens, name)
        self._hang(_Transient(name, tokens, located.cached, self.page_size))
        return located

    def begin(self, name: Hashable, tokens) -> Located:
        """Load what is cached and lock it on the GPU; see the class contract.

        Raises
        ------
        ConfigError
            If the request was begun already.
        OutOfBlocks
            If what is locked leaves no room on the GPU.
        """
        tokens = self._whole_pages(tokens)
        self._refuse_begun(name)
        located = self._locate(tokens, name)
        reused = tokens[: located.cached]
        self._gpu.insert(reused)                        # the only step that can be refused, so it comes first
        self._gpu.lock(reused)
        for tier in self._tiers():
            tier.count_hit(reused)
        self.copied_tokens["cpu_to_gpu"] += located.cpu + located.ssd
        if located.ssd:
            self.copied_tokens["ssd_to_cpu"] += located.ssd
            self._keep(self._cpu, reused)
        node = _Transient(name, tokens, located.cached, self.page_size)
        node.state = "computing"
        self._hang(node)
        return located

    def finish(self, name: Hashable) -> None:
        """Store what `name` has computed; see the class contract.

        Raises
        ------
        UnknownSequence
            If it was not begun.
        OutOfBlocks
            If what is locked leaves no room on the GPU.
        """
        node = self._by_name.get(name)
        if node is None or node.state != "computing":
            raise UnknownSequence(f"name: got {name!r}, expected a request that was begun")
        self._gpu.insert(node.tokens)
        self._gpu.unlock(node.tokens[: node.num_reused])
        self._unhang(name)
        used_once, used_twice = len(node.tokens), node.num_reused
        backed_up = {"write_through": used_once, "write_through_selective": used_twice, "write_back": 0}
        self._back_up(node.tokens[: backed_up[self.write_policy]])

    def prefetch(self, tokens) -> int:
        """Copy pages from the SSD to the host; see the class contract."""
        tokens = self._whole_pages(tokens)
        if not self._ssd or not self._cpu:
            return 0
        here = max(self._gpu.match_prefix(tokens), self._cpu.match_prefix(tokens))
        there = self._ssd.match_prefix(tokens)
        if there <= here:
            return 0
        self._keep(self._cpu, tokens[:there])
        self.copied_tokens["ssd_to_cpu"] += there - here
        return there - here

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless every tier is sound and every transient node has one owner."""
        for tier in self._tiers():
            tier.check_integrity()
        owned = all(self._by_name[node.name] is node for node in self._nodes.values())
        assert owned, "a transient node has lost its owner"
        computing = any(node.state == "computing" and node.num_reused for node in self._by_name.values())
        assert computing or not self._gpu.num_protected, "something is locked that nobody uses"

    # Steps

    def _tiers(self) -> list[Tier]:
        return [tier for tier in (self._gpu, self._cpu, self._ssd) if tier]

    def _whole_pages(self, tokens) -> tuple:
        tokens = checked_tokens(tokens)
        return tokens[: len(tokens) // self.page_size * self.page_size]

    def _locate(self, tokens: tuple, name) -> Located:
        gpu = self._gpu.match_prefix(tokens)
        host = max(gpu, self._cpu.match_prefix(tokens)) if self._cpu else gpu
        cached = max(host, self._ssd.match_prefix(tokens)) if self._ssd else host
        node = self._nodes.get(tokens[: cached + self.page_size])
        is_others = node is not None and node.name != name
        coming = _num_common(node.tokens, tokens, self.page_size) - cached if is_others else 0
        return Located(gpu, host - gpu, cached - host, coming)

    def _refuse_begun(self, name) -> None:
        if name in self._by_name and self._by_name[name].state == "computing":
            raise ConfigError(f"name: got {name!r}, which is being computed, expected another request")

    def _hang(self, node) -> None:
        self._unhang(node.name)
        self._by_name[node.name] = node
        # The first to come for these pages computes them; whoever comes later can see that.
        self._nodes.setdefault(node.key, node)

    def _unhang(self, name) -> None:
        node = self._by_name.pop(name, None)
        if node and self._nodes.get(node.key) is node:
            del self._nodes[node.key]

    def _keep(self, tier, tokens) -> int:
        """Store a path in a lower tier; of one that is too long for it, the head."""
        return tier.insert(tokens[: tier.capacity_tokens // self.page_size * self.page_size]) if tier else 0

    def _back_up(self, tokens) -> None:
        self.copied_tokens["gpu_to_cpu"] += self._keep(self._cpu, tokens)

    def _to_ssd(self, tokens) -> None:
        self.copied_tokens["cpu_to_ssd"] += self._keep(self._ssd, tokens)


class _Transient:
    """KV that is queued to be computed, or being computed; `key` is the path up to its first page."""

    __slots__ = ("name", "tokens", "num_reused", "key", "state")

    def __init__(self, name: Hashable, tokens: tuple, num_reused: int, page_size: int):
        self.name = name
        self.tokens = tokens
        self.num_reused = num_reused
        self.key = tokens[: num_reused + page_size]
        self.state = "queued"


def _num_common(first: tuple, second: tuple, page_size: int) -> int:
    """Length of the common prefix in whole pages."""
    for start in range(0, min(len(first), len(second)), page_size):
        if first[start : start + page_size] != second[start : start + page_size]:
            return start
    return min(len(first), len(second))
