"""Sweep the load: latency over the arrival rate, and the highest rate within a limit.

Figures 12, 14, 16 and 17 of the PagedAttention paper (Kwon et al., SOSP 2023) are such sweeps: below a
server's capacity the latency is flat, beyond it the queue grows for as long as anybody watches.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from kvlib.errors import ConfigError
from kvlib.serving.results import ServingResult
from kvlib.serving.simulation import simulate
from kvlib.specs.checks import real, whole

LIMIT_S = 0.050
# Where a search starts, and where it gives up: nothing we simulate serves 262,144 requests a second.
FIRST_RATE, LAST_RATE = 1.0, 2.0**18


@dataclass(frozen=True)
class RatePoint:
    """One run of a curve; ``rate`` is what was offered, in requests per second."""

    rate: float
    result: ServingResult


def run_at(
    workload: Callable, rate: float, *, num_requests: int = 500, seed: int = 0, record: bool = False, **settings
) -> RatePoint:
    """Serve ``workload(num_requests, rate, seed)`` and keep the totals.

    Parameters
    ----------
    workload : callable
        For example :func:`kvlib.workloads.sharegpt_like`.
    rate : float
        Mean arrivals per second.
    **settings
        Those of :func:`kvlib.serving.simulate`.

    Examples
    --------
    >>> from kvlib.workloads import alpaca_like
    >>> run_at(alpaca_like, 5.0, num_requests=100).result.completed
    100
    """
    return RatePoint(rate, simulate(workload(num_requests, rate, seed), record=record, **settings))


def latency_curve(
    workload: Callable,
    rates: Iterable[float],
    *,
    jobs: int = 1,
    dask_address: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    **settings,
) -> tuple[RatePoint, ...]:
    """One run for each rate, in the order of ``rates``.

    Parameters
    ----------
    workload, **settings
        As for :func:`run_at`.
    jobs, dask_address, progress
        As for :func:`run_all`.

    Examples
    --------
    >>> from kvlib.workloads import sharegpt_like
    >>> calm, crowded = latency_curve(sharegpt_like, [1.0, 8.0], num_requests=200)
    >>> crowded.result.normalized_latency_s > 3 * calm.result.normalized_latency_s
    True
    """
    tasks = [{"workload": workload, "rate": rate, **settings} for rate in rates]
    return tuple(run_all(run_at, tasks, jobs=jobs, dask_address=dask_address, progress=progress))


def highest_rate(
    workload: Callable, *, limit_s: float = LIMIT_S, precision: float = 0.01, **settings
) -> float:
    """The highest arrival rate whose mean latency per output token stays within ``limit_s``, by bisection.

    The latency of a finite run is taken to rise with the rate. It does but for the noise of the arrivals, so
    the answer is good to ``precision`` for this seed and number of requests; beyond capacity both matter.

    Parameters
    ----------
    workload, **settings
        As for :func:`run_at`.
    limit_s : float
        Seconds per output token (normalized latency).
    precision : float
        Relative width of the last interval; its lower end, which was found to be within the limit, is
        returned.

    Raises
    ------
    ConfigError
        If the limit is missed even when requests are served one by one, or met at any rate, or if requests
        are rejected: then the mean would be over the wrong ones.

    Examples
    --------
    >>> from kvlib.workloads import sharegpt_like
    >>> rates = [highest_rate(sharegpt_like, num_requests=200, memory=m) for m in ("max", "paged")]
    >>> rates[1] > 2 * rates[0]
    True
    """
    real("limit_s", limit_s, above=True)
    if not 1e-6 <= real("precision", precision, above=True) < 1:
        raise ConfigError(f"precision: got {precision!r}, expected from 1e-6 to below 1")

    def within(rate: float) -> bool:
        result = run_at(workload, rate, **settings).result
        if result.rejected or result.deadlocked or result.normalized_latency_s is None:
            raise ConfigError(
                f"workload: {result.rejected} of {result.submitted} requests were rejected and "
                f"{result.completed} completed, expected all of them to be served"
            )
        return result.normalized_latency_s <= limit_s

    low, high = _bracket(within, limit_s)
    while high > low * (1 + precision):
        middle = (low + high) / 2
        if within(middle):
            low = middle
        else:
            high = middle
    return low


def _bracket(within: Callable[[float], bool], limit_s: float) -> tuple[float, float]:
    """Two rates a factor of two apart: within the limit at the lower one, beyond it at the upper one."""
    rate = FIRST_RATE
    if within(rate):
        while within(2 * rate):
            rate *= 2
            if rate >= LAST_RATE:
                raise ConfigError(f"limit_s: got {limit_s!r}, expected a limit that some rate exceeds")
        return rate, 2 * rate
    while not within(rate / 2):
        rate /= 2
        if rate < 1 / LAST_RATE:
            raise ConfigError(f"limit_s: got {limit_s!r}, expected one that an idle server meets")
    return rate / 2, rate


def run_all(
    function: Callable,
    tasks: Sequence[dict],
    *,
    jobs: int = 1,
    dask_address: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list:
    """Call ``function(**task)`` for every task, here or on many processes; the results are the same.

    Parameters
    ----------
    function : callable
        With several jobs it must be importable, not a lambda, and so must what the tasks hold.
    tasks : sequence of dict
    jobs : int
        Processes on this machine (joblib). 1 needs none, and is the only choice in a browser.
    dask_address : str, optional
        Scheduler of a Dask cluster, as in ``"tcp://10.0.0.1:8786"``; its workers then take the tasks, through
        joblib's own Dask backend, and ``jobs`` must stay 1. kvlib must be installed there.
    progress : callable, optional
        Called with (tasks done, tasks in all) as results arrive.

    Returns
    -------
    list
        In the order of ``tasks``.

    Raises
    ------
    ConfigError
        If ``jobs`` is no positive whole number, or both places are asked for.

    Examples
    --------
    >>> run_all(dict, [{"a": 1}, {"b": 2}], progress=lambda done, total: print(done, "of", total))
    1 of 2
    2 of 2
    [{'a': 1}, {'b': 2}]
    """
    whole("jobs", jobs)
    if dask_address is not None and jobs != 1:
        raise ConfigError(f"jobs: got {jobs!r} with dask_address, expected 1: the cluster decides")
    results = []
    for result in _results(function, tasks, jobs, dask_address):
        results.append(result)
        if progress:
            progress(len(results), len(tasks))
    return results


def _results(function, tasks, jobs: int, dask_address: str | None) -> Iterator:
    if dask_address is not None:
        yield from _on_dask(function, tasks, dask_address)
    elif jobs > 1:
        yield from _joblib(function, tasks, n_jobs=jobs)
    else:
        yield from (function(**task) for task in tasks)


def _joblib(function, tasks, **places) -> Iterator:
    # Imported late, like Dask below: neither is needed for one job, and a browser has neither.
    from joblib import Parallel, delayed

    yield from Parallel(return_as="generator", **places)(delayed(function)(**task) for task in tasks)


def _on_dask(function, tasks, dask_address: str) -> Iterator:
    from dask.distributed import Client
    from joblib import parallel_config

    with Client(dask_address), parallel_config(backend="dask"):
        yield from _joblib(function, tasks)
