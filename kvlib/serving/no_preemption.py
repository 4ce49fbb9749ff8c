"""Neither reservation nor preemption: whoever finds no memory stalls, and sooner or later all do.

The trap that section 4.5 of the PagedAttention paper avoids. Every request holds blocks and waits for one
more that only another could give back: a deadlock in the textbook sense.
"""

from kvlib.serving.scheduler import Decodes, Scheduler


class StallingScheduler(Scheduler):
    """Lets a request without room for its next token wait in place, holding what it has.

    Examples
    --------
    >>> from kvlib.serving import simulate
    >>> from kvlib.workloads import fixed_lengths
    >>> two = fixed_lengths(2, 1e6, 0, num_input_tokens=8, num_output_tokens=16)
    >>> simulate(two, num_slots=32, block_size=4, preemption=False).deadlocked
    True
    """

    def decode(self, limit: int) -> Decodes:
        """Make room for the next tokens of all, or of whoever still finds some, oldest first."""
        jobs = self._decoding()
        if not jobs:
            return Decodes(limit, [], [], [], [])
        if self.memory.is_restless:
            self.memory.select([job.index for job in jobs])
        growth = self.memory.grow([job.index for job in jobs], limit)
        if growth.steps:
            return Decodes(growth.steps, jobs, growth.taken, growth.copies, [])
        able, taken, copies = [], [], []
        for job in jobs:
            growth = self.memory.grow([job.index], 1)
            if growth.steps:
                taken += [(len(able), step) for _, step in growth.taken]
                copies += [(len(able), *copied) for _, *copied in growth.copies]
                able.append(job)
        return Decodes(1, able, taken, copies, [])
