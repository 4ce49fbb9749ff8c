"""The prefill pool at work: queues, pulls and prefills, event by event, in whole nanoseconds."""

import heapq
from collections import deque
from dataclasses import dataclass, field

from kvlib.cluster.conductor import Candidate, Conductor, check_threshold, wants_pull
from kvlib.cluster.links import SharedLink
from kvlib.cluster.pool import BlockPool
from kvlib.cluster.prefill_times import PrefillTimes
from kvlib.specs.hardware import LinkSpec
from kvlib.workloads.request import Request


@dataclass
class Job:
    """One accepted request on its way to its first token.

    ``reused_blocks`` counts the local prefix and what was pulled; ``pulled_blocks`` only the latter.
    """

    request: Request
    instance: int
    arrival_ns: int
    prefill_ns: int
    estimated_ttft_ns: int
    reused_blocks: int
    pulled_blocks: int
    source: int | None = None
    pulled_ns: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None

    @property
    def awaits_pull(self) -> bool:
        """Whether KV is still on its way."""
        return self.pulled_blocks > 0 and self.pulled_ns is None

    @property
    def ttft_ns(self) -> int:
        """From arrival to the end of the prefill, which is the first token."""
        return self.end_ns - self.arrival_ns


@dataclass
class Instance:
    """One prefill instance: it prefills one request at a time, in order of arrival."""

    waiting: deque = field(default_factory=deque)
    waiting_ns: int = 0
    running: Job | None = None
    assigned_ns: int = 0
    busy_ns: int = 0
    num_jobs: int = 0

    def queue_ns(self, now_ns: int) -> int:
        """Predicted work ahead of a request that arrives now."""
        rest = self.running.end_ns - now_ns if self.running else 0
        return rest + self.waiting_ns


