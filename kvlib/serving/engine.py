"""The serving engine: iteration-level scheduling (continuous batching) under a memory policy.

Yu et al., "Orca" (OSDI 2022): the batch is decided anew before every step. In one step each running request
gets one token: those just admitted by a prefill, the others by a decode. The loop below takes many equal
decode steps at once, up to the next event that could change a decision; the times are integers, so it
arrives exactly where single steps would.
"""

from collections.abc import Iterable, Iterator

from kvlib.errors import ConfigError
from kvlib.serving.clock import PS_PER_S, StepClock
from kvlib.serving.metrics import LatencySums, Occupancy
from kvlib.serving.results import RequestOutcome, ServingResult, Stretch
from kvlib.serving.scheduler import Job, Scheduler
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
        self._submitted = self._completed = self._rejected = self._preemptions = 0
        self._recomputed_tokens = self._num_steps = 0
        self._running_time = 0  # running requests times picoseconds

    def run(self, requests: Iterable) -> ServingResult:
        """Serve ``requests``, in order of arrival, to the end.

        Raises
        ------
        ConfigError
            Naming the row, for a request that is malformed or arrives before the one above it.
        """
        jobs = _read_jobs(requests)
        upcoming = next(jobs, None)
        start_ps = self._now_ps = upcoming.arrival_ps if upcoming else 0
        while upcoming or self.scheduler.waiting or self.scheduler.running:
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
        total_tokens = job.request.num_input_tokens + job.request.num_output_tokens
        if total_tokens > self.max_len:
            self._reject(job, f"prompt + output is {total_tokens} tokens, above max_len={self.max_len}")
        elif not self.scheduler.memory.fits_alone(job.request):
            self._reject(job, f"does not fit in an empty memory of {self._occupancy.num_slots} slots")
        else:
            self.scheduler.submit(job)

    def _advance(self, next_arrival_ps: int | None) -> None:
        """One step if somebody may be admitted in it; else all the decode steps up to the next event."""
        scheduler = self.scheduler
        limit = 1 if scheduler.can_admit else self._steps_ahead(next_arrival_ps)
        steps, taken, preempted = scheduler.decode(limit)
        self._preempted(preempted)
        growth = self._grow(steps, taken)
        admitted = scheduler.admit() if scheduler.can_admit else []
        duration_ps = self._prefill(admitted) if admitted else self._decode(steps, growth)
        self._finish(duration_ps, steps, preempted, admitted)

    def _steps_ahead(self, next_arrival_ps: int | None) -> int:
        """Decode steps to the first completion or, if nobody waits before it, to the next arrival."""
        running = self.scheduler.running
        limit = min(job.final_tokens - job.num_tokens for job in running)
        if next_arrival_ps is None or self.scheduler.waiting:
            return limit
        decodes = self.clock.steps(len(running), self._occupancy.used + len(running))
        return decodes.steps_until(next_arrival_ps - self._now_ps, limit)

    def _grow(self, steps: int, taken: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Count ``steps`` more tokens of all who run; when slots were taken, and how many are padding."""
        unit_slots, running, growth = self.scheduler.memory.unit_slots, self.scheduler.running, []
        for position, step in taken:
            job = running[position]
            padding = max(0, job.num_tokens + step + unit_slots - job.final_tokens)
            job.padding_slots += padding
            self._occupancy.padding += padding
            growth.append((step, padding))
        for job in running:
            job.num_tokens += steps
        self._occupancy.used += steps * len(running)
        return growth

    def _prefill(self, admitted: list[Job]) -> int:
        """One step that prefills ``admitted`` and decodes one token of the others; its duration."""
        occupancy = self._occupancy
        num_decodes, kv_tokens = len(self.scheduler.running) - len(admitted), occupancy.used
        for job in admitted:
            occupancy.used += job.num_tokens
            occupancy.padding += job.padding_slots
        duration_ps = self.clock.step_ps([(job.num_tokens, 0) for job in admitted], num_decodes, kv_tokens)
        occupancy.stay(duration_ps, self.scheduler.memory.held_slots, self._is_short)
        return duration_ps

    def _decode(self, steps: int, growth: list[tuple[int, int]]) -> int:
        """``steps`` equal decode steps of all who run; their duration."""
        occupancy, memory, num_running = self._occupancy, self.scheduler.memory, len(self.scheduler.running)
        decodes = self.clock.steps(num_running, occupancy.used - (steps - 1) * num_running)
        duration_ps = decodes.elapsed_ps(steps)
        held_time, padding_time = duration_ps * memory.held_slots, duration_ps * occupancy.padding
        for step, padding in growth:
            not_yet_ps = decodes.elapsed_ps(step)
            held_time -= memory.unit_slots * not_yet_ps
            padding_time -= padding * not_yet_ps
        occupancy.add(duration_ps, decodes.token_time(steps), held_time, padding_time, self._is_short)
        return duration_ps

    def _finish(self, duration_ps: int, steps: int, preempted: list[Job], admitted: list[Job]) -> None:
        scheduler = self.scheduler
        start_ps, num_running = self._now_ps, len(scheduler.running)
        self._now_ps += duration_ps
        self._num_steps += steps
        self._running_time += num_running * duration_ps
        for job in admitted:
            if job.first_token_ps is None and job.request.num_output_tokens:
                job.first_token_ps = self._now_ps
        finished = [job for job in scheduler.running if job.num_tokens == job.final_tokens]
        if self.record:
            self._timeline.append(
                Stretch(
                    start_ps / PS_PER_S,
                    self._now_ps / PS_PER_S,
                    steps,
                    num_running,
                    len(scheduler.waiting),
                    _indices(preempted),
                    _indices(admitted),
                    _indices(finished),
                    self._occupancy.split(scheduler.memory.held_slots, self._is_short),
                )
            )
        if finished:
            self._complete(finished)

    def _idle_until(self, time_ps: int) -> None:
        self._occupancy.stay(time_ps - self._now_ps, held=0, is_short=False)
        self._now_ps = time_ps

    # What happens to requests

    @property
    def _is_short(self) -> bool:
        return self.scheduler.closed == "memory"

    def _preempted(self, jobs: list[Job]) -> None:
        for job in jobs:
            self._forget_slots(job)
            self._preemptions += 1
            self._recomputed_tokens += job.num_tokens

    def _complete(self, jobs: list[Job]) -> None:
        for job in jobs:
            self._forget_slots(job)
            self._completed += 1
            num_output_tokens = job.request.num_output_tokens
            self._latencies.complete(job.arrival_ps, job.first_token_ps, self._now_ps, num_output_tokens)
            self._keep(job, finish_s=self._now_ps / PS_PER_S)
        self.scheduler.leave(jobs)

    def _forget_slots(self, job: Job) -> None:
        self._occupancy.used -= job.num_tokens
        self._occupancy.padding -= job.padding_slots

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
                )
            )

    def _result(self, duration_ps: int) -> ServingResult:
        shares = self._occupancy.shares()
        return ServingResult(
            submitted=self._submitted,
            completed=self._completed,
            rejected=self._rejected,
            preemptions=self._preemptions,
            recomputed_tokens=self._recomputed_tokens,
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
    return tuple(job.index for job in jobs)


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
        yield Job(
            index=row,
            request=request,
            arrival_ps=round(arrival_s * PS_PER_S),
            prefill_tokens=num_input_tokens,
            final_tokens=num_input_tokens + max(0, num_output_tokens - 1),
        )
