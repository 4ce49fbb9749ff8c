"""How busy a trace is over time, to choose a window worth replaying."""

from collections.abc import Sequence

from kvlib.errors import ConfigError
from kvlib.specs.checks import real
from kvlib.workloads.request import Request


def requests_per_minute(requests: Sequence[Request]) -> list[int]:
    """Return the number of arrivals in each minute since time 0, empty minutes included.

    Parameters
    ----------
    requests : sequence of Request
        In any order.

    Raises
    ------
    ConfigError
        If there are no requests.

    Examples
    --------
    >>> from kvlib.workloads.request import Request
    >>> requests_per_minute([Request(0, 1, 1), Request(59.9, 1, 1), Request(120, 1, 1)])
    [2, 0, 1]
    """
    _require(requests)
    minutes = [int(request.arrival_s // 60) for request in requests]
    counts = [0] * (max(minutes) + 1)
    for minute in minutes:
        counts[minute] += 1
    return counts


def busiest_window(requests: Sequence[Request], window_s: float) -> tuple[Request, ...]:
    """Return the requests of the window of ``window_s`` seconds that holds the most of them.

    Public traces can start almost idle (the first thousand rows of BurstGPT arrive at 0.034
    requests/s, later ones at 3.17), where every policy looks the same; replay a busy window instead.

    Parameters
    ----------
    requests : sequence of Request
        Ordered by arrival.
    window_s : float
        Window length in seconds; it starts at an arrival and excludes its end.

    Returns
    -------
    tuple of Request
        With their own arrival times; the earliest of equally busy windows.

    Raises
    ------
    ConfigError
        If there are no requests or the window is not positive.

    Examples
    --------
    >>> from kvlib.workloads.request import Request
    >>> busy = busiest_window([Request(t, 1, 1) for t in (0, 100, 101, 105, 300)], window_s=10)
    >>> [request.arrival_s for request in busy]
    [100, 101, 105]
    """
    _require(requests)
    real("window_s", window_s, above=True)
    best_start = best_end = end = 0
    for start, first in enumerate(requests):
        while end < len(requests) and requests[end].arrival_s < first.arrival_s + window_s:
            end += 1
        if end - start > best_end - best_start:
            best_start, best_end = start, end
    return tuple(requests[best_start:best_end])


def _require(requests):
    if not requests:
        raise ConfigError("requests: got none, expected at least 1")
