"""Who runs: first come, first served; when memory runs out, the latest arrival gives way.

Section 4.5 of the PagedAttention paper. A preempted request loses all the blocks of all its sequences (all or
nothing: half a KV cache is of no use). If the host has room they are copied there and, when its turn comes again, back. If not,
they are dropped, and it prefills its prompt and the tokens it had generated once more.
"""

import math
from collections import deque
from typing import NamedTuple

from kvlib.serving.job import Job


class Decodes(NamedTuple):
    """``steps`` decode steps that memory has room for.

    Attributes
    ----------
    steps : int
    jobs : list of Job
        Who gets a token in each of them.
    taken : list of (position, step)
        ``jobs[position]`` took another unit of memory at this step.
    copies : list of (position, num_copies, filled)
        ``jobs[position]`` copied a block of ``filled`` tokens at the first of them.
    preempted : list of Job
        Who gave way for it.
    """

    steps: int
    jobs: list[Job]
    taken: list[tuple[int, int]]
    copies: list[tuple[int, int, int]]
    preempted: list[Job]


class Intake(NamedTuple):
    """What joins the decodes of one step.

    Attributes
    ----------
    admitted : list of Job
        Who starts to run.
    resumed : list of Job
        Those of them whose blocks come back from the host; they decode in this step.
    chunks : list of (Job, new_tokens)
        What is prefilled.
    """

    admitted: list[Job]
    resumed: list[Job]
    chunks: list[tuple[Job, int]]


NOBODY = Intake([], [], [])


