"""A small helper that draws structures (memory maps, block tables, trees, timelines) as SVG text.

Drawings are `WIDTH` units wide, so that 14-unit letters stay readable on a phone. Words take the
color of the page they stand on (``currentColor``), so a drawing works in both themes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from html import escape

WIDTH = 480
LETTER = 14
# What most shapes share is said once, because an explorer stores one drawing per position. Fill and
# letters are inherited from the root, so that an attribute of a single shape can still change them.
_STROKES = (
    "<style>.kv-drawing rect{stroke:currentColor;stroke-width:.8}"
    ".kv-drawing path{stroke:currentColor;stroke-width:.7;fill:none}</style>"
)


def number(value: float) -> str:
    """A coordinate, to a tenth of a unit.

    >>> number(3.0), number(3.14159)
    ('3', '3.1')
    """
    short = round(value, 1)
    return str(int(short)) if short == int(short) else str(short)


class Drawing:
    """Collects shapes and renders them with a title and a description for those who cannot see them.

    Every text from outside is escaped.

    Examples
    --------
    >>> drawing = Drawing(40, title="Two blocks", description="Block 0 is used, block 1 is free.")
    >>> drawing.box(0, 0, 20, 20, fill="#2a7fc4", text="0")
    >>> drawing.render().startswith('<svg viewBox="0 0 480 40"')
    True
    """

    def __init__(self, height: float, *, title: str, description: str, width: float = WIDTH):
        self._size = (width, height)
        self._title = title
        self._description = description
        self._shapes: list[str] = []
        self._role = "img"

    @contextmanager
    def link(self, href: str) -> Iterator[None]:
        """Whatever is drawn inside leads to `href`.

        >>> drawing = Drawing(20, title="A way out", description="One link.")
        >>> with drawing.link("#there"):
        ...     drawing.text(0, 14, "there")
        >>> '<a href="#there"><text' in drawing.render()
        True
        """
        self._role = "group"  # an image would hide its links from a screen reader
        self._shapes.append(f'<a href="{escape(href)}">')
        yield
        self._shapes.append("</a>")

    def box(self, x, y, width, height, *, fill="none", text="", dashed=False, hatched=False, title=""):
        """A rectangle with a word in its middle; `hatched` marks waste without relying on color."""
        place = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
        look = f'fill="{escape(fill)}"' + (' stroke-dasharray="4 3"' if dashed else "")
        end = f"><title>{escape(title)}</title></rect>" if title else "/>"
        self._shapes.append(f"<rect {place} {look}{end}")
        if hatched:
            self._hatch(x, y, width, height)
        if text:
            # Black keeps 4.5:1 on every color of the palette.
            color = "currentColor" if fill == "none" else "#000"
            self.text(x + width / 2, y + height / 2 + LETTER * 0.35, text, anchor="middle", color=color)

    def _hatch(self, x, y, width, height, gap=7):
        """Diagonal lines clipped to the rectangle by arithmetic, since pattern ids clash between drawings."""
        strokes = []
        for offset in range(gap, int(width + height), gap):
            x1, y1 = x + min(offset, width), y + max(0, offset - width)
            x2, y2 = x + max(0, offset - height), y + min(offset, height)
            strokes.append(f"M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}")
        self._shapes.append(f'<path d="{"".join(strokes)}"/>')

    def line(self, x1, y1, x2, y2, *, width=1.2, color="currentColor", dashed=False):
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        ends = f'x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}"'
        self._shapes.append(f'<line {ends} stroke="{escape(color)}" stroke-width="{number(width)}"{dash}/>')

    def arrow(self, x1, y1, x2, y2, *, color="currentColor"):
        """A curve from (x1, y1) to (x2, y2), leaving and arriving vertically, with a head at its end."""
        middle = (y1 + y2) / 2
        points = f"M{number(x1)} {number(y1)}C{number(x1)} {number(middle)} {number(x2)} {number(middle)}"
        self._shapes.append(
            f'<path d="{points} {number(x2)} {number(y2)}" style="stroke:{escape(color)};stroke-width:1.5"/>'
        )
        down = 1 if y2 >= y1 else -1
        head = f"{number(x2)},{number(y2)} {number(x2 - 4)},{number(y2 - 7 * down)} {number(x2 + 4)},{number(y2 - 7 * down)}"
        self._shapes.append(f'<polygon points="{head}" fill="{escape(color)}"/>')

    def text(self, x, y, words, *, anchor="start", size=LETTER, color="currentColor", bold=False):
        look = f' font-size="{number(size)}"' if size != LETTER else ""
        look += f' text-anchor="{anchor}"' if anchor != "start" else ""
        look += f' fill="{escape(color)}"' if color != "currentColor" else ""
        look += ' font-weight="600"' if bold else ""
        self._shapes.append(f'<text x="{number(x)}" y="{number(y)}"{look}>{escape(str(words))}</text>')

    def render(self) -> str:
        width, height = self._size
        return (
            f'<svg viewBox="0 0 {number(width)} {number(height)}" role="{self._role}" class="kv-drawing" fill="currentColor" '
            f'font-size="{LETTER}" font-family="system-ui, sans-serif" xmlns="http://www.w3.org/2000/svg">'
            f"<title>{escape(self._title)}</title><desc>{escape(self._description)}</desc>"
            f"{_STROKES}{''.join(self._shapes)}</svg>"
        )
