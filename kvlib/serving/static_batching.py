"""Static batching: a batch is put together once and stays until its last request is done.

How FasterTransformer was served in section 6.1 of the PagedAttention paper: the earliest arrivals, as many as
fit when each reserves the maximum length. Yu et al. (Orca, OSDI 2022, section 2) name the two costs: a
request that is done early is not returned early, and one that arrives early waits for the whole batch.
"""

from kvlib.serving.job import Job
from kvlib.serving.scheduler import Intake, Scheduler


class StaticScheduler(Scheduler):
    """Admits only when everybody has left, and lets everybody leave together.

    A request that is done keeps its memory but takes no more part in the steps, which is kind to the policy:
    an engine of that kind may compute padding for it. ``closed`` is ``"batch"`` while a batch runs.

    Parameters
    ----------
    Those of :class:`~kvlib.serving.scheduler.Scheduler`.

    Examples
    --------
    >>> from kvlib.serving import simulate
    >>> from kvlib.workloads import sharegpt_like
    >>> chats = sharegpt_like(100, rate=0.5, seed=0)
    >>> simulate(chats, memory="static").normalized_latency_s > simulate(chats, memory="max").normalized_latency_s
    True
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._done: list[Job] = []

    def admit(self) -> Intake:
        """Put a batch together, and close the door behind it."""
        intake = super().admit()
        self.closed = "batch"
        return intake

    def leave(self, finished: list[Job]) -> list[Job]:
        """Let finished requests stand aside; hand all of them over when the last one is done."""
        for job in finished:
            self.running.remove(job)
        self._done += finished
        if self.running:
            return []
        batch, self._done = self._done, []
        for job in batch:
            self.memory.release(job.index)
        self.closed = None
        return batch
