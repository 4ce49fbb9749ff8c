"""Reading a measured trade-off: how many bits for how little damage."""

import math
from collections.abc import Sequence


def bits_at(points: Sequence[tuple[float, float]], allowed: float) -> float | None:
    """Bits per number at which the damage is `allowed`, between the measured points.

    Damage falls by a factor per bit, so points are joined by straight lines over its logarithm.

    Parameters
    ----------
    points : sequence of (bits, damage)
        Measured; damage > 0.
    allowed : float

    Returns
    -------
    float or None
        None outside what was measured: an extrapolation would be a guess.

    Examples
    --------
    >>> bits_at([(2.0, 0.1), (4.0, 0.001)], 0.01), bits_at([(2.0, 0.1), (4.0, 0.001)], 0.5)
    (3.0, None)
    """
    ordered = sorted(points)
    for (few, much), (many, little) in zip(ordered, ordered[1:]):
        if little <= allowed <= much:
            share = math.log(much / allowed) / math.log(much / little) if much > little else 0.0
            return few + share * (many - few)
    return None
