"""The map of the book: chapters from top to bottom, what each needs, and the three things they are all built on."""

from __future__ import annotations

from chapters import Chapter, rooms_below

from kvlib.explore import Drawing
from kvlib.explore.palette import DECODE, TRANSFER, USED

# The rooms of kvlib that run through the book, and what the reader calls them.
THREADS = (("blocks", "allocator", USED), ("workloads", "trace", DECODE), ("specs", "model", TRANSFER))
WIDTH = 400
BOX_X, BOX_WIDTH, BOX_HEIGHT = 70, 190, 26
ROW, PART_ROW, TOP = 34, 26, 44
THREAD_X, THREAD_GAP = 292, 42


class Map(Drawing):
    """A drawing with the three shapes of the map."""

    def chapter(self, href: str, x, y, width, height, text: str):
        """A box with a word in its middle that leads to `href`."""
        with self.link(href):
            self.box(x, y, width, height, fill="var(--kv-panel)")
            self.text(x + width / 2, y + height / 2 + 5, text, anchor="middle", color="var(--pst-color-link)")

    def bow(self, x, y1, y2, reach):
        """An arrow from (x, y1) to (x, y2) that swings out to the left."""
        out = f"{x - reach:.0f}"
        self._shapes.append(f'<path d="M{x} {y1:.0f}C{out} {y1:.0f} {out} {y2:.0f} {x - 5} {y2:.0f}" style="stroke-width:1.3"/>')
        self._shapes.append(f'<polygon points="{x},{y2:.0f} {x - 7},{y2 - 4:.0f} {x - 7},{y2 + 4:.0f}"/>')

    def stop(self, x, y, color, direct: bool):
        fill = color if direct else "var(--pst-color-background)"
        self._shapes.append(f'<circle cx="{x}" cy="{y:.0f}" r="6.5" fill="{fill}" stroke="{color}" stroke-width="2"/>')


def chapter_map(chapters: list[Chapter], captions: dict[str, str], href) -> str:
    """The map as SVG text.

    Parameters
    ----------
    captions : dict
        Document → part of the book.
    href : callable
        Document → address, as seen from the page that shows the map.
    """
    rows, y, part = {}, TOP, None
    heads = []
    for chapter in chapters:
        if captions.get(chapter.doc) not in (part, None):
            part = captions[chapter.doc]
            heads.append((y + 17, part))
            y += PART_ROW
        rows[chapter.doc] = y
        y += ROW
    drawing = Map(y + 34, title="Map of the book", description=described(chapters), width=WIDTH)
    draw_threads(drawing, chapters, rows, y)
    for height, words in heads:
        drawing.text(BOX_X, height, words, size=13)
    for chapter in chapters:
        draw_needs(drawing, chapter, rows)
    for chapter in chapters:
        drawing.chapter(href(chapter.doc), BOX_X, rows[chapter.doc], BOX_WIDTH, BOX_HEIGHT, f"{chapter.number} · {chapter.name}")
    return drawing.render()


def draw_needs(drawing: Map, chapter: Chapter, rows: dict):
    """A bow from each chapter that this one names as its start; primers stand in the table."""
    for doc in chapter.needs:
        if doc in rows:
            start, end = rows[doc] + BOX_HEIGHT / 2 + 3, rows[chapter.doc] + BOX_HEIGHT / 2 - 3
            drawing.bow(BOX_X, start, end, min(80, 14 + (end - start) * 0.24))


def draw_threads(drawing: Map, chapters: list[Chapter], rows: dict, bottom: float):
    for i, (room, word, color) in enumerate(THREADS):
        x = THREAD_X + i * THREAD_GAP
        drawing.text(x, 14 + 14 * (i % 2), word, anchor="middle", size=13)
        drawing.line(x, 34, x, bottom - 4, width=3, color=color)
        for chapter in chapters:
            if room in rooms_below(chapter.rooms):
                drawing.stop(x, rows[chapter.doc] + BOX_HEIGHT / 2, color, room in chapter.rooms)
    drawing.stop(BOX_X + 6, bottom + 14, USED, True)
    drawing.text(BOX_X + 18, bottom + 19, "by name", size=13)
    drawing.stop(BOX_X + 92, bottom + 14, USED, False)
    drawing.text(BOX_X + 104, bottom + 19, "through other rooms of kvlib", size=13)


def described(chapters: list[Chapter]) -> str:
    """What the bows and stops show, in words."""
    numbers = {chapter.doc: str(chapter.number) for chapter in chapters}
    needs = {c.number: ", ".join(numbers[doc] for doc in c.needs if doc in numbers) for c in chapters}
    said = "; ".join(f"chapter {number} needs {others}" for number, others in needs.items() if others)
    return f"Chapters from top to bottom: {said}."
