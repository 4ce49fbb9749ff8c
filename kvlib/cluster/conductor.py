"""Conductor: where should this request be prefilled, and should its cached prefix come along?

A rule sees what a real scheduler could know at the moment of arrival: the prompt's block ids, what each
instance's cache holds, the predicted work in each queue, and how many pulls share each link. It returns one
:class:`Placement`. Rules with ``pulls`` may copy a prefix from another instance; the copy stays, so popular
prefixes spread by themselves (hot-spot migration).

Source: Qin et al. 2025 (Mooncake), algorithm 1 and section 6.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvlib.errors import ConfigError
from kvlib.specs.checks import one_of, real


class Candidate(NamedTuple):
    """What Conductor knows about one instance when a request arrives.

    A named tuple, because a replay makes one per request and instance.

    Attributes
    ----------
    queue_ns : int
        Predicted work ahead: the rest of the running prefill and all waiting ones.
    assigned_ns : int
        All prefill work ever sent there; it breaks ties between instances that are equally good.
    prefix_blocks : int
        Leading blocks of the prompt in its own cache.
    local_prefill_ns : int
        Prefill with that prefix.
    pulled_blocks : int
        Blocks it would pull first, 0 where Algorithm 1 keeps to the local prefix.
    transfer_ns : int
        Predicted time of that pull.
    pulled_prefill_ns : int
        Prefill after the pull.

    Examples
    --------
    >>> one = Candidate(queue_ns=500, assigned_ns=0, prefix_blocks=4, local_prefill_ns=1600)
    >>> one.local_ttft_ns
    2100
    """

    queue_ns: int
    assigned_ns: int
    prefix_blocks: int
    local_prefill_ns: int
    pulled_blocks: int = 0
    transfer_ns: int = 0
    pulled_prefill_ns: int = 0

    @property
    def local_ttft_ns(self) -> int:
        """T_queue + T_prefill with the local prefix."""
        return self.queue_ns + self.local_prefill_ns

    @property
    def ttft_ns(self) -> int:
        """Algorithm 1's estimate: T_transfer + T_queue + T_prefill, or the local one without a pull."""
        if not self.pulled_blocks:
            return self.local_ttft_ns
        return self.transfer_ns + self.queue_ns + self.pulled_prefill_ns


@dataclass(frozen=True)
class Rule:
    """One way to choose: ``choose(candidates, turn, rng)`` returns an index; ``words`` are for readers."""

    choose: Callable[[Sequence[Candidate], int, random.Random], int]
    pulls: bool
    words: str


def _smallest(candidates, key) -> int:
    """Index of the smallest key; a tie goes to the least work assigned so far, then to the first."""
    order = [(*key(candidate), candidate.assigned_ns, index) for index, candidate in enumerate(candidates)]
    return min(order)[-1]


def _random(candidates, turn, rng):
    return rng.randrange(len(candidates))


def _round_robin(candidates, turn, rng):
    return turn % len(candidates)


def _least_load(candidates, turn, rng):
    return _smallest(candidates, lambda c: (c.queue_ns,))


def _longest_prefix(candidates, turn, rng):
    prefixes = [candidate.prefix_blocks for candidate in candidates]
    return prefixes.index(max(prefixes))


def _cache_aware(candidates, turn, rng):
    return _smallest(candidates, lambda c: (c.local_ttft_ns,))


def _kvcache_centric(candidates, turn, rng):
    return _smallest(candidates, lambda c: (c.ttft_ns,))


POLICIES = {
    "random": Rule(_random, False, "any instance, drawn with equal chances"),
    "round_robin": Rule(_round_robin, False, "instance 0, 1, 2, … in turn"),
    "least_load": Rule(_least_load, False, "the shortest queue, counted in seconds of predicted prefill"),
    "longest_prefix": Rule(
        _longest_prefix, False, "the instance that holds most of the prompt; a tie goes to the first one"
    ),
    "cache_aware": Rule(_cache_aware, False, "the smallest queue + prefill, given what each instance holds"),
    "random_pull": Rule(_random, True, "any instance, and a much longer prefix elsewhere is pulled"),
    "kvcache_centric": Rule(
        _kvcache_centric, True,
        "the smallest transfer + queue + prefill, where a much longer prefix elsewhere is pulled "
        "(Algorithm 1)",
    ),
}  # fmt: skip


def wants_pull(best_blocks: int, local_blocks: int, threshold: float) -> bool:
    """Whether the best prefix elsewhere is long enough to be worth pulling: best ÷ local >= threshold.

    Algorithm 1 divides by the local prefix. Written as a product, an instance with no local prefix pulls
    whatever there is, and nobody pulls where nobody has more.

    Examples
    --------
    >>> wants_pull(18, 4, threshold=2), wants_pull(18, 10, threshold=2), wants_pull(0, 0, threshold=2)
    (True, False, False)
    >>> wants_pull(1, 0, threshold=2)
    True
    """
    return best_blocks > local_blocks and best_blocks >= threshold * local_blocks


def check_threshold(threshold: float) -> float:
    """Return the balancing threshold.

    Raises
    ------
    ConfigError
        Below 1 it would ask instances to pull prefixes shorter than their own.

    Examples
    --------
    >>> check_threshold(0.5)
    Traceback (most recent call last):
    kvlib.errors.ConfigError: threshold: got 0.5, expected a finite number >= 1
    """
    return real("threshold", threshold, minimum=1.0)


class Conductor:
    """Choose an instance for each request by one of `POLICIES`, or refuse it.

    Parameters
    ----------
    policy : str
    ttft_slo_ns : int or None
        A request whose estimated TTFT is longer is refused (HTTP 429); None refuses nobody.
    seed : int
        For the rules that draw.

    Examples
    --------
    The exercise of lecture 9: 20 blocks, 0.1 s each. A holds 4 and has 0.5 s queued; B holds 18 and has 3 s
    queued; pulling 14 blocks takes 28 ms.

    >>> s = 10**9
    >>> a = Candidate(s // 2, 0, 4, local_prefill_ns=16 * s // 10, pulled_blocks=14,
    ...     transfer_ns=28 * s // 1000, pulled_prefill_ns=2 * s // 10)
    >>> b = Candidate(3 * s, 0, 18, local_prefill_ns=2 * s // 10)
    >>> a.local_ttft_ns / s, a.ttft_ns / s, b.ttft_ns / s
    (2.1, 0.728, 3.2)
    >>> Conductor("kvcache_centric").choose([a, b]), Conductor("longest_prefix").choose([a, b])
    (0, 1)
    >>> Conductor("kvcache_centric", ttft_slo_ns=s // 2).choose([a, b]) is None
    True
    """

    def __init__(self, policy: str, ttft_slo_ns: int | None = None, seed: int = 0):
        self.rule = POLICIES[one_of("policy", policy, POLICIES)]
        self._ttft_slo_ns = ttft_slo_ns
        self._rng = random.Random(seed)
        self._turn = 0

    def choose(self, candidates: Sequence[Candidate]) -> int | None:
        """Index of the chosen instance, None if its estimate misses the SLO."""
        if not candidates:
            raise ConfigError("candidates: got none, expected at least 1 instance")
        chosen = self.rule.choose(candidates, self._turn, self._rng)
        self._turn += 1
        if self._ttft_slo_ns is not None and candidates[chosen].ttft_ns > self._ttft_slo_ns:
            return None
        return chosen
