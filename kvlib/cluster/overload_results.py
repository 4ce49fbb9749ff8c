"""What an overloaded run came to: counts, wasted work, and how the two loads moved against each other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvlib.errors import ConfigError
from kvlib.workloads.arrivals import US_PER_S

# The pools start empty; the first fifth of the samples shows how they fill up, not how they swing.
WARM_UP_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class LoadSample:
    """Both loads at one instant.

    Attributes
    ----------
    time_s : float
    prefill_load : float
        Accepted requests whose prefill is not done, per prefill instance; above 1 some are waiting.
    decode_load : float
        Share of the decode slots that are taken.
    """

    time_s: float
    prefill_load: float
    decode_load: float


@dataclass(frozen=True)
class OverloadRun:
    """One run up to its last arrival. Every request is completed, refused or in flight (law L1).

    Attributes
    ----------
    submitted, completed : int
    prefilling, decoding : int
        In flight at the end.
    rejected_for_ttft, rejected_for_decode : int
        Refused on arrival: the first token would be late, or the rule expects no decode slot.
    rejected_after_prefill : int
        Refused with the prefill done, because no decode slot was free.
    prefill_us, wasted_prefill_us : int
        Time of the prefills that ended, and the part of it on requests that were refused afterwards.
    occupied_us : int
        Taken decode slots, integrated over time.
    duration_us : int
        From time 0 to the last arrival.
    samples : tuple of LoadSample
        Every second.
    """

    submitted: int
    rejected_for_ttft: int
    rejected_for_decode: int
    rejected_after_prefill: int
    completed: int
    prefilling: int
    decoding: int
    prefill_us: int
    wasted_prefill_us: int
    occupied_us: int
    duration_us: int
    samples: tuple[LoadSample, ...]

    @property
    def rejected(self) -> int:
        """Refused, early or late."""
        return self.rejected_for_ttft + self.rejected_for_decode + self.rejected_after_prefill

    @property
    def in_flight(self) -> int:
        """Accepted and not yet done at the last arrival."""
        return self.prefilling + self.decoding

    @property
    def wasted_prefill_s(self) -> float:
        """Seconds of prefill whose result nobody used."""
        return self.wasted_prefill_us / US_PER_S

    @property
    def steady(self) -> tuple[LoadSample, ...]:
        """The samples after the warm-up."""
        return self.samples[math.ceil(WARM_UP_SHARE * len(self.samples)) :]

    @property
    def correlation(self) -> float | None:
        """Correlation of the two loads: -1 is perfect opposite phase; None where a load never moves."""
        steady = self.steady
        return correlation([s.prefill_load for s in steady], [s.decode_load for s in steady])

    @property
    def decode_swing(self) -> float:
        """Standard deviation of the decode load: how far the pool swings around its mean."""
        loads = [s.decode_load for s in self.steady]
        return math.sqrt(covariance(loads, loads)) if loads else 0.0


def covariance(x: Sequence[float], y: Sequence[float]) -> float:
    """Mean product of deviations from the mean.

    Examples
    --------
    >>> covariance([1, 2, 3], [3, 2, 1])
    -0.6666666666666666
    """
    if len(x) != len(y) or not x:
        raise ConfigError(
            f"covariance: got {len(x)} and {len(y)} values, expected equally many and at least one",
        )
    mean_x, mean_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
    return math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / len(x)


def correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Pearson's correlation; None where it is not defined because a series is constant or empty.

    Examples
    --------
    >>> round(correlation([1, 2, 3], [30, 20, 10]), 9), correlation([1, 1], [1, 2])
    (-1.0, None)
    """
    spread = math.sqrt(covariance(x, x) * covariance(y, y)) if x else 0.0
    return covariance(x, y) / spread if spread else None
