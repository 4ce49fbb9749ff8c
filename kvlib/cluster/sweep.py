"""Sweep loads, policies and seeds over all cores, and say how far the seeds lie apart."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from kvlib.cluster.prefill_results import PrefillReplay
from kvlib.cluster.replay import replay_prefill
from kvlib.errors import ConfigError
from kvlib.specs.checks import whole


@dataclass(frozen=True)
class SweepPoint:
    """One run of a sweep."""

    policy: str
    speed: float
    seed: int
    result: PrefillReplay


@dataclass(frozen=True)
class Spread:
    """A mean over seeds with the lowest and the highest of them."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of at least one value.

        Examples
        --------
        >>> Spread.of([1.0, 2.0, 6.0])
        Spread(mean=3.0, low=1.0, high=6.0)
        """
        if not values:
            raise ConfigError("values: got none, expected at least 1")
        return cls(math.fsum(values) / len(values), min(values), max(values))


def sweep_prefill(
    make_trace: Callable, seeds: Sequence[int], policies: Sequence[str], speeds: Sequence[float] = (1.0,), *,
    jobs: int = 1, progress: Callable[[int, int], None] | None = None, **knobs,
) -> list[SweepPoint]:
    """Replay a drawn trace for every seed, policy and speed.

    Parameters
    ----------
    make_trace : callable
        A seed in, a trace out. With several jobs it must be importable, not a lambda.
    jobs : int
        Processes. 1 needs none, and is the only choice in a browser.
    progress : callable, optional
        Called with (runs done, runs in all) as results arrive.
    **knobs
        Fields of ``PrefillSetup``. The seed also goes to the rules that draw.

    Returns
    -------
    list of SweepPoint
        In the order of seeds, then policies, then speeds, however many jobs there are.

    Examples
    --------
    >>> from functools import partial
    >>> from kvlib.workloads import conversation_like
    >>> points = sweep_prefill(partial(conversation_like, 100), (0, 1), ("random", "cache_aware"))
    >>> [(point.seed, point.policy) for point in points]
    [(0, 'random'), (0, 'cache_aware'), (1, 'random'), (1, 'cache_aware')]
    """
    runs = product(seeds, policies, speeds)
    tasks = [(make_trace, seed, policy, speed, knobs) for seed, policy, speed in runs]
    points = []
    for point in _results(tasks, jobs):
        points.append(point)
        if progress:
            progress(len(points), len(tasks))
    return points


def _results(tasks, jobs: int):
    if jobs == 1:
        return map(_one_run, tasks)
    return _from_processes(tasks, whole("jobs", jobs))


def _from_processes(tasks, jobs: int):
    # Imported late: a browser has no processes, and one job needs none.
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(jobs) as executor:
        yield from executor.map(_one_run, tasks)


def _one_run(task) -> SweepPoint:
    make_trace, seed, policy, speed, knobs = task
    result = replay_prefill(make_trace(seed), policy=policy, speed=speed, seed=seed, **knobs)
    return SweepPoint(policy, speed, seed, result)
