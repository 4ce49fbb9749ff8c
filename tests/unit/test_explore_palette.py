"""The palette: legible on both pages, and its neighbors stay apart for color-blind readers."""

from __future__ import annotations

import itertools

import pytest

from kvlib.explore import palette

LIGHT, DARK, BLACK = "#ffffff", "#121212", "#000000"
# Viénot, Brettel and Mollon 1999: what a reader without red or green cones sees, in linear RGB.
BLINDNESS = {
    "protan": ((0.11238, 0.88762, 0.0), (0.11238, 0.88762, 0.0), (0.00401, -0.00401, 1.0)),
    "deutan": ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0)),
}


def linear(color):
    channels = [int(color[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]


def luminance(rgb):
    return 0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2]


def contrast(one, other):
    bright, dim = sorted((luminance(linear(one)), luminance(linear(other))), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def all_colors():
    for name, value in vars(palette).items():
        if isinstance(value, str) and value.startswith("#"):
            yield name, value
        elif isinstance(value, (dict, tuple)):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            yield from ((f"{name}.{key}", color) for key, color in items if str(color).startswith("#"))


@pytest.mark.parametrize("name, color", list(all_colors()))
def test_legible_in_both_themes(name, color):
    assert contrast(color, LIGHT) >= 3 and contrast(color, DARK) >= 3
    assert contrast(color, BLACK) >= 4.5, "black words stand on filled boxes"


def seen_by(kind, color):
    rgb = linear(color)
    return [sum(weight * channel for weight, channel in zip(row, rgb)) for row in BLINDNESS[kind]]


@pytest.mark.parametrize("kind", BLINDNESS)
@pytest.mark.parametrize("group", [
    (palette.USED, palette.INTERNAL), (palette.PREFILL, palette.DECODE, palette.TRANSFER),
    (palette.POLICY["max"], palette.POLICY["paged"], palette.POLICY["static"]),
    (palette.ATTENTION["MHA"], palette.ATTENTION["GQA"]),
])
def test_the_pairs_that_carry_a_lesson_stay_apart(kind, group):
    for one, other in itertools.combinations(group, 2):
        apart = max(abs(a - b) for a, b in zip(seen_by(kind, one), seen_by(kind, other)))
        assert apart > 0.08, (one, other, apart)
