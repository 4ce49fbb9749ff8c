"""Small argument checks shared by the specs: each one returns the value or raises a ``ConfigError``.

Every message names the field, shows the value and says what was expected. ``bool`` is refused where a
number is wanted although Python counts it as an ``int``: ``num_layers=True`` is a mistake, not one layer.
"""

import math

from kvlib.errors import ConfigError


def whole(field: str, value: object, minimum: int = 1) -> int:
    """Return `value` if it is an ``int`` of at least `minimum`.

    Raises
    ------
    ConfigError
        For another type (``bool`` included) or a smaller number.

    Examples
    --------
    >>> whole("layers", 32)
    32
    >>> whole("layers", True)
    Traceback (most recent call last):
    kvlib.errors.ConfigError: layers: got True, expected a whole number >= 1
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigError(f"{field}: got {value!r}, expected a whole number >= {minimum}")
    return value


def real(field: str, value: object, minimum: float = 0.0, *, above: bool = False) -> float:
    """Return `value` as a float if it is a finite number >= `minimum` (> `minimum` when `above`).

    Raises
    ------
    ConfigError
        For another type (``bool`` included), NaN, infinity or a smaller number.

    Examples
    --------
    >>> real("bytes_per_s", 25e9, above=True)
    25000000000.0
    """
    sign = ">" if above else ">="
    if not _is_finite(value) or value < minimum or (above and value == minimum):
        raise ConfigError(f"{field}: got {value!r}, expected a finite number {sign} {minimum:g}")
    return float(value)


def _is_finite(value: object) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond the largest float
        return False


def share(field: str, value: object) -> float:
    """Return `value` as a float if it is a share: above 0 and at most 1.

    Examples
    --------
    >>> share("efficiency", 0.6)
    0.6
    """
    if real(field, value, above=True) > 1:
        raise ConfigError(f"{field}: got {value!r}, expected a share above 0 and at most 1")
    return float(value)


def one_of(field: str, value: object, known) -> str:
    """Return `value` if it is one of the names in `known`; otherwise list the names.

    Examples
    --------
    >>> one_of("policy", "ideal", ("ideal", "uniform"))
    'ideal'
    """
    if not isinstance(value, str) or value not in known:
        raise ConfigError(f"{field}: got {value!r}, expected one of {', '.join(sorted(known))}")
    return value


def find(field: str, name: object, known):
    """Return the entry of `known` that has this name, written in any case; otherwise list the names.

    Examples
    --------
    >>> find("gpu", "A40", {"a40": 48e9})
    48000000000.0
    """
    return known[one_of(field, name.lower() if isinstance(name, str) else name, known)]
