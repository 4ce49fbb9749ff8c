"""Chapter 4: the self-checked exercises."""

from __future__ import annotations

from kvlib.blocks import BlockManager
from kvlib.explore import Choice, Problem, Search, Slip, Verdict, exercise
from kvlib.figures.copy_on_write import beam_parents
from kvlib.tensors.sharing import replay, samples_tree


@exercise(title="Blocks of parallel samples")
def sample_blocks(rng) -> Problem:
    block_size, samples = 16, rng.choice((2, 3, 4, 6, 8))
    # Never a whole number of blocks, so that there is a last block to copy.
    prompt, output = rng.randrange(4, 12) * block_size + rng.randrange(1, block_size), rng.randrange(20, 120)
    run = replay(prompt, samples_tree(samples, output), block_size)
    full = prompt // block_size
    own = -(-(prompt + output) // block_size) - full
    return Problem(
        f"A prompt of {prompt} tokens is continued by {samples} samples of {output} tokens each. Blocks hold {block_size} tokens. How many "
        "blocks do they hold together when all are finished, with sharing?",
        run.blocks,
        "blocks",
        f"{full} full prompt blocks are shared by all. Each sample has {own} blocks of its own, from the prompt's last, half-full block on. "
        f"Together {full} + {samples} × {own} = {run.blocks}. Without sharing it would be {run.blocks_alone}.",
        slips=(
            Slip(run.blocks_alone, "That is without sharing."),
            Slip(run.blocks - samples + 1, "The half-full block of the prompt cannot stay shared: each sample writes into its own copy."),
            Slip(run.blocks + 1, "The last writer keeps the original of the half-full block, so no block stays behind."),
        ),
    )


@exercise(title="Forks, writes and frees")
def reference_counts(rng) -> Problem:
    block_size, pool = 4, 16
    prompt, forks, written = rng.randrange(5, 15), rng.randrange(2, 5), rng.randrange(1, 7)
    manager = BlockManager(pool, block_size)
    manager.allocate("A", prompt)
    names = "BCDE"[:forks]
    for name in names:
        manager.fork("A", name)
    manager.append("B", written)
    copies = len(manager.take_copies())
    gone = rng.choice(names[1:])
    manager.free(gone)
    held = pool - manager.num_free
    return Problem(
        f"A pool has {pool} blocks of {block_size} tokens. A sequence A of {prompt} tokens is forked into {', '.join(names)}. B then appends "
        f"{written} token{'' if written == 1 else 's'}, and {gone} is freed. How many blocks are free?",
        manager.num_free,
        "blocks",
        f"A's prompt holds {manager.blocks_for(prompt)} blocks, whoever shares them. B needs {held - manager.blocks_for(prompt)} more"
        + (", a copy of the half-full block among them" if copies else "") + f". Freeing {gone} only drops references that others still "
        f"have. So {held} are held and {manager.num_free} are free.",
        slips=(
            Slip(pool - held - copies if copies else pool - held - 1, "Freeing a sequence and forking one move no blocks by themselves."),
            Slip(manager.num_free + 1, "When B writes into a shared half-full block it needs a copy first."),
            Slip(pool - (forks + 1) * manager.blocks_for(prompt), "Forks share the same physical blocks; they take none."),
        ),
    )


@exercise(title="Copying whole caches")
def whole_copies(rng) -> Problem:
    width, prompt, steps = rng.choice((2, 3, 4, 5, 6)), rng.choice((32, 50, 64, 100)), rng.choice((16, 24, 32))
    answer = replay(prompt, samples_tree(width, steps), 16).whole_copy_tokens
    mean = prompt + (steps - 1) / 2
    return Problem(
        f"Beam search with {width} beams on a prompt of {prompt} tokens runs {steps} steps. At each step every new hypothesis copies all the "
        "tokens its parent has: the prompt at the first step, one token more at each later one. How many tokens are copied?",
        answer,
        "tokens",
        f"{width} × ({prompt} + {prompt + 1} + … + {prompt + steps - 1}) = {width} × {steps} × {mean:g} = {answer:,}.",
        slips=(
            Slip(answer / width, "That is for one hypothesis."),
            Slip(width * steps * prompt, "The sequences grow: each step copies one token more."),
            Slip(answer + width * steps, "The first step copies only the prompt."),
        ),
    )


@exercise(title="Copies that a beam search really makes")
def beam_ratio(rng) -> Problem:
    width, block_size = rng.choice((2, 4, 6)), rng.choice((8, 16, 32))
    run = replay(64, beam_parents(width), block_size)
    answer = float(f"{run.whole_copy_tokens / run.copied_tokens:.6g}")
    return Problem(
        f"A beam search of SmolLM2 with {width} beams, a prompt of 64 tokens and 32 steps made {run.copies} copies of blocks of {block_size} "
        f"tokens. Copying whole caches would have moved {run.whole_copy_tokens:,} tokens. How many times as many is that, if each block copy "
        "counts as a whole block?",
        answer,
        "times",
        f"{run.copies} × {block_size} = {run.copied_tokens:,} slots, and {run.whole_copy_tokens:,} ÷ {run.copied_tokens:,} = {answer:.3g}.",
        tolerance=0.01,
        slips=(Slip(run.whole_copy_tokens / run.copies, "That is tokens for each copy. A copy moves a block."),),
    )


@exercise(title="Find where sharing hardly pays")
def find_small_saving(rng) -> Search:
    samples, limit = rng.choice((2, 4, 6)), rng.choice((8, 10, 12))
    prompts, outputs = (20, 40, 80, 160, 320), (20, 80, 160, 320, 640)

    def judge(prompt: int, output: int) -> Verdict:
        run = replay(prompt, samples_tree(samples, output), 16)
        saving = 100 * run.saving
        return Verdict(saving < limit, f"{samples} samples, {prompt} in and {output} out: sharing saves {saving:.3g} % of the blocks over the run.")

    return Search(
        f"{samples} samples share a prompt, with blocks of 16 tokens. Find a prompt and an output length for which sharing saves less than "
        f"{limit} % of the blocks over the run. kvlib runs your setting.",
        (
            Choice("prompt", "Prompt", prompts, default=160, unit="tokens"),
            Choice("output", "Output", outputs, default=80, unit="tokens"),
        ),
        judge,
        known={"prompt": 20, "output": 640},
        solution="Only the prompt's blocks are shared. A short prompt with a long answer leaves little to share; a prompt below one block "
        "leaves nothing.",
    )
