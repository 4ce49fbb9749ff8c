"""The drawings of chapter 3: logical blocks over physical memory, and the block table between them."""

from __future__ import annotations

from collections.abc import Sequence

from kvlib.blocks import BlockManager
from kvlib.explore.palette import INTERNAL, LIMIT, USED
from kvlib.explore.svg import WIDTH, Drawing

SLOTS_A_ROW = 8
SMALL = 12


def draw_shuffle(reads: Sequence[int], holds: Sequence[int], pool_blocks: int) -> str:
    """Logical block ``i`` is read from block ``reads[i]``, while its content lies in block ``holds[i]``."""
    said = ", ".join(f"logical block {i} in {block}" for i, block in enumerate(holds))
    right = list(reads) == list(holds)
    drawing = Drawing(
        214, title="Logical blocks over physical memory",
        description=f"The content lies like this: {said}. "
        + ("The table says the same." if right else f"The table still says {', '.join(map(str, reads))}."),
    )
    width, cell = WIDTH / len(reads), WIDTH / pool_blocks
    drawing.text(0, 15, "The sequence, in order", bold=True)
    for index, block in enumerate(reads):
        drawing.box(index * width, 22, width - 3, 30, fill=USED, text=str(index))
        wrong = block != holds[index]
        color = LIMIT if wrong else "currentColor"
        drawing.arrow((index + 0.5) * width, 53, (block + 0.5) * cell, 142, color=color)
    content = {block: index for index, block in enumerate(holds)}
    for block in range(pool_blocks):
        held = block in content
        drawing.box(block * cell, 144, cell - 2, 30, fill=USED if held else "none", text=str(content[block]) if held else "")
        drawing.text((block + 0.5) * cell, 190, block, anchor="middle", size=SMALL)
    drawing.text(0, 209, "Physical memory: block number below, what it holds inside")
    return drawing.render()


def draw_memory(manager: BlockManager, words: Sequence[str], other: str, mine: str) -> str:
    """The block table of `mine` and every slot of the pool; `other` is somebody else's sequence."""
    table = manager.block_table(mine) if words else []
    size = manager.block_size
    rows = manager.num_blocks * size // SLOTS_A_ROW
    drawing = Drawing(
        86 + 34 * rows, title="Block table and physical memory",
        description=f"{len(words)} tokens in blocks {table}; blocks {manager.block_table(other)} belong to another sequence.",
    )
    drawing.text(0, 15, "Block table: logical → physical (slots filled)" if words else "Block table: empty", bold=True)
    width = min(118, WIDTH / max(1, len(table)))
    for index, block in enumerate(table):
        filled = min(size, len(words) - index * size)
        label = f"{index} → {block} ({filled} of {size})" if width > 100 else f"{index}→{block}"
        drawing.box(index * width, 22, width - 3, 28)
        drawing.text((index + 0.5) * width - 1.5, 41, label, anchor="middle", size=SMALL)
    drawing.text(0, 74, "Physical memory", bold=True)
    place = {block * size + offset: index * size + offset for index, block in enumerate(table) for offset in range(size)}
    others = set(manager.block_table(other))
    for slot in range(manager.num_blocks * size):
        x, y = slot % SLOTS_A_ROW * WIDTH / SLOTS_A_ROW, 82 + 34 * (slot // SLOTS_A_ROW)
        # A gap after each block, so that blocks are seen without reading numbers.
        cell = WIDTH / SLOTS_A_ROW - (5 if (slot + 1) % size == 0 else 1)
        token = place.get(slot)
        if slot // size in others:
            drawing.box(x, y, cell, 28, hatched=True)
        elif token is None:
            drawing.box(x, y, cell, 28, dashed=True)
        elif token >= len(words):
            drawing.box(x, y, cell, 28, fill=INTERNAL)
        else:
            drawing.box(x, y, cell, 28, fill=USED)
            drawing.text(x + cell / 2, y + 18, words[token], anchor="middle", size=SMALL, color="#000")
    return drawing.render()


def draw_mapping(table: Sequence[int], pool_blocks: int, block_size: int, position: int, num_tokens: int) -> str:
    """From a token's position to its block, through the table, to its slot."""
    logical, offset = divmod(position, block_size)
    block = table[logical]
    drawing = Drawing(
        268, title=f"Where token {position} lies",
        description=f"Token {position} is number {offset} in logical block {logical}, which is physical block {block}.",
    )
    width, cell = min(60, WIDTH / len(table)), WIDTH / pool_blocks
    drawing.text(0, 15, f"Token {position} is number {offset} of logical block {logical}", bold=True)
    for index, physical in enumerate(table):
        drawing.box(index * width, 24, width - 3, 28, fill=USED if index == logical else "none", text=str(index))
        drawing.text((index + 0.5) * width - 1.5, 68, f"→ {physical}", anchor="middle", size=SMALL)
    drawing.arrow((logical + 0.5) * width, 74, (block + 0.5) * cell, 112, color=USED)
    for physical in range(pool_blocks):
        own = physical in table
        drawing.box(physical * cell, 114, cell - 2, 28, fill=USED if physical == block else "none", text=str(physical),
                    dashed=not own)
    slot_width = WIDTH / block_size
    filled = min(block_size, num_tokens - logical * block_size)
    drawing.arrow((block + 0.5) * cell, 144, (offset + 0.5) * slot_width, 188, color=USED)
    for inside in range(block_size):
        fill = USED if inside == offset else "none"
        drawing.box(inside * slot_width, 190, slot_width - 1, 28, fill=fill, dashed=inside >= filled)
    drawing.text(0, 240, f"Slot {block} × {block_size} + {offset} = {block * block_size + offset}", bold=True)
    drawing.text(0, 260, "Dashed: blocks of other sequences, and slots still empty")
    return drawing.render()


def draw_workers(table: Sequence[int], pool_blocks: int, heads: Sequence[str]) -> str:
    """One block table, and on each worker the same blocks with that worker's heads."""
    drawing = Drawing(
        96 + 34 * len(heads), title="One block table for all workers",
        description=f"Every worker uses the block table {', '.join(map(str, table))}. In order, they keep {'; '.join(heads)}.",
    )
    drawing.text(0, 15, "The scheduler's block table", bold=True)
    for index, block in enumerate(table):
        drawing.box(index * 84, 24, 78, 28, text=f"{index} → {block}")
    drawing.text(0, 78, "Every GPU looks up the same block numbers", bold=True)
    left, cell = 132, (WIDTH - 132) / pool_blocks
    for worker, own in enumerate(heads):
        y = 88 + 34 * worker
        drawing.text(0, y + 19, f"GPU {worker}: {own}", size=SMALL)
        for block in range(pool_blocks):
            held = block in table
            drawing.box(left + block * cell, y, cell - 2, 28, fill=USED if held else "none", text=str(block) if held else "",
                        dashed=not held)
    return drawing.render()
