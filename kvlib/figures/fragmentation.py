"""Chapter 2: what contiguous allocation loses, from one buddy allocator to the last block of a paged one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from kvlib.blocks import (
    BuddyAllocator, Growth, grow_by_doubling, grow_by_steps, next_power_of_two, tail_waste,
)
from kvlib.errors import OutOfBlocks
from kvlib.explore import (
    COMPUTED, SIMULATED, Choice, Drawing, Option, Prediction, Range, Stepper, View, explorer,
)
from kvlib.explore.palette import EXTERNAL, FREE, INTERNAL, LIMIT, RESERVED, SERIES, USED
from kvlib.explore.svg import WIDTH
from kvlib.explore.words import counted
from kvlib.figures.charts import PATTERNS, Line, Mark, axis, line_chart
from kvlib.serving import KINDS, Knobs, simulate
from kvlib.serving.simulation import MEMORIES
from kvlib.specs import get_model
from kvlib.workloads import Request, alpaca_like, sharegpt_like

KIND_COLOURS = dict(zip(KINDS, (USED, RESERVED, INTERNAL, EXTERNAL, FREE)))
AREA_POINTS = 60
# Stories of the buddy allocator: (name, slots) asks for a block, (name, None) gives it back.
MEMORY_SLOTS = 16
STORIES = {
    "4 + 2 free, apart": (("A", 2), ("B", 2), ("C", 2), ("D", 8), ("A", None), ("B", None), ("E", 6)),
    "4 + 2 free, side by side": (("A", 2), ("B", 2), ("C", 4), ("D", 8), ("B", None), ("C", None), ("E", 6)),
    "neighbors merge": (("A", 3), ("B", 4), ("C", 7), ("D", 1), ("A", None), ("B", None), ("E", 6)),
}
STEPS = 7
LEVELS = (16, 8, 4, 2)
CELL = WIDTH / MEMORY_SLOTS


@dataclass(frozen=True)
class Moment:
    """After a step: blocks held as (start, size, name, asked), free as (start, size), and who was refused."""

    words: str
    held: tuple[tuple[int, int, str, int], ...]
    free: tuple[tuple[int, int], ...]
    refused: tuple[str, int] | None = None

    @property
    def num_free(self) -> int:
        return sum(size for _, size in self.free)

    @property
    def largest_free(self) -> int:
        return max((size for _, size in self.free), default=0)

    @property
    def padding(self) -> int:
        return sum(size - asked for _, size, _, asked in self.held)


def play(operations) -> Moment:
    """Run `operations` on a fresh allocator and describe where they end."""
    memory, owners = BuddyAllocator(MEMORY_SLOTS), {}
    words, refused = "All 16 slots are one free block", None
    for name, slots in operations:
        refused = None
        if slots is None:
            memory.free(owners.pop(name)[0])
            words = f"{name} leaves"
            continue
        try:
            start = memory.allocate(slots)
            owners[name] = (start, slots)
            words = f"{name} asks for {slots} and gets a block of {memory.size_of(start)}"
        except OutOfBlocks:
            words, refused = f"{name} asks for {slots} and is refused", (name, slots)
    held = tuple((start, memory.size_of(start), name, asked) for name, (start, asked) in owners.items())
    return Moment(words, tuple(sorted(held)), tuple(memory.free_blocks()), refused)


@explorer(
    title="A buddy allocator, step by step",
    controls=[
        Stepper("step", "Step", last=STEPS, default=STEPS),
        Choice("story", "Story", tuple(STORIES), default="4 + 2 free, apart"),
    ],
    expects={"step": "changes:free", "story": "changes:largest_free"},
)
def buddy_map(step, story) -> View:
    """Sixteen slots as the buddy allocator sees them: blocks of 16, 8, 4 and 2."""
    now = play(STORIES[story][:step])
    blocks = [(start, size, f"{name}, {asked} asked for") for start, size, name, asked in now.held]
    blocks += [(start, size, "free") for start, size in now.free]
    return View(
        title=f"{now.words}: {now.num_free} slots free, the largest block has {now.largest_free}",
        picture=_memory_map(now),
        table=[["block", "slots", "holds"]]
        + [[f"{start}…{start + size - 1}", size, holds] for start, size, holds in sorted(blocks)],
        source=COMPUTED,
        note=_why(now),
        numbers={"free": now.num_free, "largest_free": now.largest_free, "padding": now.padding},
    )


def _why(now: Moment) -> str:
    if now.refused is None:
        return "A block starts at a multiple of its size, a power of two. The halves of a block are buddies."
    name, slots = now.refused
    needed = next_power_of_two(slots)
    if now.num_free < slots:
        return f"{now.padding} slots that pad other blocks stay empty inside them: internal fragmentation."
    return (
        f"{slots} slots come as a block of {needed}, which starts at 0 or {needed}. Neither half is free: "
        "external fragmentation."
    )


def _memory_map(now: Moment) -> str:
    free = ", ".join(f"{size} at {start}" for start, size in now.free) or "none"
    held = ", ".join(f"{name} at {start} in a block of {size}" for start, size, name, _ in now.held) or "none"
    drawing = Drawing(246, title="Memory of a buddy allocator", description=f"Held: {held}. Free: {free}.")
    drawing.text(0, 14, "16 slots: filled = asked for, hatched = padding", bold=True)
    for start, size, name, asked in now.held:
        drawing.box(start * CELL, 24, asked * CELL, 40, fill=USED, text=name)
        if asked < size:
            drawing.box((start + asked) * CELL, 24, (size - asked) * CELL, 40, fill=INTERNAL, hatched=True)
    for start, size in now.free:
        drawing.box(start * CELL, 24, size * CELL, 40, dashed=True, text="free")
    for slot in range(0, MEMORY_SLOTS, 2):
        drawing.text(slot * CELL + 2, 80, slot, size=12)
    drawing.text(0, 108, "The same blocks by size, each above its halves", bold=True)
    blocks = {(start, size): (name, USED) for start, size, name, _ in now.held}
    blocks |= {block: ("free", "none") for block in now.free}
    for row, size in enumerate(LEVELS):
        _level(drawing, 116 + 24 * row, size, blocks)
    if now.refused:
        name, slots = now.refused
        needed = next_power_of_two(slots)
        words = f"{name}: {counted(slots, 'slot')}, a block of {needed}"
        drawing.box(0, 218, needed * CELL, 24, dashed=True, text=words)
        drawing.text(needed * CELL + 10, 235, "refused", bold=True, color=LIMIT)
    return drawing.render()


def _level(drawing: Drawing, y: float, size: int, blocks: dict) -> None:
    for start in range(0, MEMORY_SLOTS, size):
        if (start, size) in blocks:
            words, fill = blocks[start, size]
            free = fill == "none"
            drawing.box(start * CELL + 1, y, size * CELL - 2, 20, fill=fill, text=words, dashed=free)
        else:
            drawing.line(start * CELL + 3, y + 10, (start + size) * CELL - 3, y + 10, width=0.4)


@explorer(
    title="Stay contiguous by moving",
    controls=[
        Range("tokens", "Final length", 16, 4096, 13, default=1024, unit="tokens", log=True),
        Choice("step", "Fixed step", [64, 128, 256, 512, 1024], default=256, unit="slots"),
    ],
    expects={"tokens": "rises:by_doubling", "step": "falls:by_steps"},
)
def growth(tokens, step) -> View:
    """Tokens copied while one sequence grows: proportional to its length, or to the square of it."""
    doubling, steps = grow_by_doubling(tokens), grow_by_steps(tokens, step)
    shown = 2 * tokens
    picture = line_chart(
        [
            _copies_line("double the space", grow_by_doubling(shown), SERIES[0], 0),
            _copies_line(f"{step} slots more", grow_by_steps(shown, step), SERIES[1], 1),
        ],
        axis("length of the sequence (tokens)", low=0, high=shown),
        axis("tokens copied so far"),
        marks=[
            Mark("your length, doubling", tokens, doubling.tokens_copied, SERIES[0]),
            Mark("your length, fixed step", tokens, steps.tokens_copied, SERIES[1]),
        ],
    )
    return View(
        title=f"To reach {tokens:,} tokens, doubling copies {doubling.tokens_copied:,} tokens and steps of "
        f"{step} copy {steps.tokens_copied:,}",
        picture=picture,
        table=[
            ["quantity", "doubling", f"steps of {step}"],
            ["moves", len(doubling.moves), len(steps.moves)],
            ["tokens copied", doubling.tokens_copied, steps.tokens_copied],
            ["GB copied, OPT-13B", _gigabytes(doubling.tokens_copied), _gigabytes(steps.tokens_copied)],
            ["slots in the end", doubling.capacity, steps.capacity],
            ["held slots with a token, mean (%)", percent(doubling.utilisation), percent(steps.utilisation)],
        ],
        source=COMPUTED,
        note="During a move the old and the new space exist side by side, so the peak is higher than either. "
        "A fixed step copies with the square of the length.",
        numbers={"by_doubling": doubling.tokens_copied, "by_steps": steps.tokens_copied},
    )


def _copies_line(name: str, grown: Growth, color: str, dash: int) -> Line:
    lengths = [copied + 1 for copied, _ in grown.moves]
    totals = list(accumulate((copied for copied, _ in grown.moves), initial=0))
    # A staircase: nothing is copied until the next move.
    x = [1, *(x for length in lengths for x in (length, length)), grown.num_tokens]
    y = [y for total in totals for y in (total, total)]
    return Line(name, x, y, color, dash)


def _gigabytes(tokens: int) -> float:
    return tokens * get_model("opt-13b").shape.kv_bytes_per_token() / 1e9


def percent(share: float) -> float:
    """`share` in percent, to a tenth."""
    # Adding 0 turns the −0 of a share that rounds to nothing into 0.
    return round(100 * share, 1) + 0.0


CHATS = {"ShareGPT-like": sharegpt_like, "Alpaca-like": alpaca_like}
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
NUM_LENGTHS = 1000


def final_lengths(chat: str, seed: int = 0) -> list[int]:
    """Prompt plus output of requests drawn like `chat`, in tokens."""
    return [r.num_input_tokens + r.num_output_tokens for r in CHATS[chat](NUM_LENGTHS, rate=1.0, seed=seed)]


@explorer(
    title="Waste in the last block",
    controls=[
        Choice("block_size", "Block size", BLOCK_SIZES, default=16, unit="tokens"),
        Choice("chat", "Workload", tuple(CHATS), default="ShareGPT-like"),
    ],
    expects={"block_size": "rises:share", "chat": "changes:share"},
)
def tail(block_size, chat) -> View:
    """What finished requests leave empty in their last block, and what half a block would be."""
    lengths = final_lengths(chat)
    found = {size: tail_waste(lengths, size) for size in BLOCK_SIZES}
    here = found[block_size]
    mean = here.used_slots / here.num_sequences
    measured = [100 * waste.share_of_held for waste in found.values()]
    estimated = [100 * waste.half_block_estimate for waste in found.values()]
    return View(
        title=f"Blocks of {block_size}: {_short(here.share_of_held)} % of held slots are empty; "
        f"half a block would be {_short(here.half_block_estimate)} %",
        picture=line_chart(
            [
                Line("measured on drawn lengths", BLOCK_SIZES, measured, USED, markers=True),
                Line("half a block ÷ mean length", BLOCK_SIZES, estimated, SERIES[1], dash=1),
            ],
            axis("block size (tokens)", categories=[str(size) for size in BLOCK_SIZES]),
            axis("empty slots (%)", low=0, high=100),
            marks=[Mark("your block size", block_size, 100 * here.share_of_held, LIMIT)],
        ),
        table=[
            ["quantity", "value"],
            ["mean final length (tokens)", round(mean, 1)],
            ["empty slots per request, mean", round(here.slots_per_sequence, 2)],
            ["half a block (slots)", block_size / 2],
            ["empty slots, share of held (%)", round(100 * here.share_of_held, 2)],
            ["half a block ÷ mean length (%)", round(100 * here.half_block_estimate, 2)],
        ],
        source=f"{SIMULATED} on {NUM_LENGTHS:,} lengths drawn {chat}",
        note="A block of 1 wastes nothing. Once blocks are as long as many requests, the waste is block size "
        "minus length, and half a block says nothing about it.",
        numbers={"share": here.share_of_held, "estimate": here.half_block_estimate},
    )


def _short(share: float) -> str:
    value = 100 * share
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


ONE_REQUEST_SLOTS = 4096
RULES = {"oracle": "Oracle", "pow2": "Pow2", "max": "Max, 2,048", "paged": "Paged, blocks of 16"}


@dataclass(frozen=True)
class Life:
    """Shares of the slot-seconds one request holds from its first step to its last."""

    used: float
    reserved: float
    internal: float


def life_of(num_input_tokens: int, num_output_tokens: int, memory: str) -> Life:
    """Serve one request alone and split the slot-seconds it held.

    Examples
    --------
    >>> life = life_of(100, 300, "oracle")
    >>> round(life.used, 2), round(life.reserved, 2), round(life.internal, 2)
    (0.49, 0.29, 0.22)
    """
    one = [Request(0.0, num_input_tokens, num_output_tokens)]
    shares = simulate(one, memory=memory, num_slots=ONE_REQUEST_SLOTS).utilisation_by_kind
    held = 1 - shares["free"] - shares["external"]
    return Life(shares["used"] / held, shares["reserved"] / held, shares["internal"] / held)


def _predict_slot_seconds() -> Prediction:
    empty = 1 - life_of(161, 351, "oracle").used
    fact = f"In the run {100 * empty:.0f} % of its slot-seconds are empty."
    return Prediction(
        "A prompt of 161 tokens, 351 generated, and an oracle that reserves exactly the 512 slots they "
        "need. Every slot will be used in the end. What share of the slots, averaged over the request's "
        "life, is empty?",
        (
            Option("none", f"In the last step that is true. In the first, 351 slots wait for tokens. {fact}"),
            Option("about a third", f"{fact} A slot for a generated token waits half the time, on average."),
            Option("about two thirds", f"That is so at the start, before generated tokens come. {fact}"),
        ),
        answer=min(range(3), key=lambda i: abs((0.0, 1 / 3, 2 / 3)[i] - empty)),
    )


@explorer(
    title="One request's slot-seconds",
    controls=[
        Range("output", "Generated tokens", 51, 801, 16, default=351, unit="tokens"),
        Range("prompt", "Prompt", 11, 811, 17, default=161, unit="tokens"),
        Choice("memory", "Policy", tuple(RULES.items()), default="oracle"),
    ],
    predict=_predict_slot_seconds,
    expects={"output": "changes:used", "prompt": "changes:used", "memory": "changes:used"},
)
def slot_seconds(output, prompt, memory) -> View:
    """The life of one request as an area: slots upwards, its steps to the right."""
    life = life_of(prompt, output, memory)
    return View(
        title=f"{percent(1 - life.used):g} % of the slot-seconds this request holds are empty",
        picture=_life_areas(prompt, output, memory),
        table=[
            ["share of slot-seconds", "%"],
            ["used: a token is there", percent(life.used)],
            ["reserved: a token will come", percent(life.reserved)],
            ["internal: no token will come", percent(life.internal)],
        ],
        source=SIMULATED,
        note="What is hatched, no other request could have. The token generated last is never stored: nobody "
        "reads its KV.",
        numbers={"used": life.used, "reserved": life.reserved, "internal": life.internal},
    )


def _life_areas(prompt: int, output: int, memory: str) -> dict:
    request, final_tokens = Request(0.0, prompt, output), prompt + output - 1
    store = MEMORIES[memory](ONE_REQUEST_SLOTS, 16, Knobs.max_len)
    store.admit("one", request, prompt)
    every = -(-output // AREA_POINTS)
    steps, columns = [], {"used": [], "reserved": [], "internal": []}
    for step in range(output):
        if step:
            store.grow(["one"], 1)
        if step % every == 0 or step == output - 1:
            tokens, held = prompt + step, store.held_slots
            internal = max(0, held - final_tokens)
            steps.append(step)
            columns["used"].append(tokens)
            columns["reserved"].append(held - tokens - internal)
            columns["internal"].append(internal)
    slots_axis = axis("token slots of this request", low=0, high=store.held_slots * 1.05)
    return stacked_areas(steps, columns, axis("decode step"), slots_axis)


def stacked_areas(x, columns: dict[str, list], x_axis: dict, y_axis: dict) -> dict:
    """Slots by kind, one on top of the other; patterns tell the kinds apart without color."""
    figure = line_chart([], x_axis, y_axis)
    figure["data"] = [_area(kind, x, y) for kind, y in columns.items()]
    return figure


def _area(kind: str, x, y) -> dict:
    color = KIND_COLOURS[kind]
    return {
        "type": "scatter",
        "mode": "lines",
        "stackgroup": "slots",
        "name": kind,
        "x": x,
        "y": y,
        "line": {"color": color, "width": 0.5},
        "fillcolor": color,
        "fillpattern": {
            "shape": PATTERNS[KINDS.index(kind)], "fgcolor": "#fff", "bgcolor": color, "size": 6,
        },
    }
