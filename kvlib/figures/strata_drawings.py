"""Chapter 9: the drawings its explorers share, as SVG text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvlib.explore import Drawing
from kvlib.explore.palette import DECODE, IDLE, PREFILL, TRANSFER
from kvlib.explore.svg import WIDTH

MS = 10**6           # nanoseconds
LEFT = 64
RIGHT = WIDTH - 1  # half an outline must still fit
ROW = 30


@dataclass(frozen=True)
class Bar:
    """Work in one lane from `start` to `end`, in the chart's unit; a gap is dashed and has no color."""

    start: float
    end: float
    words: str
    color: str


def loads(start: float, end: float, words: str = "") -> Bar:
    return Bar(start, end, words, TRANSFER)


def computes(start: float, end: float, words: str = "") -> Bar:
    return Bar(start, end, words, PREFILL)


def decodes(start: float, end: float, words: str = "") -> Bar:
    return Bar(start, end, words, DECODE)


def arrives(start: float, end: float, words: str = "") -> Bar:
    return Bar(start, end, words, IDLE)


def waits(start: float, end: float, words: str = "") -> Bar:
    return Bar(start, end, words, "none")


def gantt(
    groups: Sequence[tuple[str, Sequence[tuple[str, Sequence[Bar]]]]],
    until: float,
    end_words: str,
    description: str,
) -> str:
    """Groups of lanes over one time axis that ends at `until`.

    Parameters
    ----------
    groups : sequence of (heading, lanes)
        `lanes` are (name, bars).
    until : float
        End of the axis.
    end_words : str
        What stands at its end.
    description : str
        The picture in words.
    """
    height = sum(24 + ROW * len(lanes) + 6 for _, lanes in groups) + 20
    drawing = Drawing(height, title="Time chart", description=description)
    y = 0
    for heading, lanes in groups:
        drawing.text(0, y + 15, heading, bold=True)
        y += 24
        for name, bars in lanes:
            drawing.text(0, y + 18, name)
            drawing.line(LEFT, y + ROW - 3, RIGHT, y + ROW - 3, width=0.5)
            for bar in bars:
                _draw(drawing, y, bar, until)
            y += ROW
        y += 6
    drawing.text(LEFT, y + 13, "0")
    drawing.text(RIGHT, y + 13, end_words, anchor="end")
    return drawing.render()


def _draw(drawing: Drawing, y: float, bar: Bar, until: float) -> None:
    x, end = (LEFT + (RIGHT - LEFT) * moment / until for moment in (bar.start, bar.end))
    if end - x < 0.1:
        return
    fits = end - x >= 8 * len(bar.words) + 2
    drawing.box(
        x,
        y,
        end - x,
        ROW - 4,
        fill=bar.color,
        text=bar.words if fits else "",
        dashed=bar.color == "none",
        title=bar.words,
    )
