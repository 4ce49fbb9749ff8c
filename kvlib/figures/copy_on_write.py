"""Chapter 4: the explorers that let several sequences share blocks until one of them writes."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path

from kvlib.blocks import BlockManager
from kvlib.explore import SIMULATED, Choice, Option, Prediction, Range, Stepper, View, explorer
from kvlib.explore.palette import LIMIT, SERIES, USED
from kvlib.explore.words import counted
from kvlib.figures.charts import Line, Mark, axis, line_chart, stacked_bars
from kvlib.figures.copy_on_write_drawings import SHARED, draw_sharing, draw_tree
from kvlib.tensors.decoding import descend
from kvlib.tensors.sharing import SharingRun, replay, samples_tree

BLOCK_SIZES = (4, 8, 16, 32, 64)
SAMPLE_NAMES = "ABCDEFGH"
POOL_BLOCKS = 16
OUTPUTS = (10, 20, 40, 80, 160, 320)
SAMPLES = 4


@cache
def beam_runs() -> dict:
    """Beam searches of SmolLM2, run beforehand by ``data/make_copy_on_write.py``."""
    return json.loads((Path(__file__).parent / "data" / "copy_on_write.json").read_text())


def beam_parents(width: int) -> list[list[int]]:
    """The family tree of that width."""
    return next(run["parents"] for run in beam_runs()["runs"] if run["width"] == width)


@cache
def beam_replay(width: int, steps: int, prompt_tokens: int, block_size: int) -> SharingRun:
    """The first `steps` steps of that tree on blocks."""
    return replay(prompt_tokens, beam_parents(width)[:steps], block_size)


def _predict_copies() -> Prediction:
    at_96, at_97 = (replay(prompt, samples_tree(SAMPLES, 1), 16) for prompt in (96, 97))
    fact = f"At 96 tokens there are {at_96.copies} copies, at 97 there are {at_97.copies}."
    return Prediction(
        "Four samples of one prompt, blocks of 16 tokens. The prompt grows from 96 to 97 tokens. Copies at the first write go from 0 to …",
        (
            Option("1", f"One copy would leave three samples writing into the same block. {fact}"),
            Option("3", f"Three writers copy; the fourth finds itself alone with the block and keeps it. {fact}"),
            Option("4", f"The last writer has nobody left to share with, so it keeps the original. {fact}"),
        ),
        answer={1: 0, 3: 1, 4: 2}[at_97.copies],
    )


@explorer(
    title="Four writers, one block",
    controls=[
        Stepper("step", "Step", last=6, default=2),
        Choice("prompt", "Prompt", [30, 32, 33, 40, 46], default=40, unit="tokens"),
        Choice("block_size", "Block size", [8, 16, 32], default=16, unit="tokens"),
    ],
    predict=_predict_copies,
    expects={"step": "rises:copies", "prompt": "changes:blocks", "block_size": "changes:blocks"},
)
def four_writers(step, prompt, block_size) -> View:
    """Prefill, fork three times, then each sample writes its first token in turn."""
    manager = BlockManager(POOL_BLOCKS, block_size)
    manager.allocate("A", prompt)
    seqs, said, copies, changed = ["A"], f"A prompt of {prompt} tokens; every block belongs to one table", 0, []
    if step:
        names = iter(SAMPLE_NAMES[1:])
        seqs = descend(manager, seqs, [0] * SAMPLES, lambda: next(names))
        said = f"After the fork all {SAMPLES} tables point at the same physical blocks, and nothing was copied"
    for writer in seqs[:max(0, step - 1)]:
        before = set(manager.block_table(writer))
        manager.append(writer)
        copied = manager.take_copies()
        copies += len(copied)
        changed = sorted(set(manager.block_table(writer)) - before)
        said = (f"{writer} writes: block {copied[0][0]} is shared, so it is copied to block {copied[0][1]} first" if copied
                else f"{writer} writes: the last block is full, so it takes block {changed[0]}" if changed
                else f"{writer} writes: nobody else points at the block any more, so it keeps the original")
    if step == 6:
        manager.free("B")
        changed = []
        said = "B has ended: its references are dropped, and only blocks with a count of 0 are free again"
    live = [seq for seq in seqs if step < 6 or seq != "B"]
    tables = {f"sample {seq}": manager.block_table(seq) for seq in live}
    refcounts = dict(sorted(Counter(block for table in tables.values() for block in table).items()))
    return View(
        title=said,
        picture=draw_sharing(tables, refcounts, changed, POOL_BLOCKS),
        table=[
            ["quantity", "value"],
            ["copies so far", copies],
            ["blocks held", len(refcounts)],
            ["blocks if nothing were shared", sum(map(len, tables.values()))],
            ["free blocks", manager.num_free],
        ],
        source=SIMULATED,
        note="Numbers in the tables are physical blocks. Below, each block shows its reference count; a red bar marks what has just been "
        "written into.",
        numbers={"copies": copies, "blocks": len(refcounts)},
    )


@explorer(
    title="Fewer copies, fewer blocks?",
    controls=[
        Range("prompt", "Prompt", 90, 114, 25, default=97, unit="tokens"),
        Choice("samples", "Samples", [2, 4, 6, 8], default=4),
        Choice("block_size", "Block size", [8, 16, 32], default=16, unit="tokens"),
    ],
    expects={"samples": "rises:copies", "prompt": "changes:new_blocks", "block_size": "falls:blocks"},
)
def copies_and_blocks(prompt, samples, block_size) -> View:
    """At the first write: blocks copied, and blocks taken."""
    prompts = list(range(90, 115))
    runs = {length: replay(length, samples_tree(samples, 1), block_size) for length in prompts}
    here = runs[prompt]
    figure = line_chart(
        [
            Line("blocks taken", prompts, [runs[p].new_blocks for p in prompts], SERIES[0], markers=True),
            Line("blocks copied", prompts, [runs[p].copies for p in prompts], SERIES[1], dash=1, markers=True),
        ],
        axis("prompt (tokens)", low=89, high=115), axis("blocks, first write of all samples", low=-0.3, high=samples + 1),
        marks=[Mark("your prompt", prompt, here.new_blocks, LIMIT)],
    )
    return View(
        title=f"{prompt} tokens: {counted(here.copies, 'copy', 'copies')} and {counted(here.new_blocks, 'new block')}",
        picture=figure,
        table=[
            ["quantity", "value"],
            ["tokens in the last block", prompt % block_size or block_size],
            ["blocks copied", here.copies],
            ["blocks taken", here.new_blocks],
            ["blocks held then", here.blocks],
        ],
        source=SIMULATED,
        note="With a full last block nothing is copied, but every sample needs a block of its own, the one that would have kept the "
        "original included.",
        numbers={"copies": here.copies, "new_blocks": here.new_blocks, "blocks": here.blocks},
    )


@explorer(
    title="What parallel sampling saves",
    controls=[
        Choice("output", "Output", OUTPUTS, default=40, unit="tokens"),
        Choice("samples", "Samples", [2, 4, 6, 8], default=4),
        Choice("prompt", "Prompt", [19, 50, 100, 161, 400], default=100, unit="tokens"),
        Choice("block_size", "Block size", BLOCK_SIZES, default=16, unit="tokens"),
    ],
    expects={"output": "falls:saving", "samples": "rises:saving", "prompt": "changes:saving", "block_size": "changes:blocks"},
)
def sampling(output, samples, prompt, block_size) -> View:
    """Blocks with and without sharing, averaged over the run and at its end."""
    here = replay(prompt, samples_tree(samples, output), block_size)
    curve = [100 * replay(prompt, samples_tree(samples, n), block_size).saving for n in OUTPUTS]
    places = [str(n) for n in OUTPUTS]
    around = [places[0], places[-1], places[-1], places[0], places[0]]
    figure = line_chart(
        [
            Line("this book", places, curve, SERIES[0], markers=True),
            Line("paper, ShareGPT: 16.2 to 30.5 %", around, [16.2, 16.2, 30.5, 30.5, 16.2], SERIES[2], dash=1),
            Line("paper, Alpaca: 6.1 to 9.8 %", around, [6.1, 6.1, 9.8, 9.8, 6.1], SERIES[1], dash=2),
        ],
        axis("output of each sample (tokens)", categories=places), axis("blocks saved over the run (%)", low=0, high=100),
        marks=[Mark("your setting", str(output), 100 * here.saving, LIMIT)],
    )
    return View(
        title=f"Sharing saves {samples} samples {100 * here.saving:.3g} % of their blocks, "
        f"for {counted(here.copies, 'block copy', 'block copies')}",
        picture=figure,
        table=[
            ["quantity", "value"],
            ["blocks at the end, shared", here.blocks],
            ["blocks at the end, not shared", here.blocks_alone],
            ["saved at the end (%)", 100 * (1 - here.blocks / here.blocks_alone)],
            ["saved over the run (%)", 100 * here.saving],
            ["blocks copied", here.copies],
        ],
        source=f"{SIMULATED}; the two bands are reported by Kwon et al. 2023, section 6.3",
        note="Only the prompt is shared. The paper's requests have long outputs beside their prompts (161 in and 338 out on ShareGPT, 19 "
        "and 58 on Alpaca) and end at different times.",
        numbers={"saving": here.saving, "blocks": here.blocks, "copies": here.copies},
    )


@explorer(
    title="A beam search and its shared blocks",
    controls=[
        Stepper("step", "Step", last=32, default=12),
        Choice("width", "Beam width", [2, 4, 6], default=4),
        Choice("block_size", "Block size", BLOCK_SIZES, default=16, unit="tokens"),
    ],
    expects={"step": "rises:copies", "width": "changes:copies", "block_size": "changes:copies"},
)
def beam(step, width, block_size) -> View:
    """The family tree of a real beam search, and what it costs in blocks so far."""
    data = beam_runs()
    run = beam_replay(width, step, data["prompt_tokens"], block_size)
    ratio = run.whole_copy_tokens / run.copied_tokens if run.copied_tokens else None
    return View(
        title=f"After {counted(step, 'step')} {width} beams hold {counted(run.blocks, 'block')} instead of {run.blocks_alone}, "
        f"with {counted(run.copies, 'copy', 'copies')}"
        if step else f"The prompt of {data['prompt_tokens']} tokens holds {counted(run.blocks, 'block')}",
        picture=draw_tree(beam_parents(width)[:step], width, run.refcounts),
        table=[
            ["so far", "value"],
            ["blocks copied on write", run.copies],
            ["slots copied (whole blocks)", run.copied_tokens],
            ["tokens moved by whole-cache copying", run.whole_copy_tokens],
            ["whole-cache ÷ copy-on-write", ratio if ratio else "–"],
            ["blocks with the highest count", max(run.refcounts.values(), default=1)],
        ],
        source=f"{SIMULATED}, on a family tree computed beforehand on SmolLM2-135M",
        note="A hypothesis without a thick line has died out; its blocks are free again unless a relative still uses them.",
        numbers={"copies": run.copies, "blocks": run.blocks, "copied_tokens": run.copied_tokens},
    )


@explorer(
    title="Copying for beams",
    controls=[
        Choice("block_size", "Block size", (1, 2, *BLOCK_SIZES), default=16, unit="tokens"),
        Choice("width", "Beam width", [2, 4, 6], default=4),
        Choice("prompt", "Prompt", [16, 64, 100, 256], default=64, unit="tokens"),
    ],
    expects={"block_size": "changes:copied_tokens", "width": "rises:whole", "prompt": "rises:whole"},
)
def beam_copying(block_size, width, prompt) -> View:
    """Tokens moved in 32 steps: everything, only what a fork needs, or only the shared last block."""
    run = beam_replay(width, len(beam_parents(width)), prompt, block_size)
    ways = ["copy the whole cache", "copy for second children", "copy-on-write"]
    moved = [run.whole_copy_tokens, run.needed_copy_tokens, run.copied_tokens]
    figure = stacked_bars(ways, [("tokens moved", moved, USED)], axis("tokens moved in 32 steps"))
    figure["layout"]["showlegend"] = False
    factor = f"{run.whole_copy_tokens / run.copied_tokens:.3g} times less than copying everything" if run.copies else "nothing at all"
    return View(
        title=f"Copy-on-write moves {run.copied_tokens:,} tokens, {factor}",
        picture=figure,
        table=[
            ["way", "tokens moved"],
            *zip(ways, moved),
            ["blocks copied", run.copies],
            ["blocks saved over the run (%)", 100 * run.saving],
        ],
        source=f"{SIMULATED}, on a family tree computed beforehand on SmolLM2-135M",
        note="The first row is the lecture's count: every child copies all its parent has. The second is fairer to contiguous memory: the "
        "first child takes over its parent's, the others copy.",
        numbers={"copied_tokens": run.copied_tokens, "whole": run.whole_copy_tokens, "saving": run.saving},
    )


def pinned(requests: int, prefix: int, suffix: int, block_size: int) -> tuple[int, int, int]:
    """Blocks held with a pinned prefix, blocks without one, and copies: exactly what the block manager
    does."""
    per_request = -(-(prefix + suffix) // block_size)
    manager = BlockManager((requests + 1) * (per_request + 1), block_size)
    manager.allocate("system prompt", prefix)
    for request in range(requests):
        manager.fork("system prompt", request)
        manager.append(request, suffix)
    copies = len(manager.take_copies())
    return manager.num_blocks - manager.num_free, requests * per_request, copies


@explorer(
    title="A system prompt, pinned once",
    controls=[
        Choice("requests", "Requests at once", [1, 2, 4, 8, 16, 32], default=8),
        Choice("prefix", "System prompt", [16, 80, 341, 352, 1024], default=341, unit="tokens"),
        Choice("suffix", "Own tokens of a request", [20, 100, 400], default=20, unit="tokens"),
        Choice("block_size", "Block size", BLOCK_SIZES, default=16, unit="tokens"),
    ],
    expects={"requests": "rises:shared", "prefix": "changes:copies", "suffix": "rises:shared", "block_size": "changes:shared"},
)
def pinned_prefix(requests, prefix, suffix, block_size) -> View:
    """Every request forks the pinned sequence and goes on from there."""
    shared, alone, copies = pinned(requests, prefix, suffix, block_size)
    full = prefix // block_size
    figure = stacked_bars(
        ["pinned once", "kept by each"],
        [("shared prefix", [full, 0], SHARED), ("everything else", [shared - full, alone], USED)],
        axis("blocks held"),
    )
    less = f"{alone / shared:.3g} times fewer blocks" if shared < alone else "no block fewer"
    return View(
        title=f"{counted(requests, 'request')} with a pinned prefix: {less}, {counted(copies, 'copy', 'copies')}",
        picture=figure,
        table=[
            ["quantity", "value"],
            ["blocks with the prefix pinned", shared],
            ["blocks if each keeps its own", alone],
            ["full prefix blocks, shared by all", full],
            ["copies of the last prefix block", copies],
        ],
        source=SIMULATED,
        note="The pinned table never gives its last block up, so each request that writes into it copies it. A prefix that is a whole "
        "number of blocks needs no copy.",
        numbers={"shared": shared, "alone": alone, "copies": copies},
    )
