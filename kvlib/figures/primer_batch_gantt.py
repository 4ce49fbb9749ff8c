"""The Gantt chart of primer 2: one row per request, and a ruler for one of them."""

from __future__ import annotations

from kvlib.explore.palette import DECODE, IDLE, PREFILL
from kvlib.explore.svg import LETTER, Drawing
from kvlib.primers.batching import Served, Span

LEFT, ROW = 22, 23


def draw_gantt(drawing: Drawing, served, top: float, right: float, horizon_ms: float, now_ms: float):
    """One row per request, up to `now_ms`: waiting (dotted), prefill, tokens, stalls, and held slots."""
    scale = (right - LEFT) / horizon_ms
    for row, one in enumerate(served):
        y = top + row * ROW
        drawing.text(0, y + 15, one.request.name)
        arrived, started = one.request.arrival_ms, one.spans[0].start_ms
        if arrived < min(started, now_ms):
            middle = y + ROW / 2 - 2
            until = min(started, now_ms)
            drawing.line(LEFT + arrived * scale, middle, LEFT + until * scale, middle, dashed=True)
        for span in one.spans:
            # A token is drawn when it is out; everything else while it lasts.
            end = min(span.end_ms, now_ms)
            if span.start_ms < end and (span.kind != "decode" or end == span.end_ms):
                _draw_span(drawing, span, LEFT + span.start_ms * scale, y, (end - span.start_ms) * scale)


def _draw_span(drawing: Drawing, span: Span, x: float, y: float, width: float):
    fill = {"prefill": PREFILL, "decode": DECODE, "stall": "none", "held": IDLE}[span.kind]
    letter = "P" if span.kind == "prefill" and width > LETTER else ""
    drawing.box(x, y, width, ROW - 5, fill=fill, text=letter, hatched=span.kind in ("stall", "held"))


def draw_key(drawing: Drawing, y: float):
    """What the boxes mean, in the order in which a request meets them."""
    drawing.line(0, y + 8, 20, y + 8, dashed=True)
    drawing.text(25, y + 13, "waits")
    for x, fill, mark, hatched, words in (
        (78, PREFILL, "P", False, "prefill"), (162, DECODE, "", False, "a token"),
        (256, "none", "", True, "stalled"), (346, IDLE, "", True, "slot held, idle"),
    ):
        drawing.box(x, y, 20, 16, fill=fill, text=mark, hatched=hatched)
        drawing.text(x + 25, y + 13, words)


def draw_ruler(drawing: Drawing, one: Served, top: float, right: float, end_ms: int):
    """Arrival, first token and last token of one request, with the two distances between them."""
    scale = (right - LEFT) / end_ms
    moments = (one.request.arrival_ms, one.token_ms[0], one.token_ms[-1])
    arrival, first, last = (LEFT + moment * scale for moment in moments)
    line_y = top + 26
    drawing.text(0, line_y + 5, one.request.name, bold=True)
    drawing.line(arrival, line_y, last, line_y, width=2)
    for token_ms in one.token_ms:
        drawing.line(LEFT + token_ms * scale, line_y - 7, LEFT + token_ms * scale, line_y + 7)
    drawing.line(arrival, line_y - 12, arrival, line_y + 12, width=2)
    drawing.text(arrival, top + 10, f"TTFT {one.ttft_ms}", color=PREFILL, bold=True)
    words = f"{len(one.tbt_ms)} gaps, mean (TPOT) {one.tpot_ms:.3g}, worst {max(one.tbt_ms)}"
    drawing.text(min(first, 210), top + 54, words, bold=True)
