"""Chapter 5: drawings of small runs, one row per request, and of the blocks each request holds."""

from __future__ import annotations

from collections.abc import Sequence

from kvlib.explore.palette import DECODE, FREE, LIMIT, PREFILL, TRANSFER, USED
from kvlib.explore.svg import WIDTH, Drawing
from kvlib.serving import Step

LEFT, ROW = 22, 23
FILLS = {"prefill": PREFILL, "decode": DECODE, "stalled": "none"}


def letter(index: int) -> str:
    return "ABCDEFGH"[index]


def lanes(steps: Sequence[Step], num_requests: int) -> list[list[tuple[str, int, int]]]:
    """For each request ``(kind, first step, step after the last)``; "waiting" before it first runs.

    >>> lanes([Step({0: "prefill"}, {0: 8}, {}), Step({0: "decode", 1: "prefill"}, {0: 9, 1: 4}, {})], 2)
    [[('prefill', 0, 1), ('decode', 1, 2)], [('waiting', 0, 1), ('prefill', 1, 2)]]
    """
    made = []
    for index in range(num_requests):
        lane: list[tuple[str, int, int]] = []
        for number, step in enumerate(steps):
            kind = step.doing.get(index, "gone" if lane and lane[-1][0] != "waiting" else "waiting")
            if lane and lane[-1][0] == kind:
                lane[-1] = (kind, lane[-1][1], number + 1)
            else:
                lane.append((kind, number, number + 1))
        made.append([part for part in lane if part[0] != "gone"])
    return made


def draw_lanes(drawing: Drawing, rows, top: float, horizon: int, right: float = WIDTH - 2) -> None:
    """One row per request over ``horizon`` steps."""
    scale = (right - LEFT) / horizon
    for index, lane in enumerate(rows):
        y = top + index * ROW
        drawing.text(0, y + 14, letter(index))
        for kind, start, end in lane:
            x, width = LEFT + start * scale, (end - start) * scale
            if kind in FILLS:
                mark = "P" if kind == "prefill" and width > 9 else ""
                drawing.box(x, y, width, ROW - 5, fill=FILLS[kind], text=mark, hatched=kind == "stalled")
            else:
                color = {"waiting": FREE, "preempted": LIMIT, "swapped": TRANSFER}[kind]
                drawing.line(x, y + ROW / 2 - 2, x + width, y + ROW / 2 - 2, color=color, width=2, dashed=True)


def draw_moment(drawing: Drawing, top: float, bottom: float, step: int, horizon: int, right: float = WIDTH - 2):
    """A vertical line after ``step`` steps."""
    x = LEFT + step * (right - LEFT) / horizon
    drawing.line(x, top, x, bottom, color=LIMIT, width=2.5)


def draw_key(drawing: Drawing, y: float, entries: Sequence[tuple[str, float]]) -> None:
    """What the marks mean: ``(kind, x)``, each with its word behind it."""
    words = {"stalled": "stalled", "preempted": "thrown out", "swapped": "on the host", "decode": "a token per step"}
    for kind, x in entries:
        if kind in FILLS:
            mark = "P" if kind == "prefill" else ""
            drawing.box(x, y, 18, 16, fill=FILLS[kind], text=mark, hatched=kind == "stalled")
        else:
            color = {"preempted": LIMIT, "swapped": TRANSFER, "waiting": FREE}[kind]
            drawing.line(x, y + 8, x + 18, y + 8, color=color, width=2, dashed=True)
        drawing.text(x + 23, y + 13, words.get(kind, kind))


def draw_blocks(drawing: Drawing, top: float, tokens: dict[int, int], num_blocks: int, block_size: int, fill=USED):
    """A row of blocks, filled as far as they hold tokens, each with the letter of its owner."""
    width = min(30.0, (WIDTH - 2) / num_blocks)
    place = 0
    for index, count in sorted(tokens.items()):
        for start in range(0, count, block_size):
            x, share = 1 + place * width, min(1.0, (count - start) / block_size)
            if share < 1:
                drawing.box(x, top, width * share, 24, fill=fill)
            drawing.box(x, top, width, 24, fill=fill if share == 1 else "none", text=letter(index))
            place += 1
    for empty in range(place, num_blocks):
        drawing.box(1 + empty * width, top, width, 24, dashed=True)
