"""Who runs: first come, first served; when memory runs out, the latest arrival gives way and starts again.

Section 4.5 of the PagedAttention paper, with recovery by recomputation: a preempted request loses all its
blocks (all or nothing: half a KV cache is of no use) and, when its turn comes again, prefills its prompt
and the tokens it had generated in one step.
"""

from collections import deque
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Job:
    """A request on its way through the engine.

    Attributes
    ----------
    index : int
        Row in the workload, and the name of the sequence in memory.
    request : object
        What the client sent; only a memory policy looks inside.
    arrival_ps, first_token_ps : int
        Times; the second is None until there is one.
    prefill_tokens : int
        Tokens to compute at (re)admission: the prompt and what has been generated.
    num_tokens : int
        Tokens in memory while it runs: all but the last one generated, whose KV the next step writes.
    final_tokens : int
        Tokens in memory at its end. The very last token is never written: nobody would read its KV.
    padding_slots : int
        Slots held while it runs that it will never use.
    num_preemptions : int
        How often it gave way.
    """

    index: int
    request: object
    arrival_ps: int
    prefill_tokens: int
    final_tokens: int
    num_tokens: int = 0
    padding_slots: int = 0
    first_token_ps: int | None = None
    num_preemptions: int = 0


class Scheduler:
    """First come, first served over one memory policy, one iteration at a time.

    ``running`` and ``waiting`` are both in order of arrival and everyone who runs arrived before everyone who
    waits: admission takes the head of ``waiting``, preemption returns the tail of ``running`` to that
    head. So the oldest request is never preempted while another one runs, and since none is accepted that
    an empty memory could not serve, it always progresses and every run ends.

    ``closed`` says why nobody can be admitted until somebody leaves: ``"memory"``, ``"seats"``
    (``max_num_seqs``), ``"tokens"`` (``max_num_batched_tokens``), or None. A preemption closes the door
    too: the latest arrival gave way because its own memory plus all that was free was too little, so it
    cannot come back before somebody else leaves.

    Parameters
    ----------
    memory : PagedMemory or ReservedMemory
        See :mod:`kvlib.serving.memory`.
    max_num_seqs : int or None
        Most requests that run at once.
    max_num_batched_tokens : int or None
        Most tokens in one step: one for each decoding request, all of a prompt for each prefill.
    """

    def __init__(self, memory, max_num_seqs: int | None = None, max_num_batched_tokens: int | None = None):
        self.memory = memory
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.closed: str | None = None

    def submit(self, job: Job) -> None:
        """Add the latest arrival."""
        self.waiting.append(job)

    @property
    def can_admit(self) -> bool:
        """Whether somebody waits and the door is open."""
        return bool(self.waiting) and self.closed is None

    def decode(self, limit: int) -> tuple[int, list[tuple[int, int]], list[Job]]:
        """Make room for the next tokens, preempting latest arrivals until all who still run can take a step.

        Returns the steps there is room for, at most ``limit``; what memory took for them, as ``(position in
        running, step)``; and who was preempted.
        """
        preempted = []
        while self.running:
            steps, taken = self.memory.grow([job.index for job in self.running], limit)
            if steps:
                return steps, taken, preempted
            preempted.append(self._preempt())
        return limit, [], preempted

    def admit(self) -> list[Job]:
        """Let requests from the head of ``waiting`` run, as long as limits and memory allow; return them."""
        admitted: list[Job] = []
        step_tokens = len(self.running)
        while self.waiting and self._seat_is_free(step_tokens, bool(admitted)):
            job = self.waiting[0]
            held_slots = self.memory.admit(job.index, job.request, job.prefill_tokens)
            if not held_slots:
                self.closed = "memory"
                break
            self.waiting.popleft()
            job.num_tokens = job.prefill_tokens
            job.padding_slots = max(0, held_slots - job.final_tokens)
            step_tokens += job.num_tokens
            self.running.append(job)
            admitted.append(job)
        return admitted

    def leave(self, jobs: list[Job]) -> None:
        """Let finished requests go; whoever waits may try again."""
        for job in jobs:
            self.memory.release(job.index)
            self.running.remove(job)
        self.closed = None

    def _seat_is_free(self, step_tokens: int, someone_admitted: bool) -> bool:
        if self.max_num_seqs is not None and len(self.running) >= self.max_num_seqs:
            self.closed = "seats"
            return False
        budget = self.max_num_batched_tokens
        if budget is not None and step_tokens + self.waiting[0].prefill_tokens > budget:
            # After a step full of prompts there is room again; after one without, only when somebody leaves.
            self.closed = None if someone_admitted else "tokens"
            return False
        return True

    def _preempt(self) -> Job:
        job = self.running.pop()
        self.memory.release(job.index)
        job.prefill_tokens = job.num_tokens + 1
        job.num_preemptions += 1
        self.waiting.appendleft(job)
        self.closed = "memory"
        return job
