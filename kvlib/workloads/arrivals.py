"""When requests arrive: Poisson, and Poisson squeezed into bursts.

Times are whole microseconds. ``log`` may differ in its last place between machines; rounding every
gap at once to a microsecond makes that difference vanish before it can add up.
"""

import math
from random import Random

from kvlib.errors import ConfigError
from kvlib.specs.checks import real, whole

US_PER_S = 1_000_000
# At a million requests per second the mean gap is one microsecond, our clock's grain.
MAX_RATE = 1e6


def poisson_arrivals_us(n: int, rate: float, rng: Random) -> list[int]:
    """Return ``n`` arrival times in whole microseconds with exponential gaps.

    Parameters
    ----------
    n : int
        Number of arrivals, at least 1.
    rate : float
        Mean arrivals per second.
    rng : random.Random
        One ``random()`` is drawn per arrival, so the same seed at twice the rate gives the same
        pattern in half the time.

    Raises
    ------
    ConfigError
        If ``n`` or ``rate`` is not positive.

    Examples
    --------
    >>> import random
    >>> poisson_arrivals_us(3, rate=2.0, rng=random.Random(0))
    [930304, 1639619, 1912476]
    """
    whole("n", n)
    us_per_request = US_PER_S / _checked(rate)
    now_us, times = 0, []
    for _ in range(n):
        now_us += round(-math.log(1.0 - rng.random()) * us_per_request)
        times.append(now_us)
    return times


def arrivals_and_draws(n: int, rate: float, seed: int) -> tuple[list[int], Random]:
    """Poisson arrivals, and a second stream for what the requests look like, so that neither disturbs the other.

    Parameters and errors are those of :func:`kvlib.workloads.sharegpt_like`.

    Examples
    --------
    >>> slow, fast = arrivals_and_draws(3, rate=1.0, seed=0), arrivals_and_draws(3, rate=10.0, seed=0)
    >>> slow[0] == fast[0], slow[1].random() == fast[1].random()
    (False, True)
    """
    rng = Random(whole("seed", seed, minimum=0))
    draws = Random(rng.randrange(2**63))
    return poisson_arrivals_us(n, rate, rng), draws


def bursty_arrivals_us(
    n: int, rate: float, rng: Random, *, burst_factor: int = 4, cycle_s: int = 60
) -> list[int]:
    """Return ``n`` arrival times of a load that is on for a part of every cycle, and silent for the rest.

    The load is Poisson at ``burst_factor * rate`` during the first ``1 / burst_factor`` of each
    cycle, so the mean over whole cycles stays ``rate``.

    Parameters
    ----------
    n, rate, rng
        As for :func:`poisson_arrivals_us`.
    burst_factor : int
        Peak rate divided by mean rate; 1 is plain Poisson.
    cycle_s : int
        Length of one on-off cycle in seconds.

    Raises
    ------
    ConfigError
        If an argument is not positive.

    Examples
    --------
    >>> import random
    >>> times = bursty_arrivals_us(1000, rate=5.0, rng=random.Random(0))
    >>> all(time % 60_000_000 < 15_000_000 for time in times)
    True
    """
    whole("burst_factor", burst_factor)
    cycle_us = whole("cycle_s", cycle_s) * US_PER_S
    on_us = cycle_us // burst_factor
    busy_times = poisson_arrivals_us(n, _checked(rate) * burst_factor, rng)
    # Time spent on is cut into pieces of on_us; each piece starts a cycle of its own.
    return [busy // on_us * cycle_us + busy % on_us for busy in busy_times]


def _checked(rate: float) -> float:
    rate = real("rate", rate, above=True)
    if rate > MAX_RATE:
        raise ConfigError(f"rate: got {rate!r}, expected at most {MAX_RATE:g} requests/s")
    return rate
