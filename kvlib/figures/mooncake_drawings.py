"""The drawings of chapter 11: instances as columns, the steps of a request, chunks in a pipeline."""

from __future__ import annotations

from kvlib.cluster import Pipeline, RequestSteps
from kvlib.explore import Drawing
from kvlib.explore.palette import DECODE, LIMIT, PREFILL, TRANSFER, USED
from kvlib.explore.svg import WIDTH
from kvlib.explore.words import counted

LEFT = 52
QUEUE_TOP, GROUND, CACHE_HEIGHT = 26, 176, 90
PX_PER_S = 14
LAYERS_DRAWN = 8


def draw_columns(queues_s, counts, cached, shared, cache_blocks) -> str:
    """One column per instance: waiting seconds grow upwards from the ground, the cache hangs below it."""
    drawing = Drawing(
        GROUND + CACHE_HEIGHT + 76,
        title="Queues and caches of eight instances",
        description="; ".join(
            f"instance {i}: {counted(n, 'request')}, {q:.1f} s queued, {counted(c, 'block')} cached, {s} elsewhere too"
            for i, (n, q, c, s) in enumerate(zip(counts, queues_s, cached, shared))
        ),
    )
    step = (WIDTH - LEFT) / len(counts)
    drawing.text(0, GROUND - 8, "queue")
    drawing.text(0, GROUND + 22, "cache")
    drawing.line(LEFT - 4, GROUND, WIDTH, GROUND, width=2)
    for i, (queue_s, count, blocks, twice) in enumerate(zip(queues_s, counts, cached, shared)):
        x, width = LEFT + i * step + 3, step - 8
        _draw_queue(drawing, x, width, queue_s)
        full = CACHE_HEIGHT / cache_blocks
        drawing.box(x, GROUND + 4, width, CACHE_HEIGHT, dashed=True)
        if blocks:
            drawing.box(x, GROUND + 4, width, blocks * full, fill=USED)
        if twice:
            drawing.box(x, GROUND + 4, width, twice * full, fill=TRANSFER, hatched=True)
        drawing.text(x + width / 2, GROUND + CACHE_HEIGHT + 21, count, anchor="middle", bold=True)
    y = GROUND + CACHE_HEIGHT + 21
    drawing.text(0, y, "sent")
    for x, fill, hatched, words in (
        (0, PREFILL, False, "1 s of work"), (112, USED, False, "cached here only"), (262, TRANSFER, True, "elsewhere too"),
    ):
        drawing.box(x, y + 22, 18, 16, fill=fill, hatched=hatched)
        drawing.text(x + 24, y + 35, words)
    return drawing.render()


def _draw_queue(drawing: Drawing, x: float, width: float, queue_s: float) -> None:
    """Seconds of work as boxes of one second; what does not fit is said in figures."""
    room_s = (GROUND - QUEUE_TOP) / PX_PER_S
    shown_s, y = min(queue_s, room_s), GROUND
    while shown_s > 0.05:
        height = min(1.0, shown_s) * PX_PER_S
        y -= height
        drawing.box(x, y, width, height, fill=PREFILL)
        shown_s -= 1.0
    if queue_s > room_s:
        drawing.line(x, QUEUE_TOP, x + width, QUEUE_TOP, width=3, color=LIMIT)
    drawing.text(x + width / 2, min(y, GROUND) - 6, f"{queue_s:.0f} s" if queue_s >= 0.5 else "–", anchor="middle")


def draw_steps(steps: RequestSteps, step: int, end_s: float) -> str:
    """Lanes of one request up to the chosen step: load, prefill, send, decode. Layers are drawn in groups."""
    drawing = Drawing(
        208,
        title="One request in four steps",
        description=f"Loading ends after {steps.layers.loads[-1].end_s:.3f} s, the prefill after {steps.ttft_s:.3f} s, "
        f"the sending after {steps.sends[-1].end_s:.3f} s; decoding starts then.",
    )
    scale = (WIDTH - 94) / end_s
    lanes = (
        ("1 load", _grouped(steps.layers.loads), TRANSFER), ("2 prefill", _grouped(steps.layers.computes), PREFILL),
        ("3 send", _grouped(steps.sends), TRANSFER), ("4 decode", steps.decodes, DECODE),
    )
    for row, (name, spans, color) in enumerate(lanes):
        y = 14 + row * 38
        drawing.text(0, y + 18, name, bold=row + 1 == step)
        drawing.line(92, y + 26, WIDTH, y + 26, width=0.6)
        for number, span in enumerate(spans):
            # Steps still to come are outlined, so that the reader sees where this is going.
            reached = row < step
            wide = (span.end_s - span.start_s) * scale
            drawing.box(
                92 + span.start_s * scale, y, wide, 24, fill=color if reached else "none", dashed=not reached,
                text=str(number + 1) if wide > 16 else "", hatched=reached and name == "3 send",
            )
    for moment, words, anchor in ((0.0, "placed", "start"), (steps.ttft_s, "first token", "middle")):
        x = 92 + moment * scale
        drawing.line(x, 8, x, 172, color=LIMIT, dashed=True)
        drawing.text(min(x, WIDTH - 40), 188, words, anchor=anchor)
    drawing.text(WIDTH, 204, f"{1e3 * end_s:,.0f} ms", anchor="end")
    return drawing.render()


def _grouped(spans):
    """Merge the layers into a few groups, each from its first layer's start to its last one's end."""
    size = max(1, len(spans) // LAYERS_DRAWN)
    groups = [spans[i : i + size] for i in range(0, len(spans), size)]
    return [type(spans[0])(group[0].start_s, group[-1].end_s) for group in groups]


def draw_pipeline(pipeline: Pipeline, nodes: int) -> str:
    """Rows are nodes, boxes are chunks; the empty corners are what a pipeline wastes."""
    row = 36
    drawing = Drawing(
        nodes * row + 44,
        title="Chunks in a pipeline of nodes",
        description=f"{counted(len(pipeline.stages) // nodes, 'chunk')} over {counted(nodes, 'node')}: "
        f"the last ends after {pipeline.prefill_s:.2f} s, "
        f"{pipeline.speedup:.2f} times faster than on one node.",
    )
    scale = (WIDTH - 66) / pipeline.prefill_s
    for node in range(nodes):
        drawing.text(0, 24 + node * row, f"node {node + 1}")
        drawing.box(64, 6 + node * row, WIDTH - 66, row - 8, dashed=True)
    for stage in pipeline.stages:
        wide = (stage.end_s - stage.start_s) * scale
        text = str(stage.chunk + 1) if wide > 9 * len(str(stage.chunk + 1)) + 4 else ""
        drawing.box(64 + stage.start_s * scale, 6 + stage.node * row, wide, row - 8, fill=PREFILL, text=text)
    drawing.text(64, nodes * row + 22, "0")
    drawing.text(WIDTH, nodes * row + 22, f"{pipeline.prefill_s:.2f} s", anchor="end")
    drawing.text((WIDTH + 64) / 2, nodes * row + 22, "dashed: the node waits", anchor="middle")
    return drawing.render()
