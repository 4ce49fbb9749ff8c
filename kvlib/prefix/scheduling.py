"""In which order to serve a waiting queue, so that prompts with a common prefix meet while it is cached.

Serving the longest cached prefix first visits the radix tree of the queue depth first, which computes every
edge once and is therefore optimal for a queue that is known from the start (SGLang, theorem 3.1: the cache
must hold the longest prompt). Alone it can starve a request that shares nothing, so it comes with a bound.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from kvlib.prefix.block_cache import BlockCache
from kvlib.specs.checks import whole


@dataclass(frozen=True)
class Prompt:
    """One request of a queue.

    Parameters
    ----------
    name : hashable
        Tells it apart from the others.
    tokens : tuple of int
        Its token ids.
    arrives_after : int
        How many requests have been served when it joins the queue; 0 stands there from the start.
    """

    name: Hashable
    tokens: tuple[int, ...]
    arrives_after: int = 0


@dataclass(frozen=True)
class Served:
    """One served request: its place is its index in the list that :func:`serve` returns.

    Attributes
    ----------
    name : hashable
        Of the :class:`Prompt`.
    hit_tokens, computed_tokens : int
        Prompt tokens found in the cache, and the rest.
    overtaken : int
        Younger requests that were served while this one waited.
    """

    name: Hashable
    hit_tokens: int
    computed_tokens: int
    overtaken: int


class LongestPrefixFirst:
    """Pick the waiting request with the longest cached prefix, the oldest of equals.

    The bound (law L5): no request is overtaken more than ``max_overtaken`` times. A request that stands
    behind ``k`` others when it arrives is therefore served after at most ``k + max_overtaken`` others.

    Parameters
    ----------
    max_overtaken : int or None
        0 is first come, first served. ``None`` is no bound: a demonstration of starvation, not a policy.

    Raises
    ------
    ConfigError
        If the bound is neither ``None`` nor a whole number of at least 0.

    Examples
    --------
    >>> policy = LongestPrefixFirst(max_overtaken=1)
    >>> cached = {"old": 0, "young": 16, "younger": 16}.get
    >>> policy.pick(["old", "young"], cached), policy.pick(["old", "younger"], cached)
    (1, 0)
    """

    def __init__(self, max_overtaken: int | None):
        if max_overtaken is not None:
            whole("max_overtaken", max_overtaken, minimum=0)
        self._max_overtaken = max_overtaken
        self._overtaken: dict[Hashable, int] = {}

    def overtaken(self, name: Hashable) -> int:
        """Return how often this waiting request has been overtaken."""
        return self._overtaken.get(name, 0)

    def pick(self, waiting: Sequence[Hashable], hit_tokens: Callable[[Hashable], int]) -> int:
        """Return the index of the request to serve next.

        Parameters
        ----------
        waiting : sequence of hashable
            Names, oldest first, at least one.
        hit_tokens : callable
            From a name to its cached prefix in tokens; not asked when the bound decides.
        """
        chosen = self._choose(waiting, hit_tokens)
        for name in waiting[:chosen]:
            self._overtaken[name] = self.overtaken(name) + 1
        return chosen

    def _choose(self, waiting, hit_tokens):
        # Whoever is older has been overtaken at least as often, so only the oldest can reach the bound.
        if self.overtaken(waiting[0]) == self._max_overtaken:
            return 0
        return max(range(len(waiting)), key=lambda index: (hit_tokens(waiting[index]), -index))


def serve(
    prompts: Sequence[Prompt], num_blocks: int, block_size: int, max_overtaken: int | None
) -> list[Served]:
    """Serve a queue one request at a time on one block cache.

    Parameters
    ----------
    prompts : sequence of Prompt
        In order of arrival.
    num_blocks, block_size : int
        Size of the cache, in blocks and in tokens per block.
    max_overtaken : int or None
        See :class:`LongestPrefixFirst`.

    Returns
    -------
    list of Served
        In the order of service.

    Raises
    ------
    ConfigError
        If a size, the bound or a token is not understood.
    OutOfBlocks
        If a prompt needs more blocks than the cache has.

    Examples
    --------
    Questions about two documents take turns, and the cache holds one of them.

    >>> a, b = (tuple(range(start, start + 8)) for start in (0, 100))
    >>> queue = [Prompt(i, (a, b)[i % 2] + (200 + i,)) for i in range(4)]
    >>> for bound in (0, 2):
    ...     served = serve(queue, num_blocks=3, block_size=4, max_overtaken=bound)
    ...     print([one.name for one in served], sum(one.hit_tokens for one in served))
    [0, 1, 2, 3] 0
    [0, 2, 1, 3] 16
    """
    cache, policy = BlockCache(num_blocks, block_size), LongestPrefixFirst(max_overtaken)
    tokens = {prompt.name: prompt.tokens for prompt in prompts}
    arriving, waiting, served = list(prompts), [], []
    while arriving or waiting:
        # An empty queue does not wait for a count of served requests that may never come.
        while arriving and (arriving[0].arrives_after <= len(served) or not waiting):
            waiting.append(arriving.pop(0).name)
        name = waiting.pop(policy.pick(waiting, lambda name: cache.match_prefix(tokens[name])))
        hit_tokens = cache.allocate(name, tokens[name])
        cache.free(name)
        served.append(Served(name, hit_tokens, len(tokens[name]) - hit_tokens, policy.overtaken(name)))
    return served
