"""Which waiting requests to prefill together: first come first served, or balanced (Strata, algorithm 1).

A batch loads cached KV over the link while it computes new tokens, layer by layer, so it lasts as long as the
longer of the two. Two requests that mostly load should not share a batch while others that mostly compute
wait. Times are whole nanoseconds.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from kvlib.errors import ConfigError
from kvlib.specs.checks import one_of, real, whole

POLICIES = ("fcfs", "balanced")

# How many waiting requests the composer looks at for one batch, at least: bounds its work on a long queue.
LOOK_AHEAD = 32


@dataclass(frozen=True, slots=True)
class Work:
    """What one waiting request needs.

    Attributes
    ----------
    name : hashable
        Whose it is.
    load_ns : int
        Loading its cached context over the link.
    compute_ns : int
        Prefilling its new tokens.
    context : hashable, optional
        What it loads. Requests of one batch that name the same context load it once (a bundle hit).
    """

    name: Hashable
    load_ns: int
    compute_ns: int
    context: Hashable | None = None

    def __post_init__(self) -> None:
        whole("load_ns", self.load_ns, minimum=0)
        whole("compute_ns", self.compute_ns, minimum=0)


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that prefill together.

    Examples
    --------
    Two questions about one document: it crosses the link once.

    >>> batch = Batch((Work("a", 100, 10, context="doc"), Work("b", 100, 10, context="doc")))
    >>> batch.load_ns, batch.compute_ns, batch.duration_ns, batch.stall_ns
    (100, 20, 100, 80)
    """

    works: tuple[Work, ...]

    @property
    def load_ns(self) -> int:
        draft = _Draft(limit=1.0)
        for work in self.works:
            draft.add(work)
        return draft.load_ns

    @property
    def compute_ns(self) -> int:
        return sum(work.compute_ns for work in self.works)

    @property
    def duration_ns(self) -> int:
        """With loading hidden behind computing, layer by layer, as far as it can be."""
        return max(self.load_ns, self.compute_ns)

    @property
    def stall_ns(self) -> int:
        """Time the GPU waits for the link."""
        return self.duration_ns - self.compute_ns


def looked_at(batch_size: int) -> int:
    """How many waiting requests are looked at to fill a batch of that size.

    Examples
    --------
    >>> looked_at(4), looked_at(64)
    (32, 64)
    """
    return max(LOOK_AHEAD, batch_size)


def compose(
    queue: Iterable[Work], batch_size: int, policy: str = "balanced", limit: float = 1.0, bundle: bool = True
) -> Batch:
    """The next batch from the requests waiting in `queue`, oldest first.

    ``fcfs`` takes the oldest. ``balanced`` starts with the oldest request, so that nobody starves; lets
    requests in that load what the batch loads already; then walks the queue and defers whoever would make the
    batch loading-bound, or more so than it is; and fills what is left with the deferred, in order.

    Parameters
    ----------
    queue : iterable of Work
        Only the first `looked_at(batch_size)` are looked at.
    batch_size : int
        Requests in a batch at most.
    policy : str
        ``"fcfs"`` or ``"balanced"``.
    limit : float
        A batch is loading-bound when loading takes more than `limit` times as long as computing. (Strata
        counts tokens instead: cached over new, with a limit of 100 on its own machine.)
    bundle : bool
        Let requests in first that share a context with the batch.

    Raises
    ------
    ConfigError
        For an unknown policy, or a size or limit that is not positive.

    Notes
    -----
    Source: Strata (arXiv 2508.18572), section 5, algorithm 1, as lecture 9, s4.3 tells it. Starting with the
    oldest is our reading of "the next batch starts from the head of the queue": a request with q others
    before it rides in one of the next q + 1 batches.

    Examples
    --------
    Two requests that load for 100 ns and compute for 10, then two with 5 and 80.

    >>> queue = [Work("q1", 100, 10), Work("q2", 100, 10), Work("n1", 5, 80), Work("n2", 5, 80)]
    >>> [[work.name for work in compose(queue, 2, policy).works] for policy in ("fcfs", "balanced")]
    [['q1', 'q2'], ['q1', 'n1']]
    """
    one_of("policy", policy, POLICIES)
    whole("batch_size", batch_size)
    real("limit", limit, above=True)
    waiting = list(islice(queue, looked_at(batch_size)))
    if policy == "fcfs":
        return Batch(tuple(waiting[:batch_size]))
    return Batch(tuple(_balanced(waiting, batch_size, limit, bundle)))


def _balanced(waiting: list[Work], batch_size: int, limit: float, bundle: bool) -> list[Work]:
    draft = _Draft(limit)
    deferred = []
    if waiting:
        draft.add(waiting[0])
    others = waiting[1:]
    if bundle:
        # A shared context costs the link nothing more, so whoever needs it too comes first.
        others.sort(key=lambda work: not draft.loads(work.context))
    for work in others:
        if len(draft.works) == batch_size:
            break
        if draft.would_wait_longer_with(work):
            deferred.append(work)
        else:
            draft.add(work)
    for work in deferred[: batch_size - len(draft.works)]:
        draft.add(work)
    return draft.works


class _Draft:
    """A batch under construction, with its sums kept as requests join."""

    def __init__(self, limit: float):
        self.works: list[Work] = []
        self.load_ns = 0
        self._limit = limit
        self._compute_ns = 0
        self._loaded: dict[Hashable, int] = {}

    def loads(self, context: Hashable | None) -> bool:
        return context in self._loaded

    def would_wait_longer_with(self, work: Work) -> bool:
        """Would the batch be loading-bound with `work`, and more so than without?"""
        excess_ns = self.load_ns - self._limit * self._compute_ns
        extra_ns = self._extra_load_ns(work) - self._limit * work.compute_ns
        return excess_ns + extra_ns > max(0, excess_ns)

    def add(self, work: Work) -> None:
        self.load_ns += self._extra_load_ns(work)
        self._compute_ns += work.compute_ns
        if work.context is not None:
            self._loaded[work.context] = max(work.load_ns, self._loaded.get(work.context, 0))
        self.works.append(work)

    def _extra_load_ns(self, work: Work) -> int:
        return max(0, work.load_ns - self._loaded.get(work.context, 0))


def batches(
    queue: Sequence[Work], batch_size: int, policy: str = "balanced", limit: float = 1.0, bundle: bool = True
) -> list[Batch]:
    """Empty a queue to which nothing is added, batch by batch.

    Parameters and errors are those of :func:`compose`.

    Examples
    --------
    >>> queue = [Work("q1", 100, 10), Work("q2", 100, 10), Work("n1", 5, 80), Work("n2", 5, 80)]
    >>> [sum(batch.duration_ns for batch in batches(queue, 2, policy)) for policy in ("fcfs", "balanced")]
    [360, 210]
    """
    left = {work.name: work for work in queue}
    if len(left) != len(queue):
        raise ConfigError(f"queue: got {len(queue)} requests with {len(left)} names, expected one name each")
    made = []
    while left:
        made.append(compose(left.values(), batch_size, policy, limit, bundle))
        for work in made[-1].works:
            del left[work.name]
    return made