class PrefillCluster:
    """Instances with caches and links, and a Conductor in front of them.

    A pull starts at once and runs while the request waits in its queue, so the sum in Algorithm 1's estimate
    is cautious; a link that gets crowded after the decision makes it too low. What a placement counts on
    stays until it has been read, even if the cache gives it up meanwhile.

    Parameters
    ----------
    pool : BlockPool
    conductor : Conductor
    times : PrefillTimes
    block_size : int
        Tokens per block.
    kv_bytes_per_token : int
    link : LinkSpec
        Sending rate of each instance.
    threshold : float
        Balancing threshold, at least 1: see `wants_pull`.
    """

    def __init__(
        self, pool: BlockPool, conductor: Conductor, times: PrefillTimes, block_size: int,
        kv_bytes_per_token: int, link: LinkSpec, threshold: float,
    ):
        self.pool = pool
        self.instances = [Instance() for _ in range(pool.instances)]
        self.jobs: list[Job] = []
        self.now_ns = 0
        self.num_rejected = 0
        self._conductor = conductor
        self._times = times
        self._block_size = block_size
        self._block_bytes = block_size * kv_bytes_per_token
        self._links = [SharedLink(link) for _ in self.instances]
        self._threshold = check_threshold(threshold)
        self._events = []  # (time, sequence number, handler, argument)
        self._sequence = 0

    def submit(self, now_ns: int, request: Request) -> Job | None:
        """Let everything up to now happen, then place the request; None if Conductor refuses it."""
        self.run_until(now_ns)
        self.now_ns = now_ns
        matches = self.pool.match(request.block_ids)
        best, source = self._best_offer(matches.offered)
        candidates = self._candidates(now_ns, request, matches.held, best, source)
        chosen = self._conductor.choose(candidates)
        if chosen is None:
            self.num_rejected += 1
            return None
        job = self._accept(now_ns, request, chosen, candidates[chosen], source)
        self._start_next(now_ns, chosen)
        return job

    def run_until(self, now_ns: int | None = None) -> None:
        """Handle all events up to now, or all there are."""
        while self._events and (now_ns is None or self._events[0][0] <= now_ns):
            time_ns, _, handler, argument = heapq.heappop(self._events)
            handler(time_ns, argument)

    def _best_offer(self, offered: list[int]) -> tuple[int, int | None]:
        """The longest prefix that may be pulled, from the instance with the fewest pulls under way."""
        best = max(offered)
        if not best:
            return 0, None
        holders = (index for index, blocks in enumerate(offered) if blocks == best)
        return best, min(holders, key=lambda index: (self._links[index].num_running, index))

    def _candidates(self, now_ns, request, held, best, source) -> list[Candidate]:
        pulls = self._conductor.rule.pulls
        predicted = {}  # prefill time by cached blocks: many instances hold equally much
        candidates = []
        for instance, local in zip(self.instances, held):
            if local not in predicted:
                predicted[local] = self._prefill_ns(request, local)
            ahead = (instance.queue_ns(now_ns), instance.assigned_ns, local, predicted[local])
            if pulls and wants_pull(best, local, self._threshold):
                if best not in predicted:
                    predicted[best] = self._prefill_ns(request, best)
                transfer_ns = self._links[source].estimate_ns((best - local) * self._block_bytes)
                candidates.append(Candidate(*ahead, best - local, transfer_ns, predicted[best]))
            else:
                candidates.append(Candidate(*ahead))
        return candidates

    def _prefill_ns(self, request: Request, cached_blocks: int) -> int:
        # Even a prompt that is cached to its end computes its last token: that gives the first output token.
        cached_tokens = min(cached_blocks * self._block_size, request.num_input_tokens - 1)
        return self._times.prefill_ns(request.num_input_tokens - cached_tokens, cached_tokens)

    def _accept(self, now_ns: int, request: Request, chosen: int, candidate: Candidate, source: int) -> Job:
        pulled = candidate.pulled_blocks
        prefill_ns = candidate.pulled_prefill_ns if pulled else candidate.local_prefill_ns
        job = Job(
            request, chosen, now_ns, prefill_ns, candidate.ttft_ns, candidate.prefix_blocks + pulled, pulled,
            source if pulled else None,
        )
        instance = self.instances[chosen]
        instance.waiting.append(job)
        instance.waiting_ns += prefill_ns
        instance.assigned_ns += prefill_ns
        instance.num_jobs += 1
        self.jobs.append(job)
        self.pool.store(chosen, request.block_ids)
        if pulled:
            self._links[source].start(now_ns, pulled * self._block_bytes, job)
            self._expect_link(source)
        return job

    def _start_next(self, now_ns: int, index: int) -> None:
        instance = self.instances[index]
        if instance.running or not instance.waiting or instance.waiting[0].awaits_pull:
            return
        job = instance.running = instance.waiting.popleft()
        instance.waiting_ns -= job.prefill_ns
        instance.busy_ns += job.prefill_ns
        job.start_ns, job.end_ns = now_ns, now_ns + job.prefill_ns
        self._expect(job.end_ns, self._prefill_ended, job)

    def _prefill_ended(self, now_ns: int, job: Job) -> None:
        self.instances[job.instance].running = None
        if self._conductor.rule.pulls:
            self.pool.offer(job.instance, job.request.block_ids)
        self._start_next(now_ns, job.instance)

    def _link_ended(self, now_ns: int, source: int) -> None:
        # Another pull may have started since this was expected; then nothing is done yet.
        for job in self._links[source].finish(now_ns):
            job.pulled_ns = now_ns
            self._start_next(now_ns, job.instance)
        self._expect_link(source)

    def _expect_link(self, source: int) -> None:
        end_ns = self._links[source].next_end_ns()
        if end_ns is not None:
            self._expect(end_ns, self._link_ended, source)

    def _expect(self, time_ns: int, handler, argument) -> None:
        heapq.heappush(self._events, (time_ns, self._sequence, handler, argument))
        self._sequence += 1
