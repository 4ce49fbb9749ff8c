"""The serving engine: iteration-level scheduling (continuous batching) under a memory policy.

Yu et al., "Orca" (OSDI 2022): the batch is decided anew before every step. In one step each running sequence
gets one token: those just admitted by a prefill, the others by a decode. The loop below takes many equal
decode steps at once, up to the next event that could change a decision; the times are integers, so it
arrives exactly where single steps would.
"""

from collections.abc import Iterable, Iterator

from kvlib.errors import ConfigError
from kvlib.serving.clock import PS_PER_S, DecodeSteps, StepClock
from kvlib.serving.groups import group_size
from kvlib.serving.job import Job
from kvlib.serving.metrics import LatencySums, Occupancy
from kvlib.serving.results import RequestOutcome, ServingResult, Stretch
from kvlib.serving.scheduler import NOBODY, Decodes, Intake, Scheduler
from kvlib.specs.checks import real, whole


class Engine:
    """One engine, good for one run.

    Parameters
    ----------
    scheduler : Scheduler
        Decides who runs, over a memory policy.
    clock : StepClock
        Says how long a step takes.
    max_len : int
        Longest prompt plus output that is accepted.
    record : bool
        Keep a row per request and per stretch. Without, the memory of a run does not grow with the number of
        completed requests.

    Examples
    --------
    >>> from kvlib.serving import PagedMemory, Scheduler, StepClock
    >>> from kvlib.specs import get_gpu, get_link, get_model
    >>> from kvlib.workloads import sharegpt_like
    >>> clock = StepClock(get_model("opt-13b"), get_gpu("a100-40gb"), 1, get_link("pcie4-x16"), block_size=16)
    >>> engine = Engine(Scheduler(PagedMemory(4096, 16)), clock, max_len=2048)
    >>> engine.run(sharegpt_like(10, rate=1.0, seed=0)).completed
    10
    """

    def __init__(self, scheduler: Scheduler, clock: StepClock, max_len: int, record: bool = True):
        self.scheduler = scheduler
        self.clock = clock
        self.max_len = max_len
        self.record = record
        self._now_ps = 0
        self._occupancy = Occupancy(scheduler.memory.num_slots)
        self._latencies = LatencySums()
        self._outcomes: list[RequestOutcome] = []
        self._timeline: list[Stretch] = []
        self._submitted = self._completed = self._rejected = self._num_steps = 0
        self._preemptions = self._recomputed_tokens = self._swapped_tokens = self._output_tokens = 0
        self._prompt_tokens = self._hit_tokens = 0
        self._running_time = 0  # running requests times picoseconds
        self._deadlocked = False

    def run(self, requests: Iterable) -> ServingResult:
        """Serve ``requests``, in order of arrival, to the end or into a deadlock.

        Raises
        ------
        ConfigError
            Naming the row, for a request that is malformed or arrives before the one above it.
        """
        jobs = _read_jobs(requests)
        upcoming = next(jobs, None)
        start_ps = self._now_ps = upcoming.arrival_ps if upcoming else 0
        while not self._deadlocked and (upcoming or self.scheduler.waiting or self.scheduler.running):
            while upcoming and upcoming.arrival_ps <= self._now_ps:
                self._receive(upcoming)
                upcoming = next(jobs, None)
            if self.scheduler.waiting or self.scheduler.running:
                self._advance(upcoming.arrival_ps if upcoming else None)
            elif upcoming:
                self._idle_until(upcoming.arrival_ps)
        return self._result(self._now_ps - start_ps)

    # One turn of the loop

    def _receive(self, job: Job) -> None:
        self._submitted += 1
        self.scheduler.memory.check(f"requests[{job.index}]", job.request)
        total_tokens = job.request.num_input_tokens + job.request.num_output_tokens
        if total_tokens > self.max_len:
            self._reject(job, f"prompt + output is {total_tokens} tokens, above max_len={self.max_len}")
        elif job.size > self.scheduler.max_num_seqs or job.size > self.scheduler.max_num_batched_tokens:
            self._reject(job, f"its {job.size} sequences never fit in one step")
        elif job.final_tokens > self.scheduler.most_prefill_tokens:
            self._reject(job, f"if it gave way, its {job.size} sequences would never fit in one step again")
        elif not self.scheduler.memory.fits_alone(job.request):
            self._reject(job, f"does not fit in an empty memory of {self._occupancy.num_slots} slots")
        else:
            self.scheduler.submit(job)

    def _advance(self, next_arrival_ps: int | None) -> None:
        """One step if somebody may join in; else all the decode steps up to the next event."""
        scheduler = self.scheduler
        decodes = scheduler.decode(1 if scheduler.has_intake else self._steps_ahead(next_arrival_ps))
        copying_ps = self._preempted(decodes.preempted)
        intake = scheduler.admit() if scheduler.has_intake else NOBODY
        if not (decodes.jobs or intake.admitted or intake.chunks):
            self._stop_in_deadlock()
        elif decodes.steps == 1:
            self._finish(self._one_step(decodes, intake, copying_ps), decodes, intake)
        else:
            self._finish(self._many_steps(decodes), decodes, intake)

    def _steps_ahead(self, next_arrival_ps: int | None) -> int:
        """Decode steps to the first completion or, if nobody waits before it, to the next arrival."""
        running = self.scheduler.running
        if self.scheduler.memory.is_restless:
            return 1
        limit = min([job.steps_from(job.num_tokens) for job in running])
        if next_arrival_ps is None or self.scheduler.waiting:
            return limit
        return self._equal_steps(running).steps_until(next_arrival_ps - self._now_ps, limit)

    def _equal_steps(self, jobs: list[Job]) -> DecodeSteps:
        num_sequences = sum([job.size for job in jobs])
        kv_tokens = sum([job.num_tokens + job.read_again for job in jobs])
        return self.clock.steps(num_sequences, kv_tokens + num_sequences)

    def _grow(self, decodes: Decodes) -> list[tuple[int, int]]:
        """Count the new tokens of all who decode; when slots were taken, and how many are padding."""
        jobs, unit_slots, growth, num_tokens = decodes.jobs, self.scheduler.memory.unit_slots, [], 0
        for position, num_copies, filled in decodes.copies:
            job = jobs[position]  # its copies will be filled as far as the block itself
            self._hold(job, num_copies * (unit_slots - filled), num_copies * job.padding_slots)
        for position, step in decodes.taken:
            job = jobs[position]
            padding = max(0, step + unit_slots - job.steps_from(job.num_tokens))
            job.capacity += unit_slots
            job.padding_slots += padding
            growth.append((step, padding))
        for job in jobs:
            new_tokens = decodes.steps * job.size
            job.num_tokens += new_tokens
            num_tokens += new_tokens
        self._occupancy.empty += len(growth) * unit_slots - num_tokens
        self._occupancy.padding += sum([padding for _, padding in growth])
        return growth

    def _hold(self, job: Job, slots: int, padding: int) -> None:
        """Count empty slots that a request has taken, some of which it will never use."""
        job.capacity += slots
        job.padding_slots += padding
        self._occupancy.empty += slots
        self._occupancy.padding += padding

    def _take_on(self, job: Job) -> None:
        self._occupancy.empty += job.empty_slots
        self._occupancy.padding += job.padding_slots

    def _let_go(self, job: Job) -> None:
        self._occupancy.empty -= job.empty_slots
        self._occupancy.padding -= job.padding_slots

    def _one_step(self, decodes: Decodes, intake: Intake, copying_ps: int) -> int:
        """One step of decodes and prefills, after the copies to and from the host; its duration."""
        occupancy = self._occupancy
        self._grow(decodes)
        for job in intake.admitted:
            self._count_admission(job)
            self._take_on(job)
        for job in intake.resumed:
            copying_ps += self.clock.swap_ps(job.swapped_slots)
            job.swapped_slots = 0
        decoding = decodes.jobs + intake.resumed
        duration_ps = copying_ps + self.clock.step_ps(
            [piece for job, new_tokens in intake.chunks for piece in job.pieces(new_tokens)],
            sum([job.size for job in decoding]),
            sum([job.num_tokens + job.read_again for job in decoding]),
        )
        for job, new_tokens in intake.chunks:
            job.num_tokens += new_tokens
            occupancy.empty -= new_tokens
        occupancy.stay(duration_ps, self.scheduler.memory.held_slots, self._is_short)
        return duration_ps

    def _many_steps(self, decodes: Decodes) -> int:
        """Equal decode steps of all who run; their duration."""
        occupancy, memory = self._occupancy, self.scheduler.memory
        steps = self._equal_steps(decodes.jobs)
        growth, held_slots = self._grow(decodes), memory.held_slots
        used_at_first = held_slots - occupancy.empty - (decodes.steps - 1) * steps.num_decodes
        # A shared token is held once and read by everybody.
        shared_reads = steps.kv_tokens - used_at_first
        duration_ps = steps.elapsed_ps(decodes.steps)
        held_time, padding_time = duration_ps * held_slots, duration_ps * occupancy.padding
        for step, padding in growth:
            not_yet_ps = steps.elapsed_ps(step)
            held_time -= memory.unit_slots * not_yet_ps
            padding_time -= padding * not_yet_ps
        used_time = steps.token_time(decodes.steps) - shared_reads * duration_ps
        occupancy.add(duration_ps, used_time, held_time, padding_time, self._is_short)
        return duration_ps

    def _finish(self, duration_ps: int, decodes: Decodes, intake: Intake) -> None:
        scheduler = self.scheduler
        start_ps, running = self._now_ps, scheduler.running
        self._now_ps += duration_ps
        self._num_steps += decodes.steps
        self._running_time += len(running) * duration_ps
        for job, _ in intake.chunks:
            if job.first_token_ps is None and job.request.num_output_tokens and not job.is_prefilling:
                job.first_token_ps = self._now_ps
        finished = [job for job in running if job.num_tokens == job.final_tokens]
        if self.record:
            self._timeline.append(self._stretch(start_ps, decodes, intake, finished))
        if finished:
            self._complete(finished)

    def _stretch(self, start_ps: int, decodes: Decodes, intake: Intake, finished: list[Job]) -> Stretch:
        scheduler = self.scheduler
        num_moving = len(decodes.jobs) + len(intake.resumed) + len(intake.chunks)
        stalled = []
        if num_moving < len(scheduler.running):
            moving = [*decodes.jobs, *intake.resumed, *(job for job, _ in intake.chunks)]
            stalled = [job for job in scheduler.running if job not in moving]
        return Stretch(
            start_ps / PS_PER_S,
            self._now_ps / PS_PER_S,
            decodes.steps,
            len(scheduler.running),
            len(scheduler.waiting),
            _indices(decodes.preempted),
            _indices([job for job in decodes.preempted if job.swapped_slots]),
            _indices(intake.admitted),
            tuple((job.index, new_tokens) for job, new_tokens in intake.chunks),
            _indices(stalled),
            _indices(finished),
            self._occupancy.split(scheduler.memory.held_slots, self._is_short),
        )

    def _idle_until(self, time_ps: int) -> None:
        self._occupancy.stay(time_ps - self._now_ps, self.scheduler.memory.held_slots, is_short=False)
        self._now_ps = time_ps

    # What happens to requests

    @property
    def _is_short(self) -> bool:
        return self.scheduler.closed == "memory"

    def _count_admission(self, job: Job) -> None:
        if job.swapped_slots:
            return
        if job.num_preemptions:
            self._recomputed_tokens += max(0, job.dropped_tokens - job.cached_tokens)
        else:
            self._prompt_tokens += job.prompt_tokens
            self._hit_tokens += job.cached_tokens

    def _preempted(self, jobs: list[Job]) -> int:
        """Take those who gave way off the books; the time to copy their blocks to the host."""
        copying_ps = 0
        for job in jobs:
            self._preemptions += 1
            self._let_go(job)
            if job.swapped_slots:
                self._swapped_tokens += job.num_tokens
                copying_ps += self.clock.swap_ps(job.swapped_slots)
        return copying_ps

    def _complete(self, finished: list[Job]) -> None:
        for job in finished:
            # Nobody reads this KV again: as long as it is held, its slots are empty, and for good.
            self._hold(job, job.num_tokens, job.num_tokens)
        for job in self.scheduler.leave(finished):
            self._let_go(job)
            self._completed += 1
            num_output_tokens = job.request.num_output_tokens
            self._output_tokens += job.size * num_output_tokens
            self._latencies.complete(job.arrival_ps, job.first_token_ps, self._now_ps, num_output_tokens)
            self._keep(job, finish_s=self._now_ps / PS_PER_S)

    def _stop_in_deadlock(self) -> None:
        """Everyone who runs waits for memory that only another one could give back."""
        self._deadlocked = True
        for job in [*self.scheduler.running, *self.scheduler.waiting]:
            self._keep(job)

    def _reject(self, job: Job, reason: str) -> None:
        self._rejected += 1
        self._keep(job, rejection=reason)

    def _keep(self, job: Job, finish_s: float | None = None, rejection: str = "") -> None:
        if self.record:
            self._outcomes.append(
                RequestOutcome(
                    job.index,
                    job.request.arrival_s,
                    job.request.num_input_tokens,
                    job.request.num_output_tokens,
                    None if job.first_token_ps is None else job.first_token_ps / PS_PER_S,
                    finish_s,
                    job.num_preemptions,
                    rejection,
                    job.size,
                )
            )

    def _result(self, duration_ps: int) -> ServingResult:
        shares = self._occupancy.shares()
        return ServingResult(
            submitted=self._submitted,
            completed=self._completed,
            rejected=self._rejected,
            deadlocked=self._deadlocked,
            preemptions=self._preemptions,
            recomputed_tokens=self._recomputed_tokens,
            swapped_tokens=self._swapped_tokens,
            output_tokens=self._output_tokens,
            prompt_tokens=self._prompt_tokens,
            hit_tokens=self._hit_tokens,
            duration_s=duration_ps / PS_PER_S,
            num_steps=self._num_steps,
            **self._latencies.means_s(),
            mean_running=self._running_time / duration_ps if duration_ps else 0.0,
            utilisation=shares["used"],
            utilisation_by_kind=shares,
            per_request=tuple(sorted(self._outcomes, key=lambda outcome: outcome.index)),
            timeline=tuple(self._timeline),
        )


def _indices(jobs: list[Job]) -> tuple[int, ...]:
    return tuple([job.index for job in jobs])


def _read_jobs(requests: Iterable) -> Iterator[Job]:
    """Check each row as it comes, so that a workload may be a generator of any length."""
    latest_s = 0.0
    for row, request in enumerate(requests):
        name = f"requests[{row}]"
        arrival_s = real(f"{name}.arrival_s", request.arrival_s)
        num_input_tokens = whole(f"{name}.num_input_tokens", request.num_input_tokens)
        num_output_tokens = whole(f"{name}.num_output_tokens", request.num_output_tokens, minimum=0)
        if arrival_s < latest_s:
            raise ConfigError(
                f"{name}.arrival_s: got {arrival_s!r}, expected {latest_s!r} (the row above) or later"
            )
        latest_s = arrival_s
        size = whole(f"{name}.num_sequences", group_size(request))
        yield Job(
            index=row,
            request=request,
            arrival_ps=round(arrival_s * PS_PER_S),
            prompt_tokens=num_input_tokens,
            final_tokens=num_input_tokens + size * max(0, num_output_tokens - 1),
            prefill_tokens=num_input_tokens,
            size=size,
            read_again=(size - 1) * num_input_tokens,
        )
