"""Primer 3, virtual memory: addresses, page faults, the price of one indirection, and two LLM twists."""

from __future__ import annotations

import random

from kvlib.explore import (
    COMPUTED, SIMULATED, Choice, Option, Prediction, Problem, Range, Slip, Stepper, View, exercise, explorer,
)
from kvlib.explore.palette import LIMIT, SERIES
from kvlib.figures.charts import Line, Mark, axis, line_chart
from kvlib.figures.primer_memory_drawings import (
    PHYSICAL_BITS, VIRTUAL_BITS, draw_evictions, draw_memory, draw_translation,
)
from kvlib.primers.eviction import able_to_run, evict_blocks, evict_sequences
from kvlib.primers.paging import Memory
from kvlib.primers.program import PROGRAM, run
from kvlib.primers.translation import effective_access_ns, translate

# ---------------------------------------------------------------- one address, translated


def _page_table(page_size: int) -> list[int]:
    """Pages of a small process, scattered over a memory of twice its size."""
    frames = list(range(2**PHYSICAL_BITS // page_size))
    random.Random(4).shuffle(frames)
    return frames[: 2**VIRTUAL_BITS // page_size]


@explorer(
    title="One address, translated",
    controls=[
        Range("address", "Virtual address", 0, 63, 22, default=21),
        Choice("page_size", "Page size", [4, 8, 16, 32], default=16, unit="bytes"),
    ],
    expects={"address": "changes:physical", "page_size": "falls:entries"},
)
def translate_address(address, page_size) -> View:
    """The page number goes through the table, the offset goes straight down."""
    table = _page_table(page_size)
    page, offset = divmod(address, page_size)
    physical = translate(table, page_size, address)
    return View(
        title=(
            f"Virtual address {address} is page {page}, offset {offset}: it lies at physical address "
            f"{physical}"
        ),
        picture=draw_translation(table, page_size, address, physical),
        table=[
            ["", "virtual", "physical"],
            ["page or frame", page, table[page]],
            ["offset", offset, offset],
            ["address", address, physical],
            ["entries in the page table", len(table), ""],
        ],
        source=COMPUTED,
        note=(
            f"{address} = {page} × {page_size} + {offset} and {physical} = {table[page]} × {page_size} + "
            f"{offset}. Larger pages mean a shorter table, and more memory lost in a page that is only "
            "partly used."
        ),
        numbers={"physical": physical, "entries": len(table), "offset": offset},
    )


# ---------------------------------------------------------------- faults, sharing, copy-on-write, swapping

COPY_STEP = 6


def _predict_copies() -> Prediction:
    before, _ = run(4, COPY_STEP - 1)
    after, _ = run(4, COPY_STEP)
    copies = after.copies - before.copies
    reply = f"The run makes {copies} copy at this write: page 1. Page 0 stays shared."
    return Prediction(
        "Process A has filled two pages and forks. Its twin B then writes into page 1. How many pages are "
        "copied, in all?",
        (
            Option(
                "2, both at the fork",
                f"That is what a plain copy would cost, mostly for pages nobody changes. {reply}",
            ),
            Option("1, at the write", reply),
            Option("0", f"Then A would see B's number in its own page. {reply}"),
        ),
        answer={2: 0, 1: 1, 0: 2}[copies],
    )


@explorer(
    title="Two processes, a few frames and a disk",
    controls=[
        Stepper("step", "Step", last=len(PROGRAM) - 1, default=COPY_STEP - 1),
        Choice("num_frames", "Frames of memory", [3, 4, 5, 6], default=4),
    ],
    predict=_predict_copies,
    expects={"step": "changes:page_faults", "num_frames": "rises:free_frames"},
)
def paging_steps(step, num_frames) -> View:
    """Page tables above, frames and disk below, after each action of a small program."""
    memory, events = run(num_frames, step)
    action = PROGRAM[step]
    free = num_frames - len(memory.frames)
    said = ". ".join(event[0].upper() + event[1:] for event in events)
    return View(
        title=f"Step {step}: {action.words}",
        picture=draw_memory(memory, action, said),
        table=[
            ["so far", "count"],
            ["page faults", memory.page_faults],
            ["copies on write", memory.copies],
            ["pages moved to disk", memory.swaps_out],
            ["pages brought back", memory.swaps_in],
            ["free frames now", free],
            ["frames that both processes use", sum(memory.refcount(frame) > 1 for frame in memory.frames)],
        ],
        source=SIMULATED,
        note=f"{said}.",
        numbers={
            "page_faults": memory.page_faults, "copies": memory.copies,
            "swaps": memory.swaps_out + memory.swaps_in, "free_frames": free,
        },
    )


# ---------------------------------------------------------------- the price of one indirection

HIT_RATES = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999)


@explorer(
    title="The price of one indirection",
    controls=[
        Choice("hit_rate", "TLB hit rate", [(h, f"{100 * h:g} %") for h in HIT_RATES], default=0.98),
        Choice("levels", "Levels of the page table", [1, 2, 3, 4, 5], default=4),
        Choice("memory_ns", "One memory access", [20, 50, 100, 150], default=100, unit="ns"),
        Choice("tlb_ns", "One TLB look-up", [0.5, 1, 2, 5], default=1, unit="ns"),
    ],
    expects={
        "hit_rate": "falls:access_ns", "levels": "rises:access_ns", "memory_ns": "rises:access_ns",
        "tlb_ns": "rises:access_ns",
    },
)
def indirection_price(hit_rate, levels, memory_ns, tlb_ns) -> View:
    """Mean access time against the misses, beside an access that needs no translation."""
    here = effective_access_ns(hit_rate, tlb_ns, memory_ns, levels)
    slower = here / memory_ns - 1
    misses = [100 * (1 - rate) for rate in HIT_RATES]
    curve = [effective_access_ns(rate, tlb_ns, memory_ns, levels) for rate in HIT_RATES]
    return View(
        title=(
            f"At {100 * hit_rate:g} % hits an access takes {here:.4g} ns, {100 * slower:.3g} % more than "
            "without translation"
        ),
        picture=line_chart(
            [
                Line("translated", misses, curve, SERIES[0], markers=True),
                Line("no translation", misses, [memory_ns] * len(HIT_RATES), SERIES[5], dash=1),
            ],
            axis("TLB misses (%)", log=True), axis("mean access (ns)", low=0, high=1.1 * max(curve)),
            marks=[Mark("you", 100 * (1 - hit_rate), here, LIMIT)],
        ),
        table=[
            ["part", "ns"],
            ["TLB look-up, always", tlb_ns],
            ["the access itself, always", memory_ns],
            [f"page walk, {100 * (1 - hit_rate):.3g} % × {levels} × {memory_ns}", here - tlb_ns - memory_ns],
            ["mean access", here],
        ],
        source=COMPUTED + ", with the times you set: they are inputs, not measurements",
        note=(
            f"Each percent of misses adds {levels} × {memory_ns} / 100 = {levels * memory_ns / 100:g} ns. "
            "Once misses are rare the curve is flat, and a better TLB buys nothing more."
        ),
        numbers={"access_ns": here, "slower": slower},
    )


# ---------------------------------------------------------------- the first twist: all or nothing

SEQUENCES = 4


def _predict_eviction() -> Prediction:
    able = able_to_run(evict_blocks([6] * SEQUENCES, SEQUENCES))
    reply = (
        f"{able} of {SEQUENCES} can go on: a decode step reads every block of its sequence, so one hole "
        "stops it."
    )
    return Prediction(
        f"{SEQUENCES} sequences hold 6 blocks each. {SEQUENCES} blocks must go, and the oldest go first, "
        "one by one, as an operating system would do it. How many sequences can take their next step?",
        (
            Option("all 4", f"A process runs on as long as it does not touch the missing page. {reply}"),
            Option("3", f"That needs all four blocks to come from one sequence. {reply}"),
            Option("none", reply),
        ),
        answer={4: 0, 3: 1, 0: 2}[able],
    )


@explorer(
    title="Evict blocks, or evict a sequence?",
    controls=[
        Range("needed", "Blocks to free", 0, 12, 13, default=1),
        Choice("blocks_each", "Blocks each sequence holds", [3, 4, 6, 8], default=6),
    ],
    predict=_predict_eviction,
    expects={"needed": "falls:able_whole", "blocks_each": "rises:freed_whole"},
)
def all_or_nothing(needed, blocks_each) -> View:
    """The same demand met twice: single blocks, oldest first, and whole sequences, last first."""
    held = [blocks_each] * SEQUENCES
    single, whole = evict_blocks(held, needed), evict_sequences(held, needed)
    able = able_to_run(single), able_to_run(whole)
    return View(
        title=(
            f"Blocks to free: {needed}. Taken one by one, {able[0]} of {SEQUENCES} sequences go on; by whole "
            f"sequences, {able[1]}"
        ),
        picture=draw_evictions(blocks_each, single, whole),
        table=[
            ["", "single blocks", "whole sequences"],
            ["blocks freed", sum(single), sum(whole)],
            ["sequences able to run", *able],
        ],
        source=COMPUTED,
        note=(
            "Taking a whole sequence may free more blocks than were asked for. They are not wasted: the "
            "others grow into them."
        ),
        numbers={"able_single": able[0], "able_whole": able[1], "freed_whole": sum(whole)},
    )


# ---------------------------------------------------------------- three questions

@exercise(title="Translate an address")
def ready_1(rng: random.Random) -> Problem:
    """Virtual to physical through a drawn page table."""
    page_size = rng.choice([64, 100, 256])
    table = rng.sample(range(5, 30), 4)
    page, offset = rng.randrange(1, 4), rng.randrange(page_size // 4, page_size)
    address = page * page_size + offset
    answer = translate(table, page_size, address)
    listed = ", ".join(f"{i} → {frame}" for i, frame in enumerate(table))
    return Problem(
        f"Pages are {page_size} bytes. The page table says {listed}. Where does virtual address {address} "
        "lie?",
        answer, "(physical address)",
        f"{address} = {page} × {page_size} + {offset}, so it is page {page}, offset {offset}. Page {page} "
        f"is in frame {table[page]}: {table[page]} × {page_size} + {offset} = {answer}.",
        slips=(
            Slip(table[page] * page_size, "That is where the frame begins. Add the offset."),
            Slip(
                table[page - 1] * page_size + offset,
                "You took the entry before it. Pages are counted from 0.",
            ),
            Slip(
                table[page] * page_size + address,
                "Only the offset is added, not the whole virtual address.",
            ),
        ),
    )


@exercise(title="The price of missing")
def ready_2(rng: random.Random) -> Problem:
    """Effective access time."""
    hit_rate, memory_ns = rng.choice([0.9, 0.95, 0.98]), rng.choice([50, 80, 100])
    levels = rng.choice([2, 3, 4])
    answer = effective_access_ns(hit_rate, 1, memory_ns, levels)
    missed = round(1 - hit_rate, 2)
    return Problem(
        f"A TLB look-up takes 1 ns and a memory access {memory_ns} ns. The page table has {levels} levels "
        f"and the TLB hits {100 * hit_rate:g} % of the time. How long does an access take on average?",
        answer, "ns",
        f"1 + {memory_ns} + {missed:g} × {levels} × {memory_ns} = {answer:g} ns: look-up and access always, "
        "the walk for misses.",
        tolerance=0.001,
        slips=(
            Slip(answer - memory_ns, "You left out the access itself."),
            Slip(
                effective_access_ns(missed, 1, memory_ns, levels),
                "You weighed the walk with the hit rate. It is for misses.",
            ),
            Slip(
                effective_access_ns(hit_rate, 1, memory_ns, 1),
                "You walked one level. Each level is one more access.",
            ),
        ),
    )


@exercise(title="Copies after a fork")
def ready_3(rng: random.Random) -> Problem:
    """Frames in use when every process of a family writes the same pages, counted by a run."""
    pages, processes = rng.randrange(6, 13), rng.randrange(3, 6)
    written = rng.randrange(2, 5)
    memory = Memory(pages * processes, pages)
    names = [f"P{i}" for i in range(processes)]
    memory.start(names[0])
    for page in range(pages):
        memory.write(names[0], page, 1)
    for child in names[1:]:
        memory.fork(names[0], child)
    for name in names:
        for page in range(written):
            memory.write(name, page, 2)
    answer = len(memory.frames)
    return Problem(
        f"A process has filled {pages} pages and forks {processes - 1} times, so that {processes} processes "
        f"share them. Then each of the {processes} writes into its pages 0 to {written - 1}. How many "
        "frames are in use?",
        answer, "frames",
        f"{pages} frames at first. Each written page is copied for every writer but the last, who is alone "
        f"with the original by then: {pages} + {written} × {processes - 1} = {answer}.",
        slips=(
            Slip(
                pages + written * processes,
                "The last writer is alone with the original and needs no copy.",
            ),
            Slip(pages * processes, "That is a full copy for everybody. Only written pages are copied."),
            Slip(pages, "Nobody may see another's writes, so the written pages need copies."),
        ),
    )
