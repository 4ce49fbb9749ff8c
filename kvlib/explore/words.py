"""Small words around numbers: a title must read well in every state of its explorer."""

from __future__ import annotations

from kvlib.explore.controls import spell


def counted(number: int, noun: str, plural: str = "") -> str:
    """`number` and what it counts, in the singular for one.

    >>> counted(1, "block"), counted(2048, "block"), counted(1, "copy", "copies")
    ('1 block', '2,048 blocks', '1 copy')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def short(value: float, digits: int = 3) -> str:
    """`value` to a few significant digits, large numbers written out and not with an exponent.

    >>> short(0.19273), short(1048.6), f"{1048.6:.3g}"
    ('0.193', '1,050', '1.05e+03')
    """
    return spell(float(f"{value:.{digits}g}"))


def as_many(ratio: float) -> str:
    """A ratio of two counts to two digits, as in "3.1 times as many" as something.

    >>> as_many(3.14), as_many(1.004)
    ('3.1 times as many', 'as many')
    """
    return "as many" if short(ratio, 2) == "1" else f"{short(ratio, 2)} times as many"
