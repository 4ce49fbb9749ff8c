"""The requests of an overloaded cluster, reduced to the two times that matter: prefill and decode."""

import random
from dataclasses import dataclass

from kvlib.errors import ConfigError
from kvlib.specs.checks import one_of, real, whole
from kvlib.workloads.arrivals import US_PER_S, poisson_arrivals_us
from kvlib.workloads.lengths import EXPONENTIAL, NARROW, PROBABILITIES, LengthDistribution

# How far times spread around their mean: the relative quantiles of kvlib.workloads.lengths, or all equal.
SPREADS = {"equal": (1.0,) * len(PROBABILITIES), "narrow": NARROW, "long_tail": EXPONENTIAL}
LONGEST = 10  # means; the longest draw of all shapes lies below it


@dataclass(frozen=True, slots=True)
class Demand:
    """One request as the two pools feel it, in whole microseconds.

    Attributes
    ----------
    arrival_us : int
    prefill_us : int
        Time on one prefill instance.
    decode_us : int
        Time in one slot of the decode pool; 0 asks for the first token only, and needs no slot. Whether
        it is 0 stands in the request. How long it is only shows at its end; the oracle policies look ahead.
    """

    arrival_us: int
    prefill_us: int
    decode_us: int


def draw_demands(
    n: int,
    *,
    rate_per_s: float,
    prefill_s: float = 4.0,
    decode_s: float = 20.0,
    prefill_spread: str = "narrow",
    decode_spread: str = "long_tail",
    first_token_share: float = 0.0,
    seed: int = 0,
) -> tuple[Demand, ...]:
    """Draw ``n`` requests with Poisson arrivals and long-tailed decodes.

    Steady arrivals on purpose: any swing in the loads is then made by the admission rule, not by the
    traffic. Source: lecture 7, s9.6 (demonstration 3).

    Parameters
    ----------
    n : int
        Number of requests, at least 1.
    rate_per_s : float
        Mean arrivals per second.
    prefill_s, decode_s : float
        Mean times in seconds.
    prefill_spread, decode_spread : str
        ``equal``; ``narrow``, log-normal with sigma 0.5; or ``long_tail``, exponential, as output lengths
        are.
    first_token_share : float
        Share of requests that want one token (a class, a score) and never enter the decode pool.
    seed : int
        Same seed, same requests; the times do not depend on the rate.

    Raises
    ------
    ConfigError
        If an argument is of the wrong type or not positive.

    Examples
    --------
    >>> drawn = draw_demands(2000, rate_per_s=1.2, seed=0)
    >>> abs(sum(d.decode_us for d in drawn) / 2000 / 1e6 - 20) < 1
    True
    """
    rng = random.Random(whole("seed", seed, minimum=0))
    times_rng = random.Random(rng.randrange(2**63))
    prefills = _times("prefill_s", prefill_s, one_of("prefill_spread", prefill_spread, SPREADS))
    decodes = _times("decode_s", decode_s, one_of("decode_spread", decode_spread, SPREADS))
    if real("first_token_share", first_token_share) > 1:
        raise ConfigError(f"first_token_share: got {first_token_share!r}, expected from 0 to 1")
    demands = []
    for arrival_us in poisson_arrivals_us(n, rate_per_s, rng):
        prefill_us, decode_us = prefills.draw(times_rng), decodes.draw(times_rng)
        wants_one = times_rng.random() < first_token_share
        demands.append(Demand(arrival_us, prefill_us, 0 if wants_one else decode_us))
    return tuple(demands)


def _times(name: str, mean_s: float, spread: str) -> LengthDistribution:
    """Times are drawn like lengths, in microseconds instead of tokens."""
    mean_us = round(US_PER_S * real(name, mean_s, above=True))
    return LengthDistribution.fitted(SPREADS[spread], mean_tokens=mean_us, max_tokens=LONGEST * mean_us)
