"""The plotly shapes that chapters share, as plain dictionaries.

Titles stand above the picture as text (`View.title`), so that they wrap on a phone; colors come
from `kvlib.explore.palette`; the page script adds the colors of the theme.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvlib.explore.palette import LIMIT

HEIGHT = 380
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
PATTERNS = ("", "/", "x", "\\", ".", "-")
# Without "overlay" plotly draws the pattern on nothing instead of on the bar's color.
_HATCH = {"fgcolor": "#fff", "size": 6, "fillmode": "overlay"}


@dataclass(frozen=True)
class Line:
    """One series of a line chart. `dash` is an index into `DASHES`, so lines differ without color."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    color: str
    dash: int = 0
    markers: bool = False


@dataclass(frozen=True)
class Mark:
    """A single point with words beside it: where the reader stands, or a published value."""

    name: str
    x: float
    y: float
    color: str
    text: str = ""


def axis(title: str, *, log: bool = False, low=None, high=None, categories: Sequence[str] | None = None) -> dict:
    """A plotly axis. `low` and `high` are values, also on a logarithmic axis."""
    made = {"title": {"text": title}}
    if log:
        # Powers of ten only: plotly's minor labels are unreadable on a phone.
        made |= {"type": "log", "dtick": 1, "exponentformat": "power"}
    if low is not None and high is not None:
        made |= {"range": [math.log10(low), math.log10(high)] if log else [low, high]}
    if categories is not None:
        made |= {"type": "category", "categoryorder": "array", "categoryarray": list(categories)}
    return made


def line_chart(lines: Sequence[Line], x_axis: dict, y_axis: dict, *, marks: Sequence[Mark] = (), walls=()) -> dict:
    """Lines, marked points and walls (``(x, words, color)``: a vertical line that means "stop here")."""
    drawn = [_line(line) for line in lines] + [_mark(mark) for mark in marks]
    return {"data": drawn, "layout": _layout(x_axis, y_axis, walls)}


def stacked_bars(
    categories: Sequence[str], parts: Sequence[tuple[str, Sequence[float], str]], value_axis: dict, *, walls=()
) -> dict:
    """Horizontal bars, one a category, split into ``(name, values, color)`` parts, with walls as in `line_chart`.

    Horizontal, because category names are words and a phone is narrow; patterned, so that parts
    differ without color.
    """
    drawn = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": list(categories),
            "x": list(values),
            "marker": {"color": color, "pattern": {"shape": PATTERNS[i % len(PATTERNS)], **_HATCH}},
        }
        for i, (name, values, color) in enumerate(parts)
    ]
    layout = _layout(value_axis, {**axis("", categories=list(categories)), "autorange": "reversed"}, walls)
    return {"data": drawn, "layout": {**layout, "barmode": "stack"}}


def _line(line: Line) -> dict:
    return {
        "type": "scatter",
        "mode": "lines+markers" if line.markers else "lines",
        "name": line.name,
        "x": list(line.x),
        "y": list(line.y),
        "line": {"color": line.color, "width": 2.5, "dash": DASHES[line.dash % len(DASHES)]},
    }


def _mark(mark: Mark) -> dict:
    return {
        "type": "scatter",
        "mode": "markers+text" if mark.text else "markers",
        "name": mark.name,
        "x": [mark.x],
        "y": [mark.y],
        "text": [mark.text],
        "textposition": "top left",
        "marker": {"color": mark.color, "size": 11, "symbol": "diamond"},
    }


def _wall(x: float, color: str) -> dict:
    line = {"color": color, "width": 2, "dash": "dash"}
    return {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": line}


def level(y: float) -> dict:
    """A dotted line across the picture: a limit on its vertical axis; append it to the layout's shapes."""
    line = {"color": LIMIT, "width": 1.5, "dash": "dot"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line}


def up_to(xs: Sequence[float], ys: Sequence[float], ceiling: float) -> tuple[list[float], list[float]]:
    """A rising line as far as the picture goes: its last point is the first one above the ceiling.

    >>> up_to([1, 2, 3, 4], [10, 20, 90, 400], ceiling=50)
    ([1, 2, 3], [10, 20, 90])
    """
    drawn = 1 + sum(y <= ceiling for y in ys)
    return list(xs[:drawn]), list(ys[:drawn])


def _wall_words(x: float, words: str, color: str, x_axis: dict) -> dict:
    # Annotations on a logarithmic axis are placed by exponent, shapes by value.
    place = math.log10(x) if x_axis.get("type") == "log" else x
    return {
        "x": place, "y": 1, "yref": "paper", "yanchor": "bottom", "text": words,
        "showarrow": False, "font": {"color": color, "size": 12},
    }


def _layout(x_axis: dict, y_axis: dict, walls) -> dict:
    return {
        "shapes": [_wall(x, color) for x, _, color in walls],
        "annotations": [_wall_words(x, words, color, x_axis) for x, words, color in walls],
        "height": HEIGHT,
        "margin": {"l": 10, "r": 10, "t": 24, "b": 10},
        "xaxis": x_axis,
        "yaxis": y_axis,
        "legend": {"orientation": "h", "y": -0.25, "yanchor": "top", "traceorder": "normal"},
        "hovermode": "closest",
    }
