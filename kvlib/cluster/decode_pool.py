"""The decode side of Conductor: pick the instance with the shortest step, and check again on arrival.

A decode step takes longer with every request in the batch and with every token of KV it reads. Admission
compares the time of a step *with* the new request (its time between tokens, TBT) with the SLO: once when the
request arrives, and again when its prefill is done, because others may have come in meanwhile.
"""

import heapq
from dataclasses import dataclass

from kvlib.cluster.links import NS_PER_S
from kvlib.cluster.prefill_cluster import Job, PrefillCluster
from kvlib.serving.clock import StepClock
from kvlib.specs.checks import real, whole
from kvlib.workloads.request import Request

PS_PER_NS = 1000


class DecodeInstance:
    """A decoding batch that skips over equal steps; times in picoseconds.

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_model
    >>> instance = DecodeInstance(StepClock(get_model("llama-2-70b"), get_gpu("a800-80gb"), num_gpus=8))
    >>> instance.join(1000, steps=3)
    >>> instance.num_running, instance.kv_tokens
    (1, 1001)
    >>> instance.advance(10**12)
    >>> instance.num_running, instance.kv_tokens, instance.num_finished
    (0, 0, 1)
    """

    def __init__(self, clock: StepClock):
        self.num_running = 0
        self.kv_tokens = 0  # those of the coming step included
        self.num_finished = 0
        self._clock = clock
        self._now_ps = 0
        self._steps_done = 0
        self._leaving = []  # (step after which it leaves, tokens it then takes with it)

    def step_with_ps(self, num_tokens: int) -> int:
        """Duration of the next step if a request of ``num_tokens`` of KV took part."""
        return self._clock.step_ps((), self.num_running + 1, self.kv_tokens + num_tokens + 1)

    def join(self, num_tokens: int, steps: int) -> None:
        """Take in a request of ``num_tokens`` of KV for ``steps`` steps, at the next step's start."""
        heapq.heappush(self._leaving, (self._steps_done + whole("steps", steps), num_tokens + 1 + steps))
        self.num_running += 1
        self.kv_tokens += num_tokens + 1

    def advance(self, now_ps: int) -> None:
        """Run the steps that start before ``now_ps``."""
        while self._leaving and self._now_ps < now_ps:
            run = self._clock.steps(self.num_running, self.kv_tokens)
            count = run.steps_until(now_ps - self._now_ps, limit=self._leaving[0][0] - self._steps_done)
            self._now_ps += run.elapsed_ps(count)
            self._steps_done += count
            self.kv_tokens += count * self.num_running
            self._let_go()
        self._now_ps = max(self._now_ps, now_ps)

    def _let_go(self) -> None:
        while self._leaving and self._leaving[0][0] == self._steps_done:
            self.kv_tokens -= heapq.heappop(self._leaving)[1]
            self.num_running -= 1
            self.num_finished += 1


class DecodePool:
    """Decode instances with an SLO on the time between tokens.

    Parameters
    ----------
    instances : int
    clock : StepClock
    tbt_slo_s : float

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_model
    >>> clock = StepClock(get_model("llama-2-70b"), get_gpu("a800-80gb"), num_gpus=8)
    >>> pool = DecodePool(2, clock, tbt_slo_s=0.1)
    >>> pool.select(now_ns=0, num_tokens=1000) is pool.instances[0]
    True
    >>> DecodePool(2, clock, tbt_slo_s=0.001).select(now_ns=0, num_tokens=1000) is None
    True
    """

    def __init__(self, instances: int, clock: StepClock, tbt_slo_s: float):
        self.instances = [DecodeInstance(clock) for _ in range(whole("decode_instances", instances))]
        self._slo_ps = round(real("tbt_slo_s", tbt_slo_s, above=True) * NS_PER_S) * PS_PER_NS

    def select(self, now_ns: int, num_tokens: int) -> DecodeInstance | None:
        """The instance with the shortest next step, this request included; None if it misses the SLO."""
        for instance in self.instances:
            instance.advance(now_ns * PS_PER_NS)
        best = min(self.instances, key=lambda instance: instance.step_with_ps(num_tokens))
        return best if best.step_with_ps(num_tokens) <= self._slo_ps else None


@dataclass
class DecodeCounts:
    """What became of requests at the decode pool's two checks."""

    rejected_on_arrival: int = 0
    rejected_after_prefill: int = 0
    wasted_prefill_ns: int = 0
    admitted: int = 0


class PairedCluster(PrefillCluster):
    """A prefill pool whose finished requests go on to a decode pool.

    Conductor asks the decode pool first; the decode instance checks again when the prefill is done. A request
    refused there has wasted its prefill, which chapter 12 is about.
    """

    def __init__(self, *prefill, decode_pool: DecodePool):
        super().__init__(*prefill)
        self.decode_pool = decode_pool
        self.counts = DecodeCounts()

    def submit(self, now_ns: int, request: Request) -> Job | None:
        """As `PrefillCluster.submit`, behind the first of the two checks."""
        self.run_until(now_ns)
        if self.decode_pool.select(now_ns, request.num_input_tokens) is None:
            self.counts.rejected_on_arrival += 1
            self.num_rejected += 1
            return None
        return super().submit(now_ns, request)

    def _prefill_ended(self, now_ns: int, job: Job) -> None:
        super()._prefill_ended(now_ns, job)
        request = job.request
        instance = self.decode_pool.select(now_ns, request.num_input_tokens)
        if instance is None:
            self.counts.rejected_after_prefill += 1
            self.counts.wasted_prefill_ns += job.prefill_ns
            return
        self.counts.admitted += 1
        if request.num_output_tokens > 1:  # the prefill gave the first token
            instance.join(request.num_input_tokens, request.num_output_tokens - 1)
