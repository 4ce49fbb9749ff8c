"""The drawings of chapter 4: shared blocks with their reference counts, and the family tree of a beam
search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvlib.explore.palette import LIMIT, SERIES, USED
from kvlib.explore.svg import WIDTH, Drawing
from kvlib.explore.words import counted

# Shared blocks; a reader who sees no color reads the count in the block.
SHARED = SERIES[3]
SMALL = 12


def draw_sharing(tables: Mapping[str, Sequence[int]], refcounts: Mapping[int, int], changed: Sequence[int], pool_blocks: int) -> str:
    """The tables of all sequences over the pool; blocks in `changed` have just been taken or copied into."""
    names = list(tables)
    drawing = Drawing(
        104 + 36 * len(names), title="Block tables and reference counts",
        description="; ".join(f"{name}: blocks {', '.join(map(str, tables[name]))}" for name in names)
        + f". Reference counts: {', '.join(f'{count} of block {block}' for block, count in refcounts.items())}.",
    )
    drawing.text(0, 15, "Block tables", bold=True)
    longest = max(map(len, tables.values()))
    left = 84
    width = min(52, (WIDTH - left) / longest)
    for row, name in enumerate(names):
        y = 24 + 36 * row
        drawing.text(0, y + 20, name)
        for index, block in enumerate(tables[name]):
            fill = SHARED if refcounts[block] > 1 else USED
            drawing.box(left + index * width, y, width - 3, 28, fill=fill, text=str(block))
    y = 24 + 36 * len(names) + 18
    drawing.text(0, y, "Physical blocks and their reference counts", bold=True)
    cell = WIDTH / pool_blocks
    for block in range(pool_blocks):
        count = refcounts.get(block, 0)
        fill = "none" if not count else SHARED if count > 1 else USED
        drawing.box(block * cell, y + 10, cell - 2, 30, fill=fill, text=str(count) if count else "", dashed=not count)
        if block in changed:
            drawing.line(block * cell, y + 44, block * cell + cell - 2, y + 44, width=4, color=LIMIT)
        drawing.text((block + 0.4) * cell, y + 59, block, anchor="middle", size=SMALL)
    return drawing.render()


def draw_tree(parents: Sequence[Sequence[int]], width: int, refcounts: Mapping[int, int]) -> str:
    """Who continues whom, step by step, with thick lines to the living, and the blocks these hold."""
    alive = _ancestors(parents)
    drawing = Drawing(
        110 + 34 * width, title="Family tree of the beams",
        description=f"{counted(len(parents), 'step')} of {width} hypotheses; the living ones go back to {len(alive[0]) if parents else 1} of the "
        f"first. Reference counts of the blocks they hold: {', '.join(map(str, sorted(refcounts.values(), reverse=True)))}.",
    )
    drawing.text(0, 15, "Prompt on the left, one column a step; thick lines lead to the living", bold=True)
    step_width, top = (WIDTH - 24) / max(8, len(parents)), 40

    def place(step: int, index: int) -> tuple[float, float]:
        return 12 + (step + 1) * step_width, top + 34 * index

    origin = (12, top + 34 * (width - 1) / 2)
    for step, own in enumerate(parents):
        for child, parent in enumerate(own):
            x1, y1 = place(step - 1, parent) if step else origin
            living = child in alive[step]
            drawing.line(x1, y1, *place(step, child), width=3 if living else 1, color=USED if living else "currentColor")
    bottom = 50 + 34 * width
    drawing.text(0, bottom, "Blocks held by the living, with their reference counts", bold=True)
    cell = min(34, WIDTH / len(refcounts))
    # Sorted, because which block number a beam has says nothing.
    for place_in_row, count in enumerate(sorted(refcounts.values(), reverse=True)):
        fill = SHARED if count > 1 else USED
        drawing.box(place_in_row * cell, bottom + 10, cell - 2, 30, fill=fill, text=str(count) if cell > 15 else "")
    return drawing.render()


def _ancestors(parents: Sequence[Sequence[int]]) -> list[set[int]]:
    """For each step, the hypotheses that a living one descends from."""
    alive: list[set[int]] = []
    current = set(range(len(parents[-1]))) if parents else set()
    for own in reversed(parents):
        alive.append(current)
        current = {own[child] for child in current}
    return alive[::-1]
