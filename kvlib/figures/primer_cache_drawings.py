"""The drawings of primer 1: rows computed and kept at one step, and heads that share keys and values."""

from __future__ import annotations

from collections.abc import Sequence

from kvlib.explore.palette import ATTENTION, INTERNAL, USED
from kvlib.explore.svg import Drawing
from kvlib.primers.decoder import Step
from kvlib.specs.attention_kinds import MLA_RANK, MLA_ROPE

HEADS = 8
COLUMN, ROW, LEFT = 43, 24, 38


def draw_step(step: int, tokens: Sequence[int], kept: Step, forgot: Step) -> str:
    """Both runs at one step, one above the other; `tokens` are those that have passed through the model."""
    drawing = Drawing(
        326,
        title=f"Step {step} of decoding, with and without a cache",
        description=(
            f"With a cache {kept.rows_computed} key and value rows are computed and {kept.rows_read} are "
            f"kept from before. Without one all {forgot.rows_computed} are computed."
        ),
    )
    for top, words, one in ((0, "With a cache", kept), (166, "Without a cache", forgot)):
        drawing.text(0, top + 15, f"{words}: {one.multiply_adds:,} multiply-adds in this step", bold=True)
        _draw_strip(drawing, top + 24, tokens, first_new=kept.rows_read, first_run=one.rows_read)
    return drawing.render()


def _draw_strip(drawing, top, tokens, *, first_new: int, first_run: int):
    """Tokens from `first_run` on pass through the model; those before `first_new` have done so already."""
    query_top, key_top, value_top = top + ROW + 4, top + 2 * ROW + 28, top + 3 * ROW + 28
    for name, y in (("token", top), ("Q", query_top), ("K", key_top), ("V", value_top)):
        drawing.text(0, y + 17, name)
    for position, token in enumerate(tokens):
        x = LEFT + position * COLUMN + 4
        drawing.box(x, top, COLUMN - 3, ROW, text=str(token))
        kind = "kept" if position < first_run else ("again" if position < first_new else "new")
        if kind != "kept":
            _cell(drawing, x, query_top, kind)
        for y in (key_top, value_top):
            _cell(drawing, x, y, kind)
    asking = LEFT + (len(tokens) - 0.5) * COLUMN + 2
    for position in range(len(tokens)):
        drawing.line(asking, query_top + ROW, LEFT + (position + 0.5) * COLUMN + 2, key_top, width=0.8)


def _cell(drawing, x, y, kind):
    fill = {"new": USED, "again": INTERNAL, "kept": "none"}[kind]
    drawing.box(x, y, COLUMN - 3, ROW, fill=fill, text=kind, dashed=kind == "again")


def draw_sharing(kind: str, kv_heads: int, title: str, cached: str) -> str:
    """Query heads above, the key and value heads (or the latent) they read below."""
    drawing = Drawing(206, title=f"What {kind} caches", description=f"{title}.")
    width = 480 / HEADS
    drawing.text(0, 15, "Query heads: computed, used once, never kept")
    for head in range(HEADS):
        drawing.box(head * width + 6, 24, width - 12, 30, text=f"q{head}")
    drawing.text(0, 198, f"Cached for each token: {cached}")
    color = ATTENTION[kind]
    if kind == "MLA":
        _draw_latent(drawing, width, color)
        return drawing.render()
    each = 480 / kv_heads
    for head in range(HEADS):
        middle = (head * kv_heads // HEADS + 0.5) * each
        drawing.arrow((head + 0.5) * width, 54, middle, 126, color=color)
    for head in range(kv_heads):
        half = min(each / 2 - 3, 80)
        middle = (head + 0.5) * each
        for name, x in (("k", middle - half), ("v", middle)):
            drawing.box(x, 128, half, 44, fill=color, text=f"{name}{head}")
    return drawing.render()


def _draw_latent(drawing, width, color):
    """One latent that every head turns into its own K and V, and a key part that carries the position."""
    units = 440 / (MLA_RANK + MLA_ROPE)
    for head in range(HEADS):
        drawing.arrow((head + 0.5) * width, 54, 200, 126, color=color)
    drawing.box(20, 128, MLA_RANK * units - 3, 44, fill=color, text=f"latent c ({MLA_RANK})")
    drawing.box(20 + MLA_RANK * units, 128, MLA_ROPE * units, 44, text="rope", dashed=True)
