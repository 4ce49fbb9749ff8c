"""What a benchmark measures, prints and hands to ``run.py``."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

# run.py names a file here, and every speed becomes one line of it.
RECORD_VARIABLE = "KVLIB_BENCH_RECORD"


@dataclass(frozen=True)
class Speed:
    """One measured figure, and the target it was set.

    Attributes
    ----------
    id : str
        ``<benchmark>.<name>``; the page, the peers and the tests refer to it.
    what : str
        For the reader: what was done, how much of it.
    value : float
    unit : str
    target : float or None
    more_is_better : bool
        True for rates, False for times and sizes.
    """

    id: str
    what: str
    value: float
    unit: str
    target: float | None = None
    more_is_better: bool = False


def best_cpu_s(work: Callable[[], object], rounds: int = 3) -> float:
    """The shortest of several runs, in CPU seconds of this process: other programs disturb it least."""
    return min(cpu_seconds(work) for _ in range(rounds))


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def median_s(work: Callable[[], object], rounds: int = 5) -> float:
    """The median of several runs, in seconds of the clock on the wall."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def report(speeds: Iterable[Speed]) -> None:
    """Print each speed beside its target as it comes, and record it where run.py asked for that."""
    record = os.environ.get(RECORD_VARIABLE)
    for speed in speeds:
        print(line(speed), flush=True)
        if record:
            with open(record, "a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(speed)) + "\n")


def line(speed: Speed) -> str:
    """
    >>> line(Speed("a.b", "appends", 600_000.0, "per s", 300_000, more_is_better=True))
    'appends                                                           600,000 per s         2.00 x the target of 300,000'
    """
    value = f"{speed.value:,.0f}" if speed.value >= 1000 else f"{speed.value:.3g}"
    against = f"{times_target(speed):.2f} x the target of {speed.target:,g}" if speed.target else ""
    return f"{speed.what:<60} {value:>12} {speed.unit:<14}{against}".rstrip()


def times_target(speed: Speed) -> float:
    """How many times better than the target: above 1 it is met.

    >>> times_target(Speed("a.b", "a run", 0.1, "s", target=0.3))
    2.9999999999999996
    """
    return speed.value / speed.target if speed.more_is_better else speed.target / speed.value