class Scheduler:
    """First come, first served over one memory policy, one iteration at a time.

    ``running`` and ``waiting`` are both in order of arrival and everyone who runs arrived before everyone who
    waits: admission takes the head of ``waiting``, preemption returns the tail of ``running`` to that
    head. So the oldest request is never preempted while another one runs, and since none is accepted that
    an empty memory could not serve, it always progresses and every run ends.

    ``closed`` says why nobody can be admitted until somebody leaves: ``"memory"``, ``"seats"``
    (``max_num_seqs``), ``"tokens"`` (``max_num_batched_tokens``), or None. A preemption closes the door
    too: the latest arrival gave way because its own memory plus all that was free was too little, so it
    cannot come back before somebody else leaves. (With prefix caching, what others write may make the need of
    who waits smaller, if they repeat it. That is not looked at before somebody leaves, either.)

    Parameters
    ----------
    memory : PagedMemory or ReservedMemory
        See :mod:`kvlib.serving.memory`.
    max_num_seqs : int or None
        Most sequences that run at once.
    max_num_batched_tokens : int or None
        Most tokens in one step: one for each decoding sequence, the rest for prefills.
    chunked_prefill : bool
        Cut a prompt to what is left of ``max_num_batched_tokens`` (Agrawal et al., Sarathi-Serve, OSDI 2024);
        otherwise it waits for a step that has room for all of it. Decodes come first either way.

    Examples
    --------
    >>> from kvlib.serving import PagedMemory
    >>> scheduler = Scheduler(PagedMemory(4096, 16), max_num_seqs=8)
    >>> len(scheduler.running), len(scheduler.waiting)
    (0, 0)
    """

    def __init__(
        self,
        memory,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        chunked_prefill: bool = False,
    ):
        self.memory = memory
        self.max_num_seqs = math.inf if max_num_seqs is None else max_num_seqs
        self.max_num_batched_tokens = math.inf if max_num_batched_tokens is None else max_num_batched_tokens
        self.chunked_prefill = chunked_prefill
        # Every running sequence will take a token in each step, and a seat.
        self._most_sequences = min(self.max_num_seqs, self.max_num_batched_tokens)
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.closed: str | None = None

    def submit(self, job: Job) -> None:
        """Add the latest arrival."""
        self.waiting.append(job)

    @property
    def most_prefill_tokens(self) -> float:
        """Most tokens that a request can bring to its prefill; in chunks there is no limit."""
        return math.inf if self.chunked_prefill else self.max_num_batched_tokens

    @property
    def has_intake(self) -> bool:
        """Whether somebody may be admitted or is in the middle of a prefill."""
        if self.waiting and self.closed is None:
            return True
        return self.chunked_prefill and any(job.is_prefilling for job in self.running)

    def decode(self, limit: int) -> Decodes:
        """Make room for the next tokens, preempting latest arrivals until all who still run can take a step.

        For ``limit`` steps at most, and for one only if blocks must be swapped out before it.
        """
        preempted = []
        if self.memory.is_restless:
            self.memory.select([job.index for job in self._decoding()])
        while jobs := self._decoding():
            growth = self.memory.grow([job.index for job in jobs], limit)
            if growth.steps:
                return Decodes(growth.steps, jobs, growth.taken, growth.copies, preempted)
            preempted.append(self._preempt())
            if preempted[-1].swapped_slots:
                limit = 1
        return Decodes(limit, [], [], [], preempted)

    def admit(self) -> Intake:
        """Go on with prefills, then let the head of ``waiting`` run, as long as limits and memory allow."""
        intake = Intake([], [], [])
        room = self.max_num_batched_tokens
        for job in self.running:
            room -= self._chunk(job, room, intake) if job.is_prefilling else job.size
        while self.waiting and self.closed is None and self._find_seat(room, intake):
            job = self.waiting[0]
            if not self._take_memory(job):
                self.closed = "memory"
                break
            self.running.append(self.waiting.popleft())
            intake.admitted.append(job)
            room -= self._resume(job, intake) if job.swapped_slots else self._chunk(job, room, intake)
        return intake

    def leave(self, finished: list[Job]) -> list[Job]:
        """Let finished requests go and return those that are done with; whoever waits may try again.

        All of them here; a static batch keeps them until its last one.
        """
        for job in finished:
            self.memory.release(job.index)
            self.running.remove(job)
        self.closed = None
        return finished

    # Steps

    def _decoding(self) -> list[Job]:
        if not self.chunked_prefill:  # whoever was admitted is past its prompt
            return list(self.running)
        return [job for job in self.running if not job.is_prefilling]

    def _find_seat(self, room: float, intake: Intake) -> bool:
        """Whether the limits let the head of the queue in now; else the door closes, and says why."""
        job = self.waiting[0]
        if self._most_sequences < math.inf:
            num_sequences = job.size + sum([one.size for one in self.running])
            if num_sequences > self._most_sequences:
                self.closed = "seats" if num_sequences > self.max_num_seqs else "tokens"
                return False
        if not job.swapped_slots:
            job.cached_tokens = self.memory.cached_tokens(job.index, job.request, job.prefill_tokens)
        prefill_tokens = 1 if self.chunked_prefill else job.prefill_tokens - job.cached_tokens
        if room < (job.size if job.swapped_slots else prefill_tokens):
            # After a step with prompts there is room again; after one without, only when somebody leaves.
            self.closed = None if intake.chunks else "tokens"
            return False
        return True

    def _take_memory(self, job: Job) -> bool:
        """Let a request into memory, if there is room for it now."""
        if job.swapped_slots:
            room, decoding_from = self.memory.swap_in(job.index), job.num_tokens + job.size
        else:
            room = self.memory.admit(job.index, job.request, job.prefill_tokens)
            decoding_from = job.prefill_tokens
        if room is None:
            return False
        if job.swapped_slots:
            job.capacity = decoding_from + room.empty_slots
        else:
            job.num_tokens = job.cached_tokens
            job.capacity = job.cached_tokens + room.empty_slots
        left = (job.capacity - decoding_from) // room.num_tails
        job.padding_slots = room.num_tails * max(0, left - job.steps_from(decoding_from))
        return True

    def _chunk(self, job: Job, room: float, intake: Intake) -> int:
        new_tokens = min(job.prefill_tokens - job.num_tokens, max(0, room))
        if new_tokens:
            intake.chunks.append((job, new_tokens))
        return new_tokens

    def _resume(self, job: Job, intake: Intake) -> int:
        job.num_tokens += job.size
        intake.resumed.append(job)
        return job.size

    def _preempt(self) -> Job:
        job = self.running.pop()
        # The KV of half a prompt is not worth the copy.
        job.swapped_slots = 0 if job.is_prefilling else self.memory.swap_out(job.index)
        if not job.swapped_slots:
            self.memory.preempt(job.index, job.num_tokens)
            job.dropped_tokens = job.num_tokens
            if not job.is_prefilling:
                job.prefill_tokens = job.num_tokens + job.size
        job.num_preemptions += 1
        self.waiting.appendleft(job)
        self.closed = "memory"
        return job
