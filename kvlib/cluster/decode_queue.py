"""A decode instance that keeps a time for every request: KV arrives, waits for room, and decodes to its end.

The instance of chapter 11 (`kvlib.cluster.decode_pool`) only counts. Here each request is judged by its own
time between tokens, so its end matters.
"""

import heapq
from collections.abc import Iterable

from kvlib.errors import ConfigError
from kvlib.serving.clock import StepClock
from kvlib.specs.checks import whole


def decode_ends_ps(clock: StepClock, kv_slots: int, arrivals: Iterable[tuple[int, int, int]]) -> list[int]:
    """When each request has its last token.

    First come, first served. A request joins at a step boundary, once the slots of its *final* length are
    free: nobody is preempted, since its KV came from another machine and could not be recomputed here.

    Parameters
    ----------
    clock : StepClock
    kv_slots : int
        Token slots of KV memory.
    arrivals : iterable of (time_ps, num_tokens, steps)
        In order: when its KV is here, how many tokens that is, and how many decode steps it wants (at least
        1).

    Returns
    -------
    list of int
        End times in picoseconds, in the order of ``arrivals``.

    Raises
    ------
    ConfigError
        If arrivals are out of order, or a request could never fit.

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_model
    >>> clock = StepClock(get_model("opt-13b"), get_gpu("a100-40gb"))
    >>> alone, = decode_ends_ps(clock, 2000, [(0, 1000, 1)])
    >>> alone == clock.step_ps((), 1, 1001)
    True
    """
    waiting = list(arrivals)
    for (before, _, _), (after, _, _) in zip(waiting, waiting[1:]):
        if after < before:
            raise ConfigError(f"arrivals: got {after} ps after {before} ps, expected order")
    for _, num_tokens, steps in waiting:
        if whole("num_tokens", num_tokens) + whole("steps", steps) > kv_slots:
            raise ConfigError(f"num_tokens: got {num_tokens} + {steps}, expected at most {kv_slots} slots")
    return _Batch(clock, kv_slots).run(waiting)


class _Batch:
    def __init__(self, clock: StepClock, kv_slots: int):
        self.clock = clock
        self.free_slots = kv_slots
        self.now_ps = self.steps_done = self.kv_tokens = 0
        # A heap of (step at which it leaves, number, final tokens).
        self.running: list[tuple[int, int, int]] = []

    def run(self, arrivals) -> list[int]:
        ends, upcoming = [0] * len(arrivals), 0
        while upcoming < len(arrivals) or self.running:
            while upcoming < len(arrivals) and self._join(upcoming, *arrivals[upcoming]):
                upcoming += 1
            if not self.running:
                self.now_ps = arrivals[upcoming][0]
                continue
            blocked = upcoming == len(arrivals) or arrivals[upcoming][0] <= self.now_ps
            self._advance(None if blocked else arrivals[upcoming][0])
            while self.running and self.running[0][0] == self.steps_done:
                _, number, final_tokens = heapq.heappop(self.running)
                ends[number] = self.now_ps
                self.free_slots += final_tokens
                self.kv_tokens -= final_tokens + 1
        return ends

    def _join(self, number: int, time_ps: int, num_tokens: int, steps: int) -> bool:
        if time_ps > self.now_ps or num_tokens + steps > self.free_slots:
            return False
        heapq.heappush(self.running, (self.steps_done + steps, number, num_tokens + steps))
        self.free_slots -= num_tokens + steps
        self.kv_tokens += num_tokens + 1  # the coming step's token included
        return True

    def _advance(self, until_ps: int | None) -> None:
        """Equal steps to the next end, or to the first boundary at which somebody can join."""
        batch = self.clock.steps(len(self.running), self.kv_tokens)
        steps = self.running[0][0] - self.steps_done
        if until_ps is not None:
            steps = batch.steps_until(until_ps - self.now_ps, limit=steps)
        self.now_ps += batch.elapsed_ps(steps)
        self.steps_done += steps
        self.kv_tokens += steps * len(self.running)
