"""A link that several transfers share: each gets an equal part of its rate while they run."""

import heapq

from kvlib.cost import transfer_s
from kvlib.specs.hardware import LinkSpec

NS_PER_S = 10**9


class SharedLink:
    """The sending side of one instance's network card.

    Equal shares mean that all transfers receive the same number of bytes per second, so it is enough to
    count how many bytes each of them has received since the start (the *level*) and to finish a transfer when
    the level has risen by its size. Receiving is never the limit here: an instance prefills one request at
    a time, so little arrives at once.

    Examples
    --------
    Two transfers of 10 bytes at 10 bytes/s: alone one takes a second, together both take two.

    >>> link = SharedLink(LinkSpec("ten bytes a second", 10))
    >>> link.estimate_ns(10)
    1000000000
    >>> link.start(0, 10, "a"); link.start(0, 10, "b")
    >>> link.next_end_ns(), link.finish(2 * NS_PER_S)
    (2000000000, ['a', 'b'])
    """

    def __init__(self, spec: LinkSpec):
        self._spec = spec
        self._running = []  # (level at which it is done, sequence number, tag)
        self._level = 0.0
        self._now_ns = 0
        self._started = 0

    @property
    def num_running(self) -> int:
        """Transfers under way."""
        return len(self._running)

    def estimate_ns(self, num_bytes: int) -> int:
        """Time for one more transfer if those under way went on as long as it does."""
        return round(NS_PER_S * transfer_s(num_bytes, self._spec, sharing=len(self._running) + 1))

    def start(self, now_ns: int, num_bytes: int, tag) -> None:
        """Start a transfer; ``tag`` comes back when it is done."""
        self._advance(now_ns)
        # The fixed time of a copy is charged as the bytes that could have moved meanwhile.
        work = num_bytes + self._spec.overhead_s * self._spec.effective_bytes_per_s
        heapq.heappush(self._running, (self._level + work, self._started, tag))
        self._started += 1

    def next_end_ns(self) -> int | None:
        """When the next transfer ends if no other one starts; None if nothing is under way."""
        if not self._running:
            return None
        left = self._running[0][0] - self._level
        share = self._spec.effective_bytes_per_s / len(self._running)
        return self._now_ns - int(-left * NS_PER_S // share)  # rounded up to a whole nanosecond

    def finish(self, now_ns: int) -> list:
        """Take out what is done by now; returns the tags."""
        self._advance(now_ns)
        done = []
        # The level is a float: less than a byte short is rounding.
        while self._running and self._running[0][0] - self._level < 1.0:
            done.append(heapq.heappop(self._running)[2])
        return done

    def _advance(self, now_ns: int) -> None:
        if self._running:
            share = self._spec.effective_bytes_per_s / len(self._running)
            self._level += share * (now_ns - self._now_ns) / NS_PER_S
        self._now_ns = now_ns
