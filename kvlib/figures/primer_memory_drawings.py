"""The drawings of primer 3: an address and its bits, page tables over frames, and evicted blocks."""

from __future__ import annotations

from kvlib.explore.palette import EXTERNAL, USED
from kvlib.explore.svg import Drawing
from kvlib.primers.eviction import able_to_run
from kvlib.primers.paging import Entry, Memory
from kvlib.primers.program import Action

VIRTUAL_BITS, PHYSICAL_BITS = 6, 7
BIT, TABLE_X = 40, 84
ENTRY, FRAME = 56, 58
TABLE_LEFT = {"A": 0, "B": 252}


def draw_translation(table, page_size, address, physical) -> str:
    page = address // page_size
    offset_bits = page_size.bit_length() - 1
    drawing = Drawing(
        262, title=f"Translation of virtual address {address}",
        description=(
            f"Page {page} is looked up in the page table and gives frame {table[page]}; the offset is kept."
        ),
    )
    drawing.text(0, 15, f"Virtual address {address}: page {page} | offset {address % page_size}", bold=True)
    _draw_bits(drawing, 24, address, VIRTUAL_BITS, offset_bits)
    drawing.text(0, 129, "page table")
    # The table ends where the offset bits begin, so that their arrow passes beside it.
    width = min((480 - offset_bits * BIT - TABLE_X) / len(table), 60)
    for number, frame in enumerate(table):
        fill = USED if number == page else "none"
        # Sixteen entries leave no room for both numbers; the place says which page it is.
        words = str(frame) if width < 50 else f"{number}→{frame}"
        drawing.box(TABLE_X + number * width, 110, width - 2, 28, fill=fill, text=words)
    chosen = TABLE_X + (page + 0.5) * width
    page_middle = _bits_left(VIRTUAL_BITS) + (VIRTUAL_BITS - offset_bits) * BIT / 2
    drawing.arrow(page_middle, 54, chosen, 108, color=USED)
    frame_middle = _bits_left(PHYSICAL_BITS) + (PHYSICAL_BITS - offset_bits) * BIT / 2
    drawing.arrow(chosen, 138, frame_middle, 190, color=USED)
    offset_middle = 480 - offset_bits * BIT / 2
    drawing.arrow(offset_middle, 54, offset_middle, 190)
    _draw_bits(drawing, 192, physical, PHYSICAL_BITS, offset_bits)
    words = f"Physical address {physical}: frame {table[page]} | offset {physical % page_size}"
    drawing.text(0, 244, words, bold=True)
    return drawing.render()


def _bits_left(bits: int) -> float:
    return 480 - bits * BIT


def _draw_bits(drawing, top, value, bits, offset_bits):
    for place, digit in enumerate(format(value, f"0{bits}b")):
        looked_up = place < bits - offset_bits
        fill = USED if looked_up else "none"
        drawing.box(_bits_left(bits) + place * BIT, top, BIT - 2, 30, fill=fill, text=digit)


def draw_memory(memory: Memory, action: Action, said: str) -> str:
    drawing = Drawing(252, title=action.words, description=f"{action.words}. {said}.")
    for process in memory.tables:
        drawing.text(TABLE_LEFT[process], 15, f"Page table of {process}", bold=process == action.process)
    _draw_places(drawing, memory)
    for process, table in memory.tables.items():
        for page, entry in enumerate(table):
            touched = (process, page) == (action.process, action.page)
            _draw_entry(drawing, process, page, entry, touched=touched)
    return drawing.render()


def _draw_places(drawing: Drawing, memory: Memory):
    """Frames at the left, each with how many tables point at it; disk slots at the right."""
    for number in range(memory.num_frames):
        held = memory.frames.get(number)
        fill, words = ("none", "free") if held is None else (USED, str(held.value))
        drawing.box(number * FRAME, 170, FRAME - 4, 36, fill=fill, text=words, dashed=held is None)
        pointers = memory.refcount(number)
        name = f"f{number} ×{pointers}" if pointers > 1 else f"f{number}"
        drawing.text(number * FRAME + FRAME / 2 - 2, 224, name, anchor="middle")
    drawing.text(0, 246, "Frames (×2: two tables point here)")
    for slot, value in memory.disk.items():
        x = _disk_left(slot)
        drawing.box(x, 170, FRAME - 4, 36, fill=EXTERNAL, text=str(value))
        drawing.text(x + FRAME / 2 - 2, 224, f"d{slot}", anchor="middle")
    if memory.disk:
        drawing.text(480, 246, "Disk", anchor="end")


def _disk_left(slot: int) -> float:
    return 480 - (slot + 1) * FRAME + 4


def _draw_entry(drawing: Drawing, process: str, page: int, entry: Entry, *, touched: bool):
    x = TABLE_LEFT[process] + page * ENTRY
    middle = x + ENTRY / 2 - 2
    words, target = "-", None
    if entry.frame is not None:
        words, target = f"f{entry.frame}", entry.frame * FRAME + FRAME / 2 - 2
    elif entry.disk_slot is not None:
        words, target = f"d{entry.disk_slot}", _disk_left(entry.disk_slot) + FRAME / 2 - 2
    fill, color = (USED, USED) if touched else ("none", "currentColor")
    drawing.text(middle, 38, f"page {page}", anchor="middle", bold=touched)
    drawing.box(x, 44, ENTRY - 4, 28, fill=fill, text=words)
    if target is not None:
        # Two arrows into one frame arrive a little apart, so that both heads can be seen.
        apart = -7 if process == "A" else 7
        drawing.arrow(middle, 72, target + apart, 168, color=color)


def draw_evictions(blocks_each, single, whole) -> str:
    drawing = Drawing(
        158, title="Eviction by blocks and by sequences",
        description=(
            f"Still able to run: {able_to_run(single)} after single blocks, {able_to_run(whole)} after whole sequences."
        ),
    )
    halves = (0, "single blocks, oldest first", single), (246, "whole sequences, last first", whole)
    for left, words, taken in halves:
        drawing.text(left, 15, words, bold=True)
        width = 176 / blocks_each
        for sequence, lost in enumerate(taken):
            y = 26 + sequence * 32
            for block in range(blocks_each):
                gone = block < lost
                fill = "none" if gone else USED
                drawing.box(left + block * width, y, width - 2, 24, fill=fill, dashed=gone)
            drawing.text(left + 180, y + 17, "stops" if lost else "runs")
    return drawing.render()
