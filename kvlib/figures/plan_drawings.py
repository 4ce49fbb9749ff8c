"""The plan as a list of linked decisions."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape

from kvlib.explore import Drawing
from kvlib.explore.svg import number
from kvlib.figures.plan_links import Link

SMALL = 13
LINE_HEIGHT = 17
GAP = 12
# Letters of a small line: what a phone shows without scrolling sideways.
LETTERS = 52


class Card(Drawing):
    """A drawing of paragraphs."""

    def paragraph(self, y: float, lines: Sequence[str]) -> None:
        """Small lines below one another, in one text element: an explorer stores many of these drawings."""
        spans = "".join(f'<tspan x="0" dy="{LINE_HEIGHT}">{escape(line)}</tspan>' for line in lines)
        self._shapes.append(f'<text y="{number(y)}" font-size="{SMALL}">{spans}</text>')


def card(links: Sequence[Link], finding: str) -> str:
    """One paragraph a decision: the heading leads to its chapter, the reason stands below."""
    paragraphs = [(link, _small_print(link)) for link in links]
    height = sum(LINE_HEIGHT * (1 + len(small)) + GAP for _, small in paragraphs)
    drawing = Card(height, title="The plan, line by line", description=finding)
    y = LINE_HEIGHT
    for link, small in paragraphs:
        choice = link.line.choice
        with drawing.link(link.href):
            drawing.text(0, y, f"{choice[0].upper()}{choice[1:]} → chapter {link.line.chapter}", bold=True)
        drawing.paragraph(y, small)
        y += LINE_HEIGHT * (1 + len(small)) + GAP
    return drawing.render()


def _small_print(link: Link) -> list[str]:
    because = f"{link.line.because[0].upper()}{link.line.because[1:]}."
    rounded = f"In that chapter: {', '.join(link.rounded)}." if link.rounded else ""
    return [line for words in (because, rounded) for line in textwrap.wrap(words, LETTERS)]
